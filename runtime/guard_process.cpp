#include "runtime/guard_process.h"

#include <fcntl.h>
#include <spawn.h>

#include <csignal>
#include <cstdlib>

namespace sgpu {
namespace {

constexpr int kLinkFd = 3;
constexpr int kAboveTheTargets = 10;  // a number that dup2 in the child does not use

std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> list;
    list.reserve(words.size() + 1);
    for (auto& word : words) list.push_back(word.data());
    list.push_back(nullptr);
    return list;
}

// Owns the two attribute objects of one posix_spawn.
class SpawnPlan {
public:
    explicit SpawnPlan(int link) {
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
        // Nothing of ours may keep the notebook's own stdout open for its reader.
        posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
        posix_spawn_file_actions_adddup2(&actions, 1, 2);
        posix_spawn_file_actions_adddup2(&actions, link, kLinkFd);
        posix_spawn_file_actions_addclosefrom_np(&actions, kLinkFd + 1);
        // It ignores these once it runs; until then it is in the notebook's process group, which
        // a Stop is sent to as a whole.
        sigset_t held;
        sigset_t all;
        sigemptyset(&held);
        for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) sigaddset(&held, s);
        sigfillset(&all);
        posix_spawnattr_init(&attributes);
        posix_spawnattr_setsigmask(&attributes, &held);
        posix_spawnattr_setsigdefault(&attributes, &all);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    }
    ~SpawnPlan() {
        posix_spawn_file_actions_destroy(&actions);
        posix_spawnattr_destroy(&attributes);
    }
    SpawnPlan(const SpawnPlan&) = delete;
    SpawnPlan& operator=(const SpawnPlan&) = delete;

    posix_spawn_file_actions_t actions{};
    posix_spawnattr_t attributes{};
};

}  // namespace

Result<std::string> make_private_folder() {
    Error last{Errc::os_failure, "no folder for the pool's sockets", 0};
    const char* const bases[] = {std::getenv("XDG_RUNTIME_DIR"), std::getenv("TMPDIR"), "/tmp"};
    for (const char* base : bases) {
        if (!base || !*base) continue;
        std::string path = std::string(base) + "/serverless-gpu-XXXXXX";
        if (::mkdtemp(path.data())) return path;  // mode 0700
        last = os_error("private folder " + path);
    }
    return last;
}

std::string pool_mark(const std::string& folder) {
    return "SERVERLESS_GPU_POOL=" + folder;
}

Result<pid_t> start_guard(const GuardOptions& options, const UniqueFd& link_end) {
    std::vector<std::string> words = {options.program, std::to_string(kLinkFd), options.folder,
                                      std::to_string(::getpid())};
    words.insert(words.end(), options.fork_server.begin(), options.fork_server.end());
    std::vector<std::string> environment;
    for (char** e = environ; *e; ++e) environment.emplace_back(*e);
    environment.push_back(pool_mark(options.folder));
    const auto argv = pointers(words);
    const auto envp = pointers(environment);

    const UniqueFd link(::fcntl(link_end.get(), F_DUPFD_CLOEXEC, kAboveTheTargets));
    if (!link) return os_error("descriptor for the guard");
    const SpawnPlan plan(link.get());
    pid_t pid = 0;
    const int error =
        ::posix_spawn(&pid, argv[0], &plan.actions, &plan.attributes, argv.data(), envp.data());
    if (error) {
        errno = error;
        return os_error("start of " + options.program);
    }
    return pid;
}

}  // namespace sgpu
