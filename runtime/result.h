// result.h: the outcome of an operation that the system or a peer may refuse.
#pragma once

#include <cassert>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <variant>

namespace sgpu {

// What the caller can act on. Add a code only with the code that acts on it.
enum class Errc {
    bad_input,    // the user's cell or flag is wrong: show message, change nothing
    bad_message,  // a peer sent what wire.md does not allow: drop the peer
    os_failure,   // a system call failed: os_errno is set
    timed_out,    // the deadline passed: the operation did not happen
};

struct Error {
    Errc code = Errc::os_failure;
    std::string message;  // one line, for the user; names the thing that failed
    int os_errno = 0;     // errno for os_failure, else 0
};

// The error of the system call that has just failed, while `doing` something.
inline Error os_error(const std::string& doing) {
    const int number = errno;
    return {Errc::os_failure, doing + ": " + std::strerror(number), number};
}

// A T or an Error. REQUIRES: value() only if ok(), error() only if not.
template <class T>
class [[nodiscard]] Result {
public:
    Result(T value) : state_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
    Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

    bool ok() const { return state_.index() == 0; }
    explicit operator bool() const { return ok(); }
    T& value() {
        assert(ok());
        return std::get<0>(state_);
    }
    const T& value() const {
        assert(ok());
        return std::get<0>(state_);
    }
    const Error& error() const {
        assert(!ok());
        return std::get<1>(state_);
    }

private:
    std::variant<T, Error> state_;
};

}  // namespace sgpu
