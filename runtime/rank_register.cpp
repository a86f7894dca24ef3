#include "runtime/rank_register.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <utility>

namespace sgpu {
namespace {

constexpr pid_t kBits = 64;
constexpr std::size_t kBytes = RankRegister::kEnd / 8;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;  // a lost page would be a SIGBUS
constexpr int kAboveTheTargets = 10;  // a number that the start of the fork server does not use

std::atomic_ref<std::uint64_t> word_of(std::uint64_t* words, pid_t pid) {
    return std::atomic_ref<std::uint64_t>(words[pid / kBits]);
}

std::uint64_t bit_of(pid_t pid) {
    return std::uint64_t{1} << (pid % kBits);
}

bool is_register(int fd) {
    struct stat file {};
    return ::fcntl(fd, F_GET_SEALS) == kSeals && ::fstat(fd, &file) == 0 &&
           file.st_size == static_cast<off_t>(kBytes);
}

}  // namespace

static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free, "a lock is of one process only");

Result<RankRegister> RankRegister::make() {
    const UniqueFd low(::memfd_create("ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    UniqueFd fd(::fcntl(low.get(), F_DUPFD_CLOEXEC, kAboveTheTargets));
    if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(kBytes)) != 0 ||
        ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
        return os_error("register of ranks");
    auto made = map(fd.get());
    if (made) made.value().fd_ = std::move(fd);
    return made;
}

Result<RankRegister> RankRegister::open(int fd) {
    if (!is_register(fd)) {
        errno = EBADF;
        return os_error("register of ranks");
    }
    const UniqueFd owned(fd);
    return map(fd);
}

Result<RankRegister> RankRegister::map(int fd) {
    void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return os_error("register of ranks");
    RankRegister mapped;
    mapped.words_ = static_cast<std::uint64_t*>(memory);
    return mapped;
}

RankRegister::~RankRegister() {
    if (words_) ::munmap(words_, kBytes);
}

RankRegister::RankRegister(RankRegister&& other) noexcept
    : words_(std::exchange(other.words_, nullptr)), fd_(std::move(other.fd_)) {}

RankRegister& RankRegister::operator=(RankRegister&& other) noexcept {
    RankRegister taken(std::move(other));
    std::swap(words_, taken.words_);
    std::swap(fd_, taken.fd_);
    return *this;
}

bool RankRegister::add(pid_t pid) {
    if (holds(pid)) word_of(words_, pid).fetch_or(bit_of(pid));
    return holds(pid);
}

bool RankRegister::remove(pid_t pid) {
    return holds(pid) && (word_of(words_, pid).fetch_and(~bit_of(pid)) & bit_of(pid)) != 0;
}

bool RankRegister::contains(pid_t pid) const {
    // A change, though of nothing: it is ordered with the rank's own, while a mere read could bring
    // a bit that is older than the session which was seen before.
    return holds(pid) && (word_of(words_, pid).fetch_or(0) & bit_of(pid)) != 0;
}

void lead_session(RankRegister ranks) {
    const pid_t self = ::getpid();
    if (ranks.add(self) && ::setsid() == self) return;
    ranks.remove(self);
    ::setpgid(0, 0);
}

}  // namespace sgpu
