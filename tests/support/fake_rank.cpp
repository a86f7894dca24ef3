#include "tests/support/fake_rank.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <map>
#include <vector>

#include "runtime/output_pipe.h"
#include "runtime/packet_socket.h"
#include "tests/support/fake_deeds.h"

namespace sgpu::test {
namespace {

// Nothing inherited but the pipes, the socket and the lifeline, as serverless_gpu's enter_rank
// does.
void enter(FakeSetup& setup) {
    lead_session(std::move(setup.ranks));
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
    ::dup2(setup.out, 1);
    ::dup2(setup.err, 2);
    ::dup2(setup.lifeline, kLifelineFd);
    if (setup.socket == kSocketFd)
        ::fcntl(setup.socket, F_SETFD, FD_CLOEXEC);
    else
        ::dup3(setup.socket, kSocketFd, O_CLOEXEC);
    ::syscall(SYS_close_range, kSocketFd + 1, kLifelineFd - 1, 0);
    ::syscall(SYS_close_range, kLifelineFd + 1, ~0U, 0);
}

Packet next_packet() {
    for (;;) {
        pollfd item{kSocketFd, POLLIN, 0};
        ::poll(&item, 1, -1);
        if (auto packet = recv_packet(kSocketFd)) return std::move(*packet);
    }
}

// A rank that serves without an agent and never says Hello.
[[noreturn]] void serve_without_hello(const FakeSetup& setup) {
    for (;;) {
        const Packet packet = next_packet();
        const auto message = decode(packet.bytes);
        if (!message) ::_exit(0);
        const auto* execute = std::get_if<Execute>(&message.value().body);
        if (!execute) ::_exit(0);
        const std::string key = setup.child["key"];
        print(1, mark_bytes(key, 2));
        print(2, mark_bytes(key, 2));
        send_packet(kSocketFd, encode(Done{execute->call, true, 2, 0, 0}, {"no hello"}), {},
                    Wait::yes);
    }
}

[[noreturn]] void say_hello_in_another_version(const FakeSetup& setup) {
    std::string bytes = encode(Hello{setup.child["key"], ::getpid(), nullptr});
    bytes[2] = static_cast<char>(kWireVersion + 1);
    send_packet(kSocketFd, bytes, {}, Wait::yes);
    pause_for_ever();
}

[[noreturn]] void end_without_quit(const FakeSetup&) {
    pause_for_ever();
}

std::string word_of(const std::string& words, int rank) {
    std::vector<std::string> list(1);
    for (const char c : words) {
        if (c == '|')
            list.emplace_back();
        else
            list.back() += c;
    }
    return list[static_cast<std::size_t>(rank) % list.size()];
}

[[noreturn]] void serve(const FakeSetup& setup) {
    static RankAgent* current = nullptr;
    const int dump_fd = ::memfd_create("stacks", MFD_CLOEXEC);
    install_signals(current, dump_fd);
    RankAgent agent({setup.child["key"],
                     UniqueFd(kSocketFd),
                     setup.guard,
                     {dump_signal(), dump_fd, {}},
                     "127.77.",
                     "null"});
    current = &agent;
    for (;;) {
        pollfd item{agent.request_fd(), POLLIN, 0};
        ::poll(&item, 1, -1);
        const auto request = agent.take();
        if (!request) continue;
        const auto* execute = std::get_if<Execute>(&request->body);
        if (!execute) {
            if (setup.rank == "ignore-quit") continue;
            ::_exit(0);
        }
        const FakeRank rank{agent, execute->call, execute->rank, setup.child["key"]};
        agent.begin_work(execute->call, execute->world);
        do_deed(rank, word_of(request->frames.at(0), execute->rank));
    }
}

[[noreturn]] void run_service(const FakeSetup& setup) {
    const auto& config = setup.child["config"];
    const std::string entry = setup.child["service"];
    ::signal(SIGINT, SIG_IGN);
    const pid_t notebook = config.value("notebook", 0);
    const UniqueFd notebook_alive(static_cast<int>(::syscall(SYS_pidfd_open, notebook, 0)));
    send_packet(kSocketFd, encode(Hello{setup.child["key"], ::getpid(), {{"port", 7}}}), {},
                Wait::yes);
    if (entry == "last-words") {
        pollfd item{notebook_alive.get(), POLLIN, 0};
        ::poll(&item, 1, -1);
        // What a tracker takes to write its last batch.
        ::poll(nullptr, 0, config.value("work_ms", 0));
        const std::string path = config["file"];
        const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        print(file.get(), "KILLED");
        ::_exit(0);
    }
    pause_for_ever();
}

}  // namespace

void pause_for_ever() {
    for (;;) ::pause();
}

void run_fake_child(FakeSetup setup) {
    enter(setup);
    if (setup.child.contains("service")) run_service(setup);
    const std::map<std::string, std::function<void(const FakeSetup&)>> starts = {
        {"no-hello", serve_without_hello},
        {"wrong-version", say_hello_in_another_version},
        {"mute", end_without_quit},
        {"die", [](const FakeSetup&) { ::_exit(5); }}};
    if (const auto start = starts.find(setup.rank); start != starts.end()) start->second(setup);
    serve(setup);
}

}  // namespace sgpu::test
