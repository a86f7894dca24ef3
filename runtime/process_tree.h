// process_tree.h: finds and ends the processes below a process, by parent links in /proc.
//
// Threads: all functions may be called from any thread; they keep no state.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace sgpu {

struct Process {
    pid_t pid = 0;
    pid_t parent = 0;
    pid_t group = 0;
    pid_t session = 0;
    char state = '?';
    std::uint64_t start_time = 0;  // with pid, names a process uniquely
};

// One scan of /proc. Processes that end during the scan are left out.
std::vector<Process> all_processes();

// Every process below `root`, parents before children; `root` itself is not in it.
std::vector<Process> descendants(pid_t root);

// The direct children of this process, without a scan of all others. Empty if the kernel does not
// tell them (CONFIG_PROC_CHILDREN).
// REQUIRES: this process has no threads that fork.
std::vector<Process> own_children();

// Which of these processes have ended, reaped or not. One that cannot be looked at for want of
// descriptors counts as alive. Never blocks.
std::vector<pid_t> ended_among(const std::vector<pid_t>& pids);

// Stops `root` and everything below it, so that none can fork away, then kills them all.
// What had already detached itself from `root` (double fork) is not found: only the subreaper has
// it.
void kill_tree(pid_t root);

// Kills everything below this process except `spared` and its descendants, in rounds, until nothing
// else is left, and reaps it. Blocks for as long as the system takes to end processes.
// REQUIRES: this process is a child subreaper, so that what a killed parent leaves behind becomes
// its child and is found by the next round.
void kill_all_descendants(const std::set<pid_t>& spared);

// Kills every process whose initial environment holds `mark` (name=value), this one excepted, in
// rounds until none is left. The last resort when no subreaper is left: it misses what was started
// with another environment. Blocks for 100 rounds of 2 ms at most. Returns how many were killed.
int kill_marked(const std::string& mark);

}  // namespace sgpu
