#include "runtime/shared_buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/memory_watch.h"

namespace sgpu {
namespace {

constexpr std::size_t kChunk = 8 << 20;  // what a thread takes at a time

struct Chunk {
    const char* data = nullptr;
    std::size_t size = 0;
    std::uint64_t offset = 0;
};

std::uint64_t round_up(std::uint64_t size) {
    return (size + SharedBuffer::kAlignment - 1) / SharedBuffer::kAlignment *
           SharedBuffer::kAlignment;
}

// Lays the buffers out: fills in offsets and size, and returns what has to be written where.
std::vector<Chunk> lay_out(std::span<const BufferParts> buffers, SharedBuffer& shared) {
    std::vector<Chunk> chunks;
    for (const BufferParts& parts : buffers) {
        shared.offsets.push_back(shared.size);
        std::uint64_t at = shared.size;
        for (const BufferView& part : parts) {
            const char* data = static_cast<const char*>(part.data);
            for (std::size_t done = 0; data != nullptr && done < part.size; done += kChunk)
                chunks.push_back({data + done, std::min(kChunk, part.size - done), at + done});
            at += part.size;
        }
        shared.size = round_up(at);
    }
    return chunks;
}

// The error of the call that has just failed, with the limit that may be behind it.
Error refused(const std::string& doing) {
    Error error = os_error(doing);
    if (error.os_errno == EMFILE) error.message += " (ulimit -n)";
    if (error.os_errno == EFBIG) error.message += " (ulimit -f)";
    return error;
}

// Returns 0 or an errno. pwrite, not memcpy into a mapping: it fills whole pages without zeroing
// them first and without faults, and running out of memory is an error instead of SIGBUS.
int write_whole(int fd, const Chunk& chunk) {
    for (std::size_t done = 0; done < chunk.size;) {
        const ssize_t count = ::pwrite(fd, chunk.data + done, chunk.size - done,
                                       static_cast<off_t>(chunk.offset + done));
        if (count < 0 && errno != EINTR) return errno;
        if (count > 0) done += static_cast<std::size_t>(count);
    }
    return 0;
}

// Returns 0 or the errno of the first write that failed, ECANCELED if the caller's `go_on` said no.
int write_all(int fd, const std::vector<Chunk>& chunks, int threads,
              const std::function<bool()>& go_on) {
    std::atomic<std::size_t> next{0};
    std::atomic<int> failure{0};
    const auto fail = [&failure](int error) {
        int expected = 0;
        failure.compare_exchange_strong(expected, error);
    };
    const auto work_while = [&](const auto& wanted) {
        for (std::size_t i = next++; i < chunks.size() && failure == 0; i = next++) {
            if (!wanted()) return fail(ECANCELED);
            const int error = write_whole(fd, chunks[i]);
            if (error != 0) fail(error);
        }
    };
    {
        const auto wanted = std::min(static_cast<std::size_t>(std::max(threads, 1)), chunks.size());
        std::vector<std::jthread> helpers;
        try {
            while (helpers.size() + 1 < wanted)
                helpers.emplace_back([&] { work_while([] { return true; }); });
        } catch (const std::system_error&) {
            // No further thread to be had (a limit of processes): those there are do all the work.
        }
        work_while(go_on);
    }
    if (failure == 0 && !go_on()) return ECANCELED;
    return failure;
}

}  // namespace

Result<SharedBuffer> share(std::span<const BufferParts> buffers, int threads,
                           const std::function<bool()>& go_on) {
    SharedBuffer shared;
    const std::vector<Chunk> chunks = lay_out(buffers, shared);
    std::uint64_t bytes = 0;
    for (const Chunk& chunk : chunks) bytes += chunk.size;
    // Without room the system would not refuse: it would kill the largest process, the notebook's.
    if (auto lack = lack_of_memory(bytes)) return std::move(*lack);
    shared.fd.reset(::memfd_create("sgpu", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!shared.fd) return refused("create shared memory");
    if (::ftruncate(shared.fd.get(), static_cast<off_t>(shared.size)) != 0)
        return refused("reserve " + std::to_string(shared.size) + " bytes of shared memory");
    errno = write_all(shared.fd.get(), chunks, threads, go_on);
    if (errno != 0) return refused("write " + std::to_string(shared.size) + " shared bytes");
    constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    if (::fcntl(shared.fd.get(), F_ADD_SEALS, kSeals) != 0) return os_error("seal shared memory");
    return shared;
}

Result<PrivateMapping> PrivateMapping::open(int fd) {
    struct stat info {};
    if (::fstat(fd, &info) != 0) return os_error("look at shared memory");
    const auto size = static_cast<std::size_t>(info.st_size);
    if (size == 0) return PrivateMapping(nullptr, 0);
    // MAP_NORESERVE: the memory for writing it all is not set aside in every rank that maps it.
    void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (data == MAP_FAILED) return os_error("map " + std::to_string(size) + " shared bytes");
    return PrivateMapping(data, size);
}

PrivateMapping::~PrivateMapping() {
    if (data_ != nullptr) ::munmap(data_, size_);
}

PrivateMapping::PrivateMapping(PrivateMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PrivateMapping& PrivateMapping::operator=(PrivateMapping&& other) noexcept {
    // The parameter of swap dies here, and with it what this object mapped before.
    PrivateMapping taken(std::move(other));
    std::swap(data_, taken.data_);
    std::swap(size_, taken.size_);
    return *this;
}

}  // namespace sgpu
