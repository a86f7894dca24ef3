// fake_fork_server: speaks the fork server's side of the control protocol, without Python.
//
//   fake_fork_server LIFELINE [--start=die|die-once:PATH|die-if:PATH|hang] [--fork=fail]
//   [--rank=NAME] [--register=none] [--imported=FIFO]
//
// LIFELINE is a FIFO that this process and all below it hold open for writing. Until somebody opens
// the FIFO of --imported for writing only children that do not need all imports are forked.
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "runtime/packet_socket.h"
#include "runtime/rank_register.h"
#include "tests/support/fake_rank.h"

namespace sgpu::test {
namespace {

constexpr int kControlFd = 4;
constexpr std::size_t kFdsPerChild = 3;

struct Arguments {
    std::string lifeline;
    std::string start;
    std::string fork;
    std::string rank;
    std::string ranks;
    std::string imported;
};

Arguments parse(int argc, char** argv) {
    Arguments arguments;
    arguments.lifeline = argc > 1 ? argv[1] : "";
    for (int i = 2; i < argc; ++i) {
        const std::string word = argv[i];
        if (word.starts_with("--start=")) arguments.start = word.substr(8);
        if (word.starts_with("--fork=")) arguments.fork = word.substr(7);
        if (word.starts_with("--rank=")) arguments.rank = word.substr(7);
        if (word.starts_with("--register=")) arguments.ranks = word.substr(11);
        if (word.starts_with("--imported=")) arguments.imported = word.substr(11);
    }
    return arguments;
}

void misbehave_at_start(const std::string& how) {
    if (how == "die") ::_exit(3);
    if (how == "hang") pause_for_ever();
    if (how.starts_with("die-if:") && ::access(how.substr(7).c_str(), F_OK) == 0) ::_exit(3);
    if (!how.starts_with("die-once:")) return;
    const int made = ::open(how.substr(9).c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (made >= 0) ::_exit(3);
}

void say(const nlohmann::json& news) {
    if (send_packet(kControlFd, news.dump(), {}, Wait::yes) != Sent::yes) ::_exit(0);
}

// In the helper, which exits so that the ranks become the guard's.
[[noreturn]] void fork_children(const nlohmann::json& children, const Packet& packet,
                                const Arguments& arguments, int lifeline, pid_t guard,
                                RankRegister& ranks) {
    nlohmann::json pids = nlohmann::json::object();
    for (std::size_t i = 0; i < children.size(); ++i) {
        const auto* fds = &packet.fds[i * kFdsPerChild];
        const pid_t pid = arguments.fork == "fail" ? -1 : ::fork();
        if (pid == 0)
            run_fake_child({children[i], fds[0].get(), fds[1].get(), fds[2].get(), guard, lifeline,
                            arguments.rank, std::move(ranks)});
        pids[std::to_string(children[i]["id"].get<int>())] = pid;
    }
    say({{"forked", pids}});
    ::_exit(0);
}

class ForkServer {
public:
    explicit ForkServer(const Arguments& arguments) : arguments_(arguments) {
        auto opened = RankRegister::open(kRegisterFd);
        if (opened && arguments.ranks != "none") ranks_ = std::move(opened.value());
    }

    [[noreturn]] void serve() {
        for (const int stage : {0, 1}) say({{"imported", {{"stage", stage}}}});
        if (!arguments_.imported.empty()) serve_early_ones();
        say({{"imported", {{"stage", 2}}}});
        for (const Packet& packet : for_later_) carry_out(packet);
        for (;;) {
            pollfd item{kControlFd, POLLIN, 0};
            ::poll(&item, 1, -1);
            if (const auto packet = next()) carry_out(*packet);
        }
    }

private:
    void serve_early_ones() {
        const int fifo = ::open(arguments_.imported.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        for (;;) {
            std::array<pollfd, 2> items{{{kControlFd, POLLIN, 0}, {fifo, POLLIN, 0}}};
            ::poll(items.data(), items.size(), -1);
            if (items[1].revents) return;
            auto packet = next();
            if (!packet) continue;
            if (nlohmann::json::parse(packet->bytes)["imports"] < 2)
                carry_out(*packet);
            else
                for_later_.push_back(std::move(*packet));
        }
    }

    static std::optional<Packet> next() {
        auto packet = recv_packet(kControlFd);
        if (packet && packet->bytes.empty()) ::_exit(0);
        return packet;
    }

    void carry_out(const Packet& packet) {
        const auto order = nlohmann::json::parse(packet.bytes);
        const pid_t guard = ::getppid();
        const pid_t helper = ::fork();
        if (helper == 0)
            fork_children(order["children"], packet, arguments_, lifeline_, guard, ranks_);
        ::waitpid(helper, nullptr, 0);
    }

    const Arguments& arguments_;
    RankRegister ranks_;
    int lifeline_ = ::open(arguments_.lifeline.c_str(), O_WRONLY | O_NONBLOCK);
    std::vector<Packet> for_later_;
};

[[noreturn]] void serve(const Arguments& arguments) {
    ::fcntl(kControlFd, F_SETFD, FD_CLOEXEC);
    ForkServer server(arguments);
    misbehave_at_start(arguments.start);
    server.serve();
}

}  // namespace
}  // namespace sgpu::test

int main(int argc, char** argv) {
    sgpu::test::serve(sgpu::test::parse(argc, argv));
}
