#include "runtime/rank_agent.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>

#include "runtime/collective_sockets.h"
#include "runtime/packet_socket.h"

namespace sgpu {
namespace {

constexpr int kFrequentMs = 5;  // looks for the guard, and for the end of an inquiry
// poll goes on with a socket that user code has closed: it has to be asked anew.
constexpr int kSocketCheckMs = 1000;

std::string read_text(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::array<char, 512> text{};
    const ssize_t n = fd ? ::read(fd.get(), text.data(), text.size()) : 0;
    return {text.data(), n > 0 ? static_cast<std::size_t>(n) : 0};
}

// The state letter and the wait channel of the main thread, for a rank that does not answer.
std::string main_thread_state(pid_t pid) {
    const std::string base = "/proc/self/task/" + std::to_string(pid) + "/";
    const std::string stat = read_text(base + "stat");
    const auto name_end = stat.rfind(')');
    const std::string state = name_end == std::string::npos ? "?" : stat.substr(name_end + 2, 1);
    return state + " " + read_text(base + "wchan");
}

const char* literal(const std::string& reason) {
    if (reason == "peer") return "peer";
    return reason == "deadline" ? "deadline" : "stop";
}

}  // namespace

RankAgent::RankAgent(Options options)
    : options_(std::move(options)),
      pid_(::getpid()),
      output_(options_.key),
      inquiry_(options_.inquiry) {
    // C stdio is fully buffered on a pipe; by lines it is live.
    std::setvbuf(stdout, nullptr, _IOLBF, 0);

    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    thread_ = std::thread([this] { serve(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RankAgent::~RankAgent() {
    if (::getpid() != pid_) {
        thread_.detach();
        return;
    }
    stop_ = true;
    stop_ready_.notify();
    thread_.join();
}

std::optional<Message> RankAgent::take() {
    const std::lock_guard lock(mutex_);
    requests_ready_.take();
    if (requests_.empty()) return std::nullopt;
    Message first = std::move(requests_.front());
    requests_.pop_front();
    if (!requests_.empty()) requests_ready_.notify();
    if (const auto* warm = std::get_if<Warm>(&first.body)) {
        warmer_.want(warm->device, warm->narrowed ? std::optional(warm->visible) : std::nullopt);
        return std::nullopt;
    }
    return first;
}

bool RankAgent::send(const Body& body, const std::vector<std::string>& frames, int buffer) {
    std::vector<int> fds;
    if (buffer >= 0) fds.push_back(buffer);
    return send_packet(options_.socket.get(), encode(body, frames), fds, Wait::yes) == Sent::yes;
}

void RankAgent::begin_work(CallId call, int world) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    began_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    const std::lock_guard lock(mutex_);
    reason_ = nullptr;
    seen_ = false;
    cuts_ = 0;
    world_ = world;
    output_.begin_call(call);
    begun_ = busy_ = call;
    if (early_.call != call) return;
    reason_ = literal(early_.reason);
    ::syscall(SYS_tgkill, pid_, pid_, SIGINT);
}

void RankAgent::end_work() {
    const std::lock_guard lock(mutex_);
    busy_ = 0;
}

bool RankAgent::unwanted(CallId call) {
    const std::lock_guard lock(mutex_);
    return early_.call == call;
}

const char* RankAgent::see_interrupt() {
    // No lock: this runs in a signal handler of the main thread, which may hold it.
    const char* reason = reason_;
    if (busy_ == 0 || !reason) return "";
    seen_ = true;
    return reason;
}

void RankAgent::serve() {
    ::prctl(PR_SET_NAME, "sgpu-agent");
    const auto service = nlohmann::json::parse(options_.service, nullptr, false);
    send(Hello{options_.key, pid_, service.is_discarded() ? nullptr : service}, {}, -1);
    while (!stop_) {
        if (!guarded_) follow_guard();
        pollfd items[] = {{options_.socket.get(), POLLIN, 0},
                          {stop_ready_.fd(), POLLIN, 0},
                          {inquiry_.ready_fd(), POLLIN, 0},
                          {output_.timer_fd(), POLLIN, 0}};
        ::poll(items, 4, patience());
        if (stop_) return;
        // Nobody has asked for a stop: what is there now is not ours.
        if (items[1].revents || (items[0].revents & POLLNVAL)) end_without_channel();
        if (items[3].revents & POLLIN) output_.flush_due();
        while (auto packet = recv_packet(options_.socket.get())) {
            auto message = decode(packet->bytes);
            if (!message) end_without_channel();
            if (!packet->fds.empty()) message.value().buffer = std::move(packet->fds[0]);
            handle(std::move(message.value()));
        }
        answer_if_known();
    }
}

// Milliseconds until something is to be looked after, whether or not a message comes.
int RankAgent::patience() {
    if (seen_ || busy_ == 0) nudge_.end();
    const int nudge = nudge_.look(Nudge::Clock::now());
    const int rest = !guarded_ || inquiry_.running() ? kFrequentMs : kSocketCheckMs;
    return nudge < 0 ? rest : std::min(nudge, rest);
}

// User code has closed what is ours, or has put something else in its place; or the pool is gone.
// No request can come and no answer can go any more.
void RankAgent::end_without_channel() const {
    std::signal(kChannelLost, SIG_DFL);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, kChannelLost);
    pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
    ::syscall(SYS_tgkill, pid_, ::gettid(), kChannelLost);
    ::kill(pid_, SIGKILL);
}

void RankAgent::give_to_main(Message message) {
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(message));
    requests_ready_.notify();
}

void RankAgent::handle(Message message) {
    if (const auto* ping = std::get_if<Ping>(&message.body)) {
        send(Pong{ping->token, busy_, main_thread_state(pid_)}, {}, -1);
    } else if (const auto* dump = std::get_if<Dump>(&message.body)) {
        inquiry_.begin(dump->token, dump->stack, RankInquiry::Clock::now());
    } else if (const auto* wanted = std::get_if<Interrupt>(&message.body)) {
        // A rank that is asked where it is and then interrupted says where it was, not where the
        // interrupt has brought it.
        if (inquiry_.running())
            held_.push_back(*wanted);
        else
            interrupt(*wanted);
    } else {
        give_to_main(std::move(message));
    }
}

void RankAgent::interrupt(const Interrupt& wanted) {
    const std::lock_guard lock(mutex_);
    if (wanted.call > begun_) early_ = wanted;
    if (busy_ == 0 || busy_ != wanted.call) return;
    if (wanted.cut == "stuck" && seen_) return;
    if (!reason_) reason_ = literal(wanted.reason);
    // The signal first: what is cut returns to Python with an error, or as if it had succeeded, and
    // the interrupt must be pending by then.
    ::syscall(SYS_tgkill, pid_, pid_, SIGINT);
    nudge_.begin(Nudge::Clock::now());
    if (wanted.cut == "no") return;
    cut_ready_.notify();
    shut_collective_sockets(options_.net, cuts_++ > 0, world_);
}

void RankAgent::answer_if_known() {
    const auto answer = inquiry_.look(RankInquiry::Clock::now());
    if (!answer) return;
    for (const auto token : answer->tokens)
        send(Stack{token, answer->stack, main_thread_state(pid_), answer->collectives}, {}, -1);
    for (const Interrupt& wanted : std::exchange(held_, {})) interrupt(wanted);
}

// The parent is the fork server's helper first and the guard after it; the death signal belongs to
// the parent of the moment, so it can only be asked for once the guard has taken over.
void RankAgent::follow_guard() {
    if (::getppid() != options_.guard) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != options_.guard) ::kill(pid_, SIGKILL);
    guarded_ = true;
}

}  // namespace sgpu
