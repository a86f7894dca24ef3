#include "tests/support/fake_deeds.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <map>
#include <string_view>

#include "runtime/packet_socket.h"
#include "tests/support/fake_rank.h"

namespace sgpu::test {
namespace {

volatile std::sig_atomic_t interrupted = 0;
RankAgent** interrupted_agent = nullptr;
int stack_fd = -1;
void (*after_dump)(int) = nullptr;

void on_interrupt(int) {
    if (*interrupted_agent) (*interrupted_agent)->see_interrupt();
    interrupted = 1;
}

void on_dump(int number) {
    const int saved = errno;
    constexpr std::string_view kStack = "the fake rank's stack\n";
    (void)!::write(stack_fd, kStack.data(), kStack.size());
    after_dump(number);
    errno = saved;
}

// --- deeds: what a rank may do in a call ---

void ok(const FakeRank& rank, const std::string& text) {
    print(1, "hello\n");
    rank.answer(true, text);
}

void raise_error(const FakeRank& rank, const std::string& text) {
    rank.answer(false, text);
}

void die_in_output(const FakeRank&, const std::string&) {
    print(1, "a whole line\nhalf a li");
    print(2, "trouble");
    ::kill(::getpid(), SIGKILL);
}

void exit_with(const FakeRank&, const std::string& code) {
    ::_exit(std::atoi(code.c_str()));
}

void die_by(const FakeRank&, const std::string& signal_number) {
    const int number = std::atoi(signal_number.c_str());
    ::signal(number, SIG_DFL);
    ::kill(::getpid(), number);
    pause_for_ever();
}

void ignore_signals(const FakeRank&, const std::string&) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::signal(number, SIG_IGN);
    say_begun();
    pause_for_ever();
}

void obey(const FakeRank& rank, const std::string&) {
    const std::string why = rank.wait_for_interrupt();
    rank.answer(false, why);
}

void never(const FakeRank&, const std::string&) {
    say_begun();
    pause_for_ever();
}

void stop_itself(const FakeRank&, const std::string&) {
    say_begun();
    ::kill(::getpid(), SIGSTOP);
    pause_for_ever();
}

void garbage(const FakeRank&, const std::string& bytes) {
    send_packet(kSocketFd, bytes, {}, Wait::yes);
    pause_for_ever();
}

void empty_packet(const FakeRank&, const std::string&) {
    send_packet(kSocketFd, "", {}, Wait::yes);
    pause_for_ever();
}

void close_all(const FakeRank&, const std::string&) {
    ::syscall(SYS_close_range, 0, kLifelineFd - 1, 0);
    ::syscall(SYS_close_range, kLifelineFd + 1, ~0U, 0);
    pause_for_ever();
}

void double_done(const FakeRank& rank, const std::string&) {
    rank.agent.send(Done{rank.call + 1000, true, 0, 0, 0}, {"of no call"}, -1);
    rank.agent.send(Done{rank.call, true, 0, 0, 0}, {"first"}, -1);
    rank.answer(false, "second");
}

void done_and_die(const FakeRank& rank, const std::string&) {
    rank.answer(true, "before death");
    ::kill(::getpid(), SIGKILL);
}

void done_with_buffer_and_die(const FakeRank& rank, const std::string& text) {
    const UniqueFd buffer(::memfd_create("result", MFD_CLOEXEC));
    print(buffer.get(), text);
    rank.agent.end_work();
    rank.agent.send(
        Done{rank.call, true, rank.agent.output().mark(RankOutput::MarkFor::done), 0, 0},
        {"in a buffer"}, buffer.get());
    ::kill(::getpid(), SIGKILL);
}

void long_packet(const FakeRank&, const std::string&) {
    const std::string bytes = encode(Ping{}, {std::string(kMaxPacket + 100, 'x')});
    const iovec data{const_cast<char*>(bytes.data()), bytes.size()};
    (void)!::writev(kSocketFd, &data, 1);
    pause_for_ever();
}

// Lists within lists, which a recursive reader would follow until its stack ends.
void deep_json(const FakeRank&, const std::string&) {
    constexpr std::size_t kDepth = 90'000;
    const std::string body =
        "{\"service\":" + std::string(kDepth, '[') + std::string(kDepth, ']') + "}";
    std::string bytes = encode(Hello{});
    const auto size = static_cast<std::uint32_t>(body.size());
    bytes.resize(8);
    bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
    send_packet(kSocketFd, bytes + body, {}, Wait::yes);
    pause_for_ever();
}

const std::map<std::string, Deed> kDeeds = {{"ok", ok},
                                            {"raise", raise_error},
                                            {"die-in-output", die_in_output},
                                            {"exit", exit_with},
                                            {"die-by", die_by},
                                            {"ignore-signals", ignore_signals},
                                            {"obey", obey},
                                            {"never", never},
                                            {"stop-itself", stop_itself},
                                            {"garbage", garbage},
                                            {"empty-packet", empty_packet},
                                            {"close-all", close_all},
                                            {"double-done", double_done},
                                            {"done-and-die", done_and_die},
                                            {"done-with-buffer-and-die", done_with_buffer_and_die},
                                            {"long-packet", long_packet},
                                            {"deep-json", deep_json}};

}  // namespace

void FakeRank::answer(bool ok, const std::string& text) const {
    agent.end_work();
    const auto mark = agent.output().mark(RankOutput::MarkFor::done);
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const auto raised = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    agent.send(Done{call, ok, mark, ok ? 0 : raised, 0}, {text}, -1);
}

std::string FakeRank::wait_for_interrupt() const {
    sigset_t interrupt;
    sigset_t before;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    ::sigprocmask(SIG_BLOCK, &interrupt, &before);
    while (!interrupted) ::sigsuspend(&before);
    interrupted = 0;
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    return agent.see_interrupt();
}

void do_deed(const FakeRank& rank, const std::string& name) {
    const auto colon = name.find(':');
    const std::string argument = colon == std::string::npos ? "" : name.substr(colon + 1);
    const std::string word = name.substr(0, colon);
    for (const auto* deeds : {&kDeeds, &output_deeds(), &family_deeds()})
        if (const auto deed = deeds->find(word); deed != deeds->end())
            return deed->second(rank, argument);
    rank.answer(false, "no such deed: " + name);
}

void print(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t n = ::write(fd, text.data(), text.size());
        if (n < 0 && errno != EINTR) return;
        if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
    }
}

void say_begun() {
    print(1, "begun as " + std::to_string(::getpid()) + "\n");
}

int dump_signal() {
    return SIGRTMIN + 6;
}

void install_signals(RankAgent*& agent, int dump_fd) {
    interrupted_agent = &agent;
    stack_fd = dump_fd;
    struct sigaction interrupt {};
    interrupt.sa_handler = on_interrupt;
    ::sigaction(SIGINT, &interrupt, nullptr);
    install_dump_signal(dump_signal());
    struct sigaction dump {};
    struct sigaction chained {};
    dump.sa_handler = on_dump;
    dump.sa_flags = SA_RESTART;
    ::sigaction(dump_signal(), &dump, &chained);
    after_dump = chained.sa_handler;
}

}  // namespace sgpu::test
