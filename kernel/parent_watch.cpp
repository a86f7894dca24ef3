#include "kernel/parent_watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace sgpu {
namespace {

// 0 if there is no such process.
pid_t parent_of(pid_t pid) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    const std::string text{std::istreambuf_iterator<char>(stat), {}};
    const std::size_t name_end = text.rfind(')');  // the name may hold spaces and brackets
    if (name_end == std::string::npos) return 0;
    std::istringstream rest(text.substr(name_end + 1));
    char state = 0;
    pid_t parent = 0;
    rest >> state >> parent;
    return parent;
}

bool descends_from(pid_t ancestor) {
    for (pid_t pid = ::getppid(); pid > 1; pid = parent_of(pid)) {
        if (pid == ancestor) return true;
    }
    return false;
}

// The variable is inherited and may be stale or of another pid namespace, so it is checked.
pid_t choose_parent() {
    const char* const text = std::getenv("JPY_PARENT_PID");
    const auto named = text == nullptr ? 0 : static_cast<pid_t>(std::strtol(text, nullptr, 10));
    if (named > 1 && descends_from(named)) return named;
    return ::getppid() > 1 ? ::getppid() : 0;
}

}  // namespace

ParentWatch::ParentWatch() : parent_(choose_parent()), direct_parent_(::getppid()) {
    if (parent_ != 0) pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, parent_, 0)));
}

bool ParentWatch::parent_gone() const {
    if (parent_ == 0) return false;
    if (pidfd_) {
        pollfd fd{pidfd_.get(), POLLIN, 0};
        return ::poll(&fd, 1, 0) > 0;
    }
    if (parent_ == direct_parent_) return ::getppid() != parent_;
    return ::kill(parent_, 0) != 0 && errno == ESRCH;
}

}  // namespace sgpu
