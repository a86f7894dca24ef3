// bindings_rank.cpp: what Python sees of rank_agent.h, inside ranks and services.
#include <fcntl.h>
#include <linux/close_range.h>
#include <pybind11/stl.h>
#include <sys/syscall.h>

#include "runtime/bindings.h"
#include "runtime/bindings_wait.h"
#include "runtime/rank_agent.h"
#include "runtime/rank_register.h"

namespace py = pybind11;
using namespace py::literals;

namespace sgpu {
namespace {

constexpr int kSocketFd = 3;

int checked(int result, const char* what) {
    if (result < 0) throw_os_error(errno, what);
    return result;
}

RankRegister open_register(int fd) {
    auto opened = RankRegister::open(fd);
    if (!opened) throw_os_error(opened.error().os_errno, "register of ranks");
    return std::move(opened.value());
}

// Turns the process into a rank: own session, no input, output into the pipes, nothing else
// inherited but the socket, which becomes descriptor 3. None as `ranks`: own group only.
void enter_rank(RankRegister* ranks, int out, int err, int socket) {
    lead_session(ranks ? std::move(*ranks) : RankRegister());
    UniqueFd null(checked(::open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null"));
    checked(::dup2(null.get(), 0), "stdin of a rank");
    null.reset();  // its number may be the socket's
    checked(::dup2(out, 1), "stdout of a rank");
    checked(::dup2(err, 2), "stderr of a rank");
    if (socket == kSocketFd)
        ::fcntl(socket, F_SETFD, FD_CLOEXEC);
    else
        checked(::dup3(socket, kSocketFd, O_CLOEXEC), "socket of a rank");
    ::syscall(SYS_close_range, kSocketFd + 1, ~0U, 0);
}

// The next request, or None when the rank is to end. KeyboardInterrupt is possible.
py::object next_request(RankAgent& agent) {
    for (;;) {
        if (auto m = agent.take()) {
            const auto* execute = std::get_if<Execute>(&m->body);
            if (!execute) return py::none();
            {
                const py::gil_scoped_release unlocked;
                agent.settle();
            }
            py::list frames;
            for (const auto& f : m->frames) frames.append(py::bytes(f));
            return py::make_tuple(execute->call, execute->rank, execute->world, execute->mode,
                                  frames, m->buffer.release());
        }
        wait_readable_or_signal(agent.request_fd(), std::nullopt);
    }
}

// Calls a function of Python in whatever thread it is called in.
std::function<std::string()> hook_of(const py::function& function) {
    // The agent lives as long as its process: what its thread calls is never let go of.
    const py::handle kept = py::object(function).release();
    return [kept]() -> std::string {
        const py::gil_scoped_acquire gil;
        try {
            return kept().cast<std::string>();
        } catch (const std::exception&) {
            // What Python raises or returns there is no reason to end a rank.
            return "";
        }
    };
}

bool send_done(RankAgent& agent, CallId call, bool ok, const std::vector<py::bytes>& frames, int fd,
               std::uint32_t mark, std::int64_t raised_ns, std::map<std::string, double> startup) {
    const std::vector<std::string> copies(frames.begin(), frames.end());
    const py::gil_scoped_release release;
    return agent.send(Done{call, ok, mark, raised_ns, agent.began_ns(), std::move(startup)}, copies,
                      fd);
}

bool send_display(RankAgent& agent, CallId call, std::uint32_t mark, std::string type,
                  const py::bytes& content, int fd) {
    std::vector<std::string> frames;
    if (fd < 0) frames.emplace_back(content);
    const py::gil_scoped_release release;
    return agent.send(Display{call, mark, std::move(type)}, frames, fd);
}

}  // namespace

void bind_rank(py::module_& m) {
    py::class_<RankRegister>(m, "RankRegister").def(py::init(&open_register), "fd"_a);
    m.def("enter_rank", &enter_rank, "register"_a.none(true), "out"_a, "err"_a, "socket"_a);
    m.def("install_dump_signal", &install_dump_signal);
    const auto unlocked = py::call_guard<py::gil_scoped_release>();
    py::class_<RankAgent>(m, "RankAgent")
        .def(py::init([](std::string key, int socket, pid_t guard, int dump_signal, int dump_fd,
                         const py::function& collectives, std::string net, std::string service) {
                 return std::make_unique<RankAgent>(RankAgent::Options{
                     std::move(key), UniqueFd(socket), guard,
                     RankInquiry::Options{dump_signal, dump_fd, hook_of(collectives)},
                     std::move(net), std::move(service)});
             }),
             "key"_a, "socket"_a, "guard"_a, "dump_signal"_a, "dump_fd"_a, "collectives"_a, "net"_a,
             "service"_a = "null")
        .def("next_request", &next_request)
        .def("begin_work", &RankAgent::begin_work, "call"_a, "world"_a, unlocked)
        .def("end_work", &RankAgent::end_work, unlocked)
        .def("see_interrupt", &RankAgent::see_interrupt)
        .def("unwanted", &RankAgent::unwanted, "call"_a, unlocked)
        .def_property_readonly("busy", &RankAgent::busy)
        .def_property_readonly("cut_fd", &RankAgent::cut_fd)
        .def(
            "mark_display",
            [](RankAgent& a) { return a.output().mark(RankOutput::MarkFor::display); }, unlocked)
        .def(
            "mark_done", [](RankAgent& a) { return a.output().mark(RankOutput::MarkFor::done); },
            unlocked)
        .def("done", &send_done, "call"_a, "ok"_a, "frames"_a, "fd"_a, "mark"_a, "raised_ns"_a,
             "startup"_a)
        .def("display", &send_display, "call"_a, "mark"_a, "type"_a, "content"_a, "fd"_a);
}

}  // namespace sgpu
