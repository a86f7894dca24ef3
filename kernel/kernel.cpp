#include "kernel/kernel.h"

#include <pthread.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <exception>
#include <filesystem>
#include <system_error>
#include <xeus/xguid.hpp>

#include "kernel/signal_window.h"

namespace py = pybind11;

namespace sgpu {
namespace {

// How the server gets through xkernel's constructor, which takes a plain function to make it.
class ServerContext final : public xeus::xcontext {
public:
    explicit ServerContext(std::unique_ptr<xeus::xserver> server) : server_(std::move(server)) {}
    std::unique_ptr<xeus::xserver> take() { return std::move(server_); }

private:
    std::unique_ptr<xeus::xserver> server_;
};

std::unique_ptr<xeus::xserver> take_server(xeus::xcontext& context, const xeus::xconfiguration&,
                                           nl::json::error_handler_t) {
    return static_cast<ServerContext&>(context).take();
}

// The flag is true while this lives.
class Raised {
public:
    explicit Raised(std::atomic<bool>& flag) : flag_(flag) { flag_ = true; }
    ~Raised() { flag_ = false; }
    Raised(const Raised&) = delete;
    Raised& operator=(const Raised&) = delete;

private:
    std::atomic<bool>& flag_;
};

std::string new_session() {
    const auto guid = xeus::new_xguid();
    return {guid.begin(), guid.end()};
}

// Not kill(0, …): with it this process would have two interrupts of one Stop, and code that cleans
// up after the first would be hit by the second.
void interrupt_rest_of_group() {
    const pid_t self = ::getpid();
    std::error_code error;
    for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end;
         at.increment(error)) {
        const std::string name = at->path().filename();
        pid_t pid = 0;
        const auto parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
        if (parsed.ec != std::errc{} || parsed.ptr != name.data() + name.size()) continue;
        if (pid != self && ::getpgid(pid) == self) ::kill(pid, SIGINT);
    }
}

// Called first of all: the contexts that are made next have threads.
std::string start_of_process() {
    block_interrupts();
    return new_session();
}

}  // namespace

Kernel::Kernel(const std::string& connection_file, const std::string& version,
               const std::string& python_version)
    : session_(start_of_process()),
      info_(kernel_info(version, python_version)),
      file_(ConnectionFile::load(connection_file)),
      signer_(file_.signature_scheme, file_.key),
      iopub_(control_context_, file_, signer_, session_),
      main_(pthread_self()),
      output_([this](Stream stream, const std::string& text, const nl::json& parent) {
          iopub_.publish_text(stream, text, parent);
      }),
      control_(control_context_, file_, signer_, iopub_, gate_, interrupts_,
               {.interrupt = [this] { interrupt(); },
                .wake_main = [this] { wake(); },
                .kernel_info = [this] { return info_; }}) {
    front_.emplace(py::none());
    auto server = std::make_unique<Server>(shell_context_, file_, signer_, iopub_, server_hooks());
    server_ = server.get();
    core_ = std::make_unique<xeus::xkernel>(
        xeus::load_configuration(connection_file), xeus::get_user_name(),
        std::make_unique<ServerContext>(std::move(server)),
        std::make_unique<Interpreter>(
            *front_, [this]() -> const Message& { return server_->request(); }, info_),
        take_server, std::make_unique<History>(*front_), nullptr, xeus::make_null_debugger,
        nl::json::object(), nl::json::error_handler_t::replace);
    control_.start();
}

Server::Hooks Kernel::server_hooks() {
    return {.idle = [this] { idle(); },
            .stopping = [this] { return gate_.requested(); },
            .stop = [this](bool restart) { stop(restart); },
            .before_reply = [this] { output_.flush(); },
            .comm = [this](const Message& message) { return front_->comm(message); }};
}

bool Kernel::run(py::object front) {
    front_->object() = std::move(front);
    const py::gil_scoped_release no_gil;
    core_->start();
    gate_.leaving();
    return gate_.restart();
}

void Kernel::idle() {
    if (!ready_) {
        const AllSignalsBlocked blocked;
        server_->wait({}, -1, blocked.old_mask());
    }
    const py::gil_scoped_acquire gil;
    try {
        front_->object().attr("idle")();
    } catch (py::error_already_set& error) {
        error.discard_as_unraisable("the kernel's idle loop");
    }
}

bool Kernel::wait(std::optional<std::chrono::milliseconds> timeout, int other_fd,
                  const sigset_t& let_in) {
    return server_->wait(timeout, other_fd, let_in) || gate_.requested();
}

void Kernel::stop(bool restart) {
    gate_.request(restart);
    wake();
}

// The whole process group, as a terminal does it: children of the cell are to stop too. A kernel
// that does not lead its group leaves the group alone.
void Kernel::interrupt() {
    if (!in_cell_) return;
    if (::getpgrp() == ::getpid()) interrupt_rest_of_group();
    ::pthread_kill(main_, SIGINT);
    interrupts_.tell();  // a handler of the user's may have taken the watch's place
}

py::object Kernel::call_interruptible(const py::function& function) {
    const SignalWindow window(interrupts_);
    const Raised running(in_cell_);
    // Asked to end before the window was open: the cell must not begin.
    if (gate_.requested()) ::pthread_kill(main_, SIGINT);
    return function();
}

std::optional<std::string> Kernel::ask(const std::string& prompt, bool password) {
    output_.flush();
    return server_->ask(prompt, password, [] {
        const py::gil_scoped_acquire gil;
        return PyErr_CheckSignals() != 0;
    });
}

void Kernel::publish(const std::string& type, nl::json content, nl::json parent, nl::json metadata,
                     xeus::buffer_sequence buffers) {
    if (type != "stream") output_.flush();
    iopub_.publish(type, std::move(parent), std::move(content), std::move(metadata),
                   std::move(buffers));
}

void Kernel::publish_text(Stream stream, std::string_view text, const nl::json& parent) {
    iopub_.publish_text(stream, text, parent);
}

void Kernel::finish() {
    try {
        output_.flush();
        server_->close();
        shell_context_.close();
    } catch (const std::exception&) {
        // The process ends all the same.
    }
    gate_.request(false);
    gate_.done();
    control_.finish();
    while (true) ::pause();
}

}  // namespace sgpu
