// serverless-gpu-guard: ends every process of a pool when the notebook is gone, however it went.
//
//   serverless-gpu-guard LINK_FD FOLDER NOTEBOOK_PID  ARGV-OF-FORK-SERVER…
//
// Two processes of the same program: the keeper is the parent of the fork server and, as child
// subreaper, of every rank and every orphan; the warden is the keeper's parent and a subreaper too.
// Whichever of the two is killed, the other one kills what is left.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "runtime/guard/linger_table.h"
#include "runtime/guard_link.h"
#include "runtime/packet_socket.h"
#include "runtime/process_tree.h"
#include "runtime/rank_register.h"
#include "runtime/unique_fd.h"

namespace sgpu {
namespace {

constexpr int kControlFd = 4;        // where the fork server finds its control socket
constexpr int kWardenGraceMs = 250;  // what the keeper may take before the warden does its work
constexpr int kLingerPollMs = 5;

using Clock = std::chrono::steady_clock;

struct Setup {
    int link = -1;
    std::string folder;
    pid_t notebook = 0;
    UniqueFd notebook_alive;  // pidfd; -1 if the notebook was already gone
    UniqueFd children;        // signalfd for SIGCHLD
    char** fork_server = nullptr;
    std::shared_ptr<LingerTable>
        lingering;                   // both halves have it: either may be left alone with it
    RankRegister ranks;              // of the keeper; without it they stay in our session
    std::deque<GuardPacket> untold;  // while the pool does not read
};

UniqueFd pidfd_of(pid_t pid) {
    return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// A pool that is gone or stopped must not stop the guard, and one that goes on has to hear all.
void tell_what_is_untold(Setup& setup) {
    while (!setup.untold.empty()) {
        const GuardPacket& first = setup.untold.front();
        if (::send(setup.link, &first, sizeof first, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 &&
            errno == EAGAIN)
            return;
        setup.untold.pop_front();
    }
}

void tell_pool(Setup& setup, GuardPacket packet) {
    setup.untold.push_back(packet);
    tell_what_is_untold(setup);
}

void remove_folder(const Setup& setup) {
    std::error_code ignored;
    std::filesystem::remove_all(setup.folder, ignored);
}

// Kills all but those that may linger, removes the folder, and gives the lingering their time.
void end_everything(const Setup& setup) {
    std::set<pid_t> spared;
    std::chrono::milliseconds longest{0};
    for (const auto& [pid, time] : setup.lingering->times()) {
        spared.insert(pid);
        longest = std::max(longest, time);
    }
    kill_all_descendants(spared);
    remove_folder(setup);
    const auto limit = Clock::now() + longest;
    while (!spared.empty() && Clock::now() < limit) {
        for (auto it = spared.begin(); it != spared.end();)
            it = ::waitpid(*it, nullptr, WNOHANG) == 0 ? std::next(it) : spared.erase(it);
        if (!spared.empty()) ::poll(nullptr, 0, kLingerPollMs);
    }
    kill_all_descendants({});
    remove_folder(setup);  // again: who lingered may have written there meanwhile
}

UniqueFd block_and_watch_children() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    return UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

void drop_signals(int signal_fd) {
    signalfd_siginfo info;
    while (::read(signal_fd, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    }
}

// Becomes the fork server: its own log for what it prints, `control` as descriptor 4, the register
// as descriptor 5.
[[noreturn]] void exec_fork_server(const Setup& setup, int control, pid_t keeper) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != keeper) ::_exit(1);
    if (control == kControlFd)
        ::fcntl(control, F_SETFD, 0);
    else
        ::dup2(control, kControlFd);  // without close-on-exec
    if (setup.ranks.fd() >= 0) ::dup2(setup.ranks.fd(), kRegisterFd);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(s, SIG_DFL);
    const std::string log = setup.folder + "/fork_server.log";
    const int log_fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ::dup2(log_fd, 1);
    ::dup2(log_fd, 2);
    ::execvp(setup.fork_server[0], setup.fork_server);
    std::perror("exec of the fork server");
    ::_exit(127);
}

// If it cannot be forked, the pool is told and sees the end of its control socket.
void start_fork_server(Setup& setup, const UniqueFd& control, std::int32_t limit) {
    follow_process_limit(limit);
    const pid_t keeper = ::getpid();
    const pid_t pid = ::fork();
    if (pid == 0) exec_fork_server(setup, control.get(), keeper);
    tell_pool(setup, {GuardPacket::Kind::started, pid, pid < 0 ? errno : 0});
}

// What a rank had started comes to us when the rank dies, in the rank's session or in one that it
// has made. Our own holds the fork server and ranks to be; others may be led by ranks that live.
void kill_what_a_rank_left(const Setup& setup) {
    const auto lingering = setup.lingering->times();
    for (const Process& p : own_children())
        if (p.session != ::getsid(0) && !setup.ranks.contains(p.session) && p.state != 'Z' &&
            !lingering.contains(p.pid))
            kill_tree(p.pid);
}

// True for a rank or service, and forgets it: what is in its session from now on is left over. One
// that could not leave our session leads a group in it.
bool was_ours(Setup& setup, pid_t zombie) {
    if (setup.ranks.remove(zombie)) return true;
    return ::getpgid(zombie) == zombie && ::getsid(zombie) == ::getsid(0);
}

// Reaps every child that ended and tells the pool. The group of a rank goes first, while the zombie
// still keeps the group's number, and the rank's place in the register, from being another's.
void reap_children(Setup& setup) {
    for (;;) {
        siginfo_t info{};
        if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
        const pid_t pid = info.si_pid;
        if (was_ours(setup, pid)) {
            ::kill(-pid, SIGKILL);
            kill_what_a_rank_left(setup);
        }
        int status = 0;
        rusage usage{};
        if (::wait4(pid, &status, 0, &usage) != pid) continue;
        setup.lingering->remove(pid);
        const auto peak_mib = static_cast<std::int32_t>(usage.ru_maxrss / 1024);
        tell_pool(setup, {GuardPacket::Kind::exited, pid, status, peak_mib});
    }
}

// Returns false when the pool wants the end or is gone.
bool serve_link(Setup& setup) {
    auto received = recv_packet(setup.link);
    if (!received) return true;
    GuardPacket packet;
    if (received->bytes.size() != sizeof packet) return false;
    std::memcpy(&packet, received->bytes.data(), sizeof packet);
    switch (packet.kind) {
        case GuardPacket::Kind::kill_tree:
            // What has ended meanwhile is reaped, and its pid may be a stranger's by now.
            for (const Process& p : descendants(::getpid()))
                if (p.pid == packet.pid) kill_tree(packet.pid);
            return true;
        case GuardPacket::Kind::let_linger:
            setup.lingering->add(packet.pid, std::chrono::milliseconds(packet.number));
            return true;
        case GuardPacket::Kind::start_fork_server:
            if (!received->fds.empty()) start_fork_server(setup, received->fds[0], packet.number);
            return true;
        default:
            return false;
    }
}

int keep(Setup setup, UniqueFd warden_alive) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::prctl(PR_SET_NAME, "sgpu-keeper");
    if (auto made = RankRegister::make()) setup.ranks = std::move(made.value());
    for (bool go_on = static_cast<bool>(setup.notebook_alive); go_on;) {
        const short link_events = setup.untold.empty() ? POLLIN : POLLIN | POLLOUT;
        pollfd watched[] = {{setup.link, link_events, 0},
                            {setup.notebook_alive.get(), POLLIN, 0},
                            {setup.children.get(), POLLIN, 0},
                            {warden_alive.get(), POLLIN, 0}};
        ::poll(watched, 4, -1);
        if (watched[2].revents) {
            drop_signals(setup.children.get());
            reap_children(setup);
        }
        if (watched[0].revents & POLLOUT) tell_what_is_untold(setup);
        if (watched[0].revents & ~POLLOUT) go_on = serve_link(setup);
        if (watched[1].revents || watched[3].revents) go_on = false;
    }
    end_everything(setup);
    return 0;
}

int ward(const Setup& setup, pid_t keeper) {
    ::prctl(PR_SET_NAME, "sgpu-warden");
    ::close(setup.link);  // else the pool would not see the keeper's end
    int timeout = -1;
    for (;;) {
        pollfd watched[] = {{setup.children.get(), POLLIN, 0},
                            {setup.notebook_alive.get(), POLLIN, 0}};
        const int ready = ::poll(watched, timeout < 0 ? 2 : 1, timeout);
        int status = 0;
        if (::waitpid(keeper, &status, WNOHANG) == keeper) {
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
            break;
        }
        if (ready == 0) {
            // The keeper is done but for what may linger, or it hangs: what lingers is bounded
            // there.
            std::error_code ignored;
            if (!std::filesystem::exists(setup.folder, ignored) && timeout == kWardenGraceMs) {
                timeout = static_cast<int>(LingerTable::kLongest.count());
                continue;
            }
            break;
        }
        drop_signals(setup.children.get());
        if (watched[1].revents && timeout < 0) timeout = kWardenGraceMs;
    }
    end_everything(setup);
    return 0;
}

int run(int argc, char** argv) {
    if (argc < 5) {
        std::fputs(
            "usage: serverless-gpu-guard LINK_FD FOLDER NOTEBOOK_PID FORK_SERVER_ARGV...\n"
            "Started by the pool of a notebook; of no use by itself.\n",
            stderr);
        return 2;
    }
    Setup setup;
    setup.link = static_cast<int>(std::strtol(argv[1], nullptr, 10));
    setup.folder = argv[2];
    setup.notebook = static_cast<pid_t>(std::strtol(argv[3], nullptr, 10));
    setup.fork_server = argv + 4;
    setup.lingering = std::make_shared<LingerTable>();

    ::setsid();
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(s, SIG_IGN);
    ::fcntl(setup.link, F_SETFD, FD_CLOEXEC);
    setup.children = block_and_watch_children();
    // The pid cannot be another's: if we are still its child, it was alive after the pidfd was
    // made.
    setup.notebook_alive = pidfd_of(setup.notebook);
    if (::getppid() != setup.notebook) setup.notebook_alive.reset();

    UniqueFd warden = pidfd_of(::getpid());
    const pid_t keeper = ::fork();
    if (keeper < 0) {
        tell_pool(setup, {GuardPacket::Kind::started, -1, errno});
        return 1;
    }
    if (keeper == 0) return keep(std::move(setup), std::move(warden));
    return ward(setup, keeper);
}

}  // namespace
}  // namespace sgpu

int main(int argc, char** argv) {
    return sgpu::run(argc, argv);
}
