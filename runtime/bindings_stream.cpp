// bindings_stream.cpp: what Python sees of rank_output.h: the write() of sys.stdout in a rank.
#include <cstring>

#include "runtime/bindings.h"
#include "runtime/rank_agent.h"

namespace py = pybind11;
using namespace py::literals;

namespace sgpu {
namespace {

// What one stream's write() needs. As sys.stdout, it lives as long as the process.
struct Writer {
    py::object agent;  // owns the output
    RankOutput& output;
    Stream stream;
    py::object slow;   // write() for what is no plain text
    py::object owner;  // gives the call that the calling thread belongs to
};

constexpr std::int64_t kNotAsked = -1;
thread_local std::int64_t thread_owner = kNotAsked;

// Until all is in the pipes. False with a Python error set: a signal handler raised, or the
// descriptor cannot be written.
bool flush(RankOutput& output) {
    for (;;) {
        PyThreadState* const python = PyEval_SaveThread();
        const auto flushed = output.flush();
        const int number = errno;
        PyEval_RestoreThread(python);
        if (flushed == RankOutput::Flushed::done) return true;
        if (flushed == RankOutput::Flushed::failed) {
            errno = number;
            PyErr_SetFromErrno(PyExc_OSError);
            return false;
        }
        if (PyErr_CheckSignals() != 0) return false;
    }
}

bool know_owner(const Writer& writer) {
    PyObject* const answer = PyObject_CallNoArgs(writer.owner.ptr());
    if (!answer) return false;
    thread_owner = PyLong_AsLongLong(answer);
    Py_DECREF(answer);
    return !PyErr_Occurred();
}

bool write_bytes(const Writer& writer, std::string_view bytes) {
    if (thread_owner == kNotAsked && !know_owner(writer)) return false;
    const auto owner = static_cast<CallId>(thread_owner);
    return !writer.output.add(writer.stream, bytes, owner) || flush(writer.output);
}

// Called for each print(), so it goes past pybind11.
PyObject* write(PyObject* self, PyObject* text) {
    const auto& writer = *static_cast<Writer*>(PyCapsule_GetPointer(self, nullptr));
    if (!PyUnicode_Check(text)) return PyObject_CallOneArg(writer.slow.ptr(), text);
    Py_ssize_t size = 0;
    const char* const bytes = PyUnicode_AsUTF8AndSize(text, &size);
    if (!bytes) {  // lone surrogates
        PyErr_Clear();
        return PyObject_CallOneArg(writer.slow.ptr(), text);
    }
    if (!write_bytes(writer, {bytes, static_cast<std::size_t>(size)})) return nullptr;
    return PyLong_FromSsize_t(PyUnicode_GET_LENGTH(text));
}

PyMethodDef write_definition = {"write", &write, METH_O,
                                "Writes text and returns its number of characters."};

Writer make_writer(py::object agent, int fd, py::object slow, py::object owner) {
    RankOutput& output = agent.cast<RankAgent&>().output();
    return {std::move(agent), output, fd == 1 ? Stream::out : Stream::err, std::move(slow),
            std::move(owner)};
}

py::object stream_writer(py::object agent, int fd, py::object slow, py::object owner) {
    auto* const writer =
        new Writer(make_writer(std::move(agent), fd, std::move(slow), std::move(owner)));
    const auto self = py::reinterpret_steal<py::object>(PyCapsule_New(writer, nullptr, nullptr));
    return py::reinterpret_steal<py::object>(
        PyCFunction_NewEx(&write_definition, self.ptr(), nullptr));
}

void write_raw(py::object agent, int fd, const py::bytes& bytes, py::object owner) {
    const Writer writer = make_writer(std::move(agent), fd, py::none(), std::move(owner));
    if (!write_bytes(writer, bytes)) throw py::error_already_set();
}

void flush_output() {
    RankOutput* const output = RankOutput::current();
    if (output && !flush(*output)) throw py::error_already_set();
}

// What is gathered comes before what a new process prints, and before a signal that may be the end.
int before_processes(const char* event, PyObject* /*arguments*/, void* /*unused*/) {
    constexpr const char* kEvents[] = {"os.fork",        "os.forkpty", "os.system",
                                       "os.posix_spawn", "os.exec",    "subprocess.Popen",
                                       "pty.spawn",      "os.kill",    "os.killpg"};
    if (event[0] != 'o' && event[0] != 's' && event[0] != 'p') return 0;
    for (const char* const each : kEvents) {
        if (std::strcmp(each, event) != 0) continue;
        RankOutput* const output = RankOutput::current();
        return !output || flush(*output) ? 0 : -1;
    }
    return 0;
}

void keep_order_with_processes() {
    if (PySys_AddAuditHook(&before_processes, nullptr) != 0) throw py::error_already_set();
}

}  // namespace

void bind_stream(py::module_& m) {
    m.def("stream_writer", &stream_writer, "agent"_a, "fd"_a, "slow"_a, "owner"_a);
    m.def("write_raw", &write_raw, "agent"_a, "fd"_a, "data"_a, "owner"_a);
    m.def("flush_output", &flush_output);
    m.def("keep_order_with_processes", &keep_order_with_processes);
}

}  // namespace sgpu
