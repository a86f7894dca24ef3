#include "tests/support/pool_test.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <csignal>
#include <filesystem>

#include "runtime/process_tree.h"

namespace sgpu::test {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kLook{2};  // between two looks at what has no descriptor

}  // namespace

bool readable(int fd) {
    pollfd item{fd, POLLIN, 0};
    return ::poll(&item, 1, static_cast<int>(std::chrono::milliseconds(kBound).count())) == 1;
}

std::size_t open_descriptors() {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        (void)entry;
        ++count;
    }
    return count;
}

bool send_signal(pid_t pid, int number) {
    return pid > 1 && ::kill(pid, number) == 0;
}

bool exists(const std::string& path) {
    return ::access(path.c_str(), F_OK) == 0;
}

CallLimits short_limits() {
    return {.failure_grace = 200ms,
            .stuck = 50ms,
            .stop_grace = 200ms,
            .kill_grace = 200ms,
            .give_up = 20s,
            .timeout = std::nullopt};
}

TempFolder::TempFolder() : path_(std::filesystem::temp_directory_path() / "sgpu-test-XXXXXX") {
    if (!::mkdtemp(path_.data())) throw std::runtime_error("no folder for the test: " + path_);
}

TempFolder::~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

std::size_t TempFolder::count() const {
    const std::filesystem::directory_iterator all(path_);
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

Lifeline::Lifeline(std::string path) : path_(std::move(path)) {
    if (::mkfifo(path_.c_str(), 0600) != 0) throw std::runtime_error("no FIFO: " + path_);
    fd_.reset(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
}

bool Lifeline::all_gone() const {
    // A FIFO that nobody has ever opened for writing has no end to see.
    UniqueFd writer(::open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    writer.reset();
    return readable(fd_.get());
}

Watch::Watch(std::vector<pid_t> pids) {
    for (const pid_t pid : pids)
        pidfds_.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool Watch::all_gone() const {
    bool gone = true;
    for (const UniqueFd& fd : pidfds_) gone = gone && (!fd || readable(fd.get()));
    return gone;
}

PoolTest::PoolTest() : descriptors_before_(open_descriptors()) {}

PoolOptions PoolTest::options(const Words& fork_server) const {
    PoolOptions options{SGPU_GUARD, {SGPU_FAKE_FORK_SERVER, lifeline_.path()}};
    options.fork_server.insert(options.fork_server.end(), fork_server.begin(), fork_server.end());
    return options;
}

void PoolTest::start(const Words& fork_server) {
    auto started = RankPool::start(options(fork_server));
    ASSERT_TRUE(started) << started.error().message;
    pool_ = std::move(started.value());
}

void PoolTest::end() {
    if (!pool_) return;
    const std::string folder = pool_->folder();
    const Watch guards({pool_->pids().guard, keeper()});
    pool_.reset();
    EXPECT_TRUE(guards.all_gone()) << "half of the guard is left";
    EXPECT_TRUE(lifeline_.all_gone()) << "a process is left";
    EXPECT_FALSE(exists(folder)) << folder;
}

void PoolTest::TearDown() {
    end();
    EXPECT_EQ(open_descriptors(), descriptors_before_) << "descriptors leaked";
}

std::shared_ptr<CallTicket> PoolTest::begin(const std::vector<ChildId>& children,
                                            const std::string& deeds, CallLimits limits) {
    CallRequest request;
    for (std::size_t i = 0; i < children.size(); ++i)
        request.members.push_back({static_cast<int>(i), children[i]});
    request.world = static_cast<int>(children.size());
    request.mode = "function";
    request.frames = {deeds};
    request.limits = limits;
    request.output.world = request.world;
    return pool_->begin_call(std::move(request));
}

std::vector<RankOutcome> PoolTest::finish(const std::shared_ptr<CallTicket>& ticket) {
    EXPECT_TRUE(readable(ticket->done_fd())) << "the call does not end";
    last_cause_ = ticket->view().cause;
    return ticket->take_outcomes();
}

std::vector<RankOutcome> PoolTest::call(int ranks, const std::string& deeds, CallLimits limits) {
    last_ = pool_->take(ranks);
    auto outcomes = finish(begin(last_, deeds, limits));
    EXPECT_EQ(outcomes.size(), static_cast<std::size_t>(ranks));
    outcomes.resize(static_cast<std::size_t>(ranks));
    return outcomes;
}

std::vector<OutputEvent> PoolTest::events() {
    return pool_->take_output();
}

std::string PoolTest::text() {
    std::string all;
    for (const OutputEvent& event : events()) all += event.ranks.empty() ? event.content : "";
    return all;
}

void PoolTest::wait_for_begun(int ranks) {
    std::string begun;
    int count = 0;
    while (count < ranks) {
        ASSERT_TRUE(readable(pool_->output_fd())) << count << " of " << ranks << " have begun";
        begun += text();
        count = 0;
        for (std::size_t at = 0; (at = begun.find("begun", at)) != std::string::npos; ++at) ++count;
    }
}

pid_t PoolTest::pid_of(ChildId child) {
    const auto limit = std::chrono::steady_clock::now() + kBound;
    while (std::chrono::steady_clock::now() < limit) {
        const auto pids = pool_->pids().children;
        if (const auto found = pids.find(child); found != pids.end()) return found->second;
        ::poll(nullptr, 0, static_cast<int>(kLook.count()));
    }
    ADD_FAILURE() << "child " << child << " was not forked";
    return 0;
}

pid_t PoolTest::keeper() const {
    const auto below = descendants(pool_->pids().guard);
    return below.empty() ? 0 : below.front().pid;
}

}  // namespace sgpu::test
