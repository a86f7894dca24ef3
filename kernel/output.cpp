#include "kernel/output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "kernel/signal_window.h"

namespace sgpu {
namespace {

constexpr int kPipeSize = 1 << 20;

// Bytes at the end of `text` that begin a UTF-8 character and do not complete it.
std::size_t incomplete_tail(std::string_view text) {
    for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
        const auto byte = static_cast<unsigned char>(text[text.size() - back]);
        if ((byte & 0xC0U) == 0x80U) continue;  // a continuation: look further back
        const std::size_t length = byte >= 0xF0U ? 4 : byte >= 0xE0U ? 3 : byte >= 0xC0U ? 2 : 1;
        return length > back ? back : 0;
    }
    return 0;
}

void fail(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
}

// Makes `fd` write into a new pipe. Returns the reading end, and what `fd` was before.
std::pair<UniqueFd, UniqueFd> redirect(int fd) {
    UniqueFd original(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (!original) original.reset(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail("pipe for the output of cells");
    UniqueFd reading(ends[0]);
    const UniqueFd writing(ends[1]);
    ::fcntl(reading.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(reading.get(), F_SETPIPE_SZ, kPipeSize);
    if (::dup2(writing.get(), fd) < 0) fail("redirecting the output of cells");
    return {std::move(reading), std::move(original)};
}

}  // namespace

Output::Output(Publish publish)
    : publish_(std::move(publish)),
      current_(std::make_shared<nlohmann::json>(nlohmann::json::object())) {
    for (const int index : {0, 1}) {
        auto [reading, original] = redirect(index + 1);
        pipes_.at(static_cast<std::size_t>(index)) = std::move(reading);
        originals_.at(static_cast<std::size_t>(index)) = std::move(original);
    }
    // Into a pipe C's stdio would gather 4 KB before anything is seen.
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
    const AllSignalsBlocked blocked;
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

Output::~Output() {
    thread_.request_stop();
    wake_.notify();
    thread_.join();
    ::dup2(originals_[0].get(), STDOUT_FILENO);
    ::dup2(originals_[1].get(), STDERR_FILENO);
}

bool Output::write(Stream stream, std::string_view text, const Parent& parent) {
    read_pipes();  // what a child wrote before this text comes before it
    add(stream, text, parent);
    const std::lock_guard lock(gathering_);
    return size_ >= kEnough;
}

void Output::begin_cell(const Parent& parent) {
    read_pipes();
    const std::lock_guard lock(reading_);
    current_ = parent;
}

void Output::flush() {
    std::fflush(stdout);
    read_pipes();
    publish_gathered();
}

void Output::add(Stream stream, std::string_view text, const Parent& parent) {
    bool first = false;
    {
        const std::lock_guard lock(gathering_);
        if (pieces_.empty() || pieces_.back().stream != stream || pieces_.back().parent != parent) {
            pieces_.push_back({stream, parent, {}});
        }
        pieces_.back().text += text;
        size_ += text.size();
        first = !due_;
        if (first) due_ = std::chrono::steady_clock::now() + kDelay;
    }
    if (first) wake_.notify();
}

void Output::read_pipes() {
    const std::lock_guard lock(reading_);
    read_pipe(Stream::out);
    read_pipe(Stream::err);
}

// Reads at most what the pipe held at the call, about: a flood must not hold the caller for ever.
void Output::read_pipe(Stream stream) {
    const auto index = static_cast<std::size_t>(stream);
    std::array<char, kEnough> bytes;  // NOLINT: read() fills it
    for (int total = 0; total < kPipeSize;) {
        const ssize_t got = ::read(pipes_.at(index).get(), bytes.data(), bytes.size());
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return;
        total += static_cast<int>(got);
        std::string& text = unfinished_.at(index);
        text.append(bytes.data(), static_cast<std::size_t>(got));
        std::string tail = text.substr(text.size() - incomplete_tail(text));
        text.resize(text.size() - tail.size());
        if (!text.empty()) add(stream, text, current_);
        text = std::move(tail);
    }
}

void Output::publish_gathered() {
    const std::lock_guard order(publishing_);
    std::vector<Piece> pieces;
    {
        const std::lock_guard lock(gathering_);
        pieces.swap(pieces_);
        size_ = 0;
        due_.reset();
    }
    for (const Piece& piece : pieces) publish_(piece.stream, piece.text, *piece.parent);
}

// Milliseconds for poll: -1 if nothing waits.
int Output::until_due() {
    const std::lock_guard lock(gathering_);
    if (!due_) return -1;
    if (size_ >= kEnough) return 0;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(*due_ - std::chrono::steady_clock::now());
    return std::max(0, static_cast<int>(left.count()));
}

void Output::run(const std::stop_token& stop) {
    std::array<pollfd, 3> fds = {
        {{pipes_[0].get(), POLLIN, 0}, {pipes_[1].get(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}}};
    while (!stop.stop_requested()) {
        ::poll(fds.data(), fds.size(), until_due());
        wake_.take();
        read_pipes();
        if (until_due() == 0) publish_gathered();
    }
}

}  // namespace sgpu
