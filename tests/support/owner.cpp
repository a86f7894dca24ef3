#include "tests/support/owner.h"

#include <fcntl.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <nlohmann/json.hpp>

#include "runtime/process_tree.h"
#include "tests/support/pool_test.h"

namespace sgpu::test {
namespace {

using nlohmann::json;

void write_line(int fd, const std::string& text) {
    const std::string line = text + "\n";
    if (::write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) ::_exit(3);
}

[[noreturn]] void own(const Owner::Plan& plan, int out, int in) {
    auto pool = RankPool::start(plan.options);
    if (!pool) ::_exit(2);
    plan.work(*pool.value());
    const PoolPids pids = pool.value()->pids();
    std::vector<pid_t> ranks;
    for (const auto& [id, pid] : pids.children) ranks.push_back(pid);
    const auto below = descendants(pids.guard);
    write_line(out, json{{"folder", pool.value()->folder()},
                         {"warden", pids.guard},
                         {"keeper", below.empty() ? 0 : below.front().pid},
                         {"ranks", ranks}}
                        .dump());
    char byte = 0;
    (void)!::read(in, &byte, 1);
    write_line(out, plan.end ? plan.end(*pool.value()) : "");
    pool.value().reset();
    ::_exit(0);
}

}  // namespace

Owner::Owner(const Plan& plan) {
    std::array<int, 2> up{};
    std::array<int, 2> down{};
    if (::pipe2(up.data(), O_CLOEXEC) != 0 || ::pipe2(down.data(), O_CLOEXEC) != 0) return;
    from_child_.reset(up[0]);
    to_child_.reset(down[1]);
    const UniqueFd child_out(up[1]);
    const UniqueFd child_in(down[0]);
    pid_ = ::fork();
    if (pid_ == 0) {
        to_child_.reset();
        own(plan, child_out.get(), child_in.get());
    }
    const auto ready = json::parse(read_line(), nullptr, false);
    if (!ready.is_object()) return;
    folder_ = ready["folder"];
    warden_ = ready["warden"];
    keeper_ = ready["keeper"];
    ranks_ = ready["ranks"].get<std::vector<pid_t>>();
}

Owner::~Owner() {
    kill();
}

void Owner::kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
}

std::string Owner::finish() {
    to_child_.reset();
    return read_line();
}

std::string Owner::read_line() {
    std::string line;
    for (char byte = 0; readable(from_child_.get()) && ::read(from_child_.get(), &byte, 1) == 1;) {
        if (byte == '\n') return line;
        line += byte;
    }
    return "";
}

}  // namespace sgpu::test
