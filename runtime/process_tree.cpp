#include "runtime/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <unordered_map>

#include "runtime/unique_fd.h"

namespace sgpu {
namespace {

constexpr int kFastRounds = 20;  // rounds of 1 ms, in which nearly everything ends
constexpr int kFastRoundMs = 1;
constexpr int kSlowRoundMs = 10;
constexpr int kTreeRounds = 100;  // each finds what the one before was too late to stop
constexpr int kMarkedRounds = 100;
constexpr int kMarkedRoundMs = 2;

std::optional<Process> read_process(pid_t pid) {
    char path[32];
    std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
    const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
    if (!fd) return std::nullopt;
    char text[1024];
    const ssize_t n = ::read(fd.get(), text, sizeof text - 1);
    if (n <= 0) return std::nullopt;
    text[n] = 0;
    // The name may hold spaces and brackets; the last ')' ends it.
    const char* rest = std::strrchr(text, ')');
    if (!rest) return std::nullopt;
    Process p{.pid = pid};
    unsigned long long start = 0;
    const int fields = std::sscanf(rest + 2,
                                   "%c %d %d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
                                   "%*d %*d %*d %llu",
                                   &p.state, &p.parent, &p.group, &p.session, &start);
    if (fields != 5) return std::nullopt;
    p.start_time = start;
    return p;
}

// Signals the process only if it is still the one that was scanned: its pid may be another's by
// now.
void signal_scanned(const Process& scanned, int signum) {
    const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, scanned.pid, 0)));
    if (!pidfd) return;
    const auto now = read_process(scanned.pid);
    if (!now || now->start_time != scanned.start_time) return;
    ::syscall(SYS_pidfd_send_signal, pidfd.get(), signum, nullptr, 0);
}

std::string read_environment(pid_t pid) {
    const UniqueFd fd(
        ::open(("/proc/" + std::to_string(pid) + "/environ").c_str(), O_RDONLY | O_CLOEXEC));
    std::string environment(1, '\0');
    char part[4096];
    for (ssize_t n = 0; fd && (n = ::read(fd.get(), part, sizeof part)) > 0;)
        environment.append(part, static_cast<std::size_t>(n));
    return environment;
}

// Takes `spared` and everything below it out of `tree`, which has parents before children.
std::vector<Process> without(const std::vector<Process>& tree, const std::set<pid_t>& spared) {
    std::set<pid_t> out = spared;
    std::vector<Process> rest;
    for (const Process& p : tree) {
        if (out.contains(p.pid) || out.contains(p.parent))
            out.insert(p.pid);
        else
            rest.push_back(p);
    }
    return rest;
}

}  // namespace

std::vector<Process> all_processes() {
    std::vector<Process> found;
    DIR* proc = ::opendir("/proc");
    if (!proc) return found;
    while (const dirent* entry = ::readdir(proc)) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
        if (auto p = read_process(static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10))))
            found.push_back(*p);
    }
    ::closedir(proc);
    return found;
}

std::vector<Process> descendants(pid_t root) {
    std::unordered_map<pid_t, std::vector<Process>> children;
    for (const Process& p : all_processes()) children[p.parent].push_back(p);
    std::vector<Process> found = children[root];
    for (std::size_t i = 0; i < found.size(); ++i) {
        const auto& next = children[found[i].pid];
        found.insert(found.end(), next.begin(), next.end());
    }
    return found;
}

std::vector<Process> own_children() {
    const std::string self = std::to_string(::getpid());
    std::ifstream list("/proc/" + self + "/task/" + self + "/children");
    std::vector<Process> found;
    for (pid_t pid = 0; list >> pid;)
        if (const auto p = read_process(pid)) found.push_back(*p);
    return found;
}

std::vector<pid_t> ended_among(const std::vector<pid_t>& pids) {
    std::vector<pid_t> ended;
    for (const pid_t pid : pids) {
        const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
        if (!pidfd && errno != ESRCH) continue;
        pollfd item{pidfd.get(), POLLIN, 0};
        if (!pidfd || ::poll(&item, 1, 0) > 0) ended.push_back(pid);
    }
    return ended;
}

void kill_tree(pid_t root) {
    std::set<pid_t> stopped;
    std::vector<Process> tree;
    bool grew = true;
    for (int round = 0; grew && round < kTreeRounds; ++round) {
        grew = false;
        tree = descendants(root);
        if (auto p = read_process(root)) tree.insert(tree.begin(), *p);
        for (const Process& p : tree) {
            if (!stopped.insert(p.pid).second) continue;
            signal_scanned(p, SIGSTOP);
            grew = true;
        }
    }
    for (const Process& p : tree) signal_scanned(p, SIGKILL);
}

int kill_marked(const std::string& mark) {
    const std::string needle = '\0' + mark + '\0';
    int killed = 0;
    for (int round = 0; round < kMarkedRounds; ++round) {
        bool found = false;
        for (const Process& p : all_processes()) {
            if (p.pid == ::getpid() || p.state == 'Z') continue;
            if (read_environment(p.pid).find(needle) == std::string::npos) continue;
            signal_scanned(p, SIGKILL);
            found = true;
            ++killed;
        }
        if (!found) return killed;
        ::poll(nullptr, 0, kMarkedRoundMs);
    }
    return killed;
}

void kill_all_descendants(const std::set<pid_t>& spared) {
    const pid_t self = ::getpid();
    const pid_t own_group = ::getpgrp();
    for (int round = 1;; ++round) {
        const auto tree = without(descendants(self), spared);
        if (tree.empty()) return;
        for (const Process& p : tree) {
            if (p.state == 'Z') {
                if (p.parent == self) ::waitpid(p.pid, nullptr, WNOHANG);
                continue;
            }
            // A group is signalled atomically against fork, so a process that forks and exits all
            // the time cannot slip through as it could between scan and kill. All members are ours:
            // a group cannot span sessions and the guard made its own session. The spared lead
            // groups of their own.
            if (p.group != own_group && p.group > 1 && !spared.contains(p.group))
                ::kill(-p.group, SIGKILL);
            signal_scanned(p, SIGKILL);
        }
        // The killed need a moment to become zombies.
        ::poll(nullptr, 0, round < kFastRounds ? kFastRoundMs : kSlowRoundMs);
    }
}

}  // namespace sgpu
