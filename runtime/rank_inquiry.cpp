#include "runtime/rank_inquiry.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

namespace sgpu {
namespace {

constexpr std::chrono::milliseconds kLimit{500};  // for both questions
constexpr std::size_t kMaxStack = 64UL * 1024;
constexpr std::size_t kMaxCollectives = 32UL * 1024;

int ready = -1;                   // written by a signal handler, hence plain globals
std::atomic<bool> dumped{false};  // it has come since the last look

const EventFd& ready_event() {
    static const EventFd event;
    return event;
}

void on_dump_signal(int) {
    const int saved = errno;
    dumped = true;
    const std::uint64_t one = 1;
    (void)!::write(ready, &one, sizeof one);
    errno = saved;
}

}  // namespace

struct RankInquiry::Question {
    std::atomic<bool> done{false};
    std::string text;  // written before done
};

RankInquiry::RankInquiry(Options options) : options_(std::move(options)) {
    ready = ready_event().fd();
}

int RankInquiry::ready_fd() const {
    return ready_event().fd();
}

void RankInquiry::begin(std::uint64_t token, bool stack, Clock::time_point now) {
    answer_.tokens.push_back(token);
    if (deadline_) return;
    deadline_ = now + kLimit;
    wants_stack_ = stack;
    dumped = false;
    if (!stack) return ask_python();
    (void)!::ftruncate(options_.dump_fd, 0);
    ::lseek(options_.dump_fd, 0, SEEK_SET);
    ::syscall(SYS_tgkill, ::getpid(), ::getpid(), options_.dump_signal);
}

std::optional<RankInquiry::Answer> RankInquiry::look(Clock::time_point now) {
    if (!deadline_) return std::nullopt;
    const bool late = now > *deadline_;
    ready_event().take();
    const bool told = dumped.exchange(false);
    if (wants_stack_ && !told && !late) return std::nullopt;
    if (wants_stack_) {
        answer_.stack.assign(kMaxStack, '\0');
        const ssize_t n = ::pread(options_.dump_fd, answer_.stack.data(), kMaxStack, 0);
        answer_.stack.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
        if (!told) answer_.stack.insert(0, "no answer from the main thread\n");
        wants_stack_ = false;
        if (!late) ask_python();
    }
    if (!question_) return finish();
    if (!question_->done) {
        if (late) return finish();
        return std::nullopt;
    }
    answer_.collectives = std::exchange(question_->text, "");
    question_.reset();
    return finish();
}

void RankInquiry::ask_python() {
    // One that still waits for the GIL answers this inquiry, if it gets it in time.
    if (question_ && !question_->done) return;
    question_.reset();
    if (!options_.hook) return;
    const auto question = std::make_shared<Question>();
    try {
        std::thread([question, hook = options_.hook] {
            std::string text = hook();
            if (text.size() <= kMaxCollectives) question->text = std::move(text);
            question->done = true;
            ready_event().notify();
        }).detach();
        question_ = question;
    } catch (const std::system_error&) {
        // Out of threads: the stack has to do.
    }
}

std::optional<RankInquiry::Answer> RankInquiry::finish() {
    deadline_.reset();
    return std::exchange(answer_, {});
}

void install_dump_signal(int signum) {
    struct sigaction action {};
    action.sa_handler = on_dump_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(signum, &action, nullptr);
}

}  // namespace sgpu
