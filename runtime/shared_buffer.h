// shared_buffer.h: large buffers in one memfd, written once, mapped privately by every receiver.
//
// A memfd has no name, so nothing can be left behind, and it does not count against the size of
// /dev/shm (64 MB in a container by default).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace sgpu {

// Bytes of the sender, not owned. Without `data` it is a hole: it takes room in the file, reads as
// zeros, and costs neither time nor memory.
struct BufferView {
    const void* data = nullptr;
    std::size_t size = 0;
};

// What lies end to end in the file: one buffer, or the pieces of one.
using BufferParts = std::vector<BufferView>;

struct SharedBuffer {
    // Every buffer starts at a multiple of this, right after the end of the one before, rounded up;
    // so the sizes alone tell a receiver where everything is.
    static constexpr std::uint64_t kAlignment = 4096;

    UniqueFd fd;                         // sealed: nobody can change, shorten or lengthen it
    std::vector<std::uint64_t> offsets;  // of each buffer, in bytes
    std::uint64_t size = 0;              // of the file, in bytes
};

// Copies the buffers into a new memfd with up to `threads` threads, the caller's among them, and
// seals it. Blocks for as long as copying takes (about 0.3 s a GB and thread).
// `go_on` is asked by the caller's thread between pieces of a few milliseconds; false ends the
// copy. Errors: Errc::os_failure (ENOSPC or ENOMEM: no memory for the copy; EMFILE: out of
// descriptors; EFBIG: files may not be that large; ECANCELED: `go_on` said no).
// REQUIRES: threads >= 1; the buffers stay valid and unchanged during the call. Threads: any.
Result<SharedBuffer> share(
    std::span<const BufferParts> buffers, int threads,
    const std::function<bool()>& go_on = [] { return true; });

// The whole of a memfd as writable memory, copy-on-write: what is written here is seen by nobody
// else, and pages not written are shared with all who map the same memfd. Destroying it unmaps, so
// whoever hands out views of data() keeps the object until the last view is gone.
//
// Threads: the object is immutable; its memory is as safe as any memory.
class PrivateMapping {
public:
    // `fd` is not taken over and may be closed afterwards.
    // Errors: Errc::os_failure (EBADF, ENOMEM: the address space is used up).
    static Result<PrivateMapping> open(int fd);

    ~PrivateMapping();
    PrivateMapping(PrivateMapping&& other) noexcept;
    PrivateMapping& operator=(PrivateMapping&& other) noexcept;
    PrivateMapping(const PrivateMapping&) = delete;
    PrivateMapping& operator=(const PrivateMapping&) = delete;

    void* data() const { return data_; }  // null if the file is empty
    std::size_t size() const { return size_; }

private:
    PrivateMapping(void* data, std::size_t size) : data_(data), size_(size) {}

    void* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace sgpu
