// module.cpp: the extension module serverless_gpu._kernel. Its Python view is _kernel.pyi.
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "kernel/json_convert.h"
#include "kernel/kernel.h"
#include "kernel/signal_window.h"

namespace py = pybind11;
using sgpu::Kernel;
using sgpu::Parent;
using sgpu::Stream;

namespace {

// A header as Python holds it: converted once for each cell.
struct ParentHandle {
    Parent header;
};

xeus::buffer_sequence to_buffers(const py::iterable& objects) {
    xeus::buffer_sequence buffers;
    for (const py::handle object : objects) {
        const py::bytes bytes(
            py::memoryview(py::reinterpret_borrow<py::object>(object)).attr("tobytes")());
        const std::string_view view = bytes;
        buffers.emplace_back(view.begin(), view.end());
    }
    return buffers;
}

std::string_view utf8(const py::str& text, py::object& keeper) {
    Py_ssize_t size = 0;
    if (const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size)) {
        return {data, static_cast<std::size_t>(size)};
    }
    PyErr_Clear();  // lone surrogates: shown as \udc80, as Python's stderr does
    keeper = text.attr("encode")("utf-8", "backslashreplace");
    return py::reinterpret_borrow<py::bytes>(keeper);
}

void write_text(Kernel& kernel, int stream, const py::str& text, const ParentHandle& parent) {
    py::object keeper;
    const auto which = stream == 1 ? Stream::out : Stream::err;
    if (!kernel.output().write(which, utf8(text, keeper), parent.header)) return;
    const py::gil_scoped_release no_gil;
    kernel.output().flush();
}

nlohmann::json to_header(const py::object& parent) {
    if (py::isinstance<ParentHandle>(parent)) return *parent.cast<const ParentHandle&>().header;
    return parent.is_none() ? nlohmann::json::object() : sgpu::to_json(parent);
}

void publish(Kernel& kernel, const std::string& type, const py::object& content,
             const py::object& parent, const py::object& metadata, const py::iterable& buffers) {
    nlohmann::json header = to_header(parent);
    nlohmann::json body = sgpu::to_json(content);
    nlohmann::json meta = metadata.is_none() ? nlohmann::json::object() : sgpu::to_json(metadata);
    xeus::buffer_sequence binary = to_buffers(buffers);
    const py::gil_scoped_release no_gil;
    kernel.publish(type, std::move(body), std::move(header), std::move(meta), std::move(binary));
}

void publish_text(Kernel& kernel, int stream, const py::bytes& text, const py::object& parent) {
    const nlohmann::json header = to_header(parent);
    const std::string_view bytes = text;
    const py::gil_scoped_release no_gil;
    kernel.publish_text(stream == 1 ? Stream::out : Stream::err, bytes, header);
}

std::string ask(Kernel& kernel, const std::string& prompt, bool password) {
    std::optional<std::string> answer;
    {
        const py::gil_scoped_release no_gil;
        answer = kernel.ask(prompt, password);
    }
    if (!answer) throw py::error_already_set();
    return *answer;
}

bool wait_for(Kernel& kernel, std::optional<double> timeout, int other_fd) {
    std::optional<std::chrono::milliseconds> rounded;
    if (timeout) {
        rounded = std::chrono::ceil<std::chrono::milliseconds>(
            std::chrono::duration<double>(std::min(*timeout, 3600.0)));
    }
    const sgpu::AllSignalsBlocked blocked;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    const py::gil_scoped_release no_gil;
    return kernel.wait(rounded, other_fd, blocked.old_mask());
}

}  // namespace

PYBIND11_MODULE(_kernel, module) {
    module.doc() = "The sockets and threads of the Serverless GPU kernel";
    py::class_<ParentHandle>(module, "Parent").def(py::init([](const py::dict& header) {
        return ParentHandle{std::make_shared<const nlohmann::json>(sgpu::to_json(header))};
    }));
    using no_gil = py::call_guard<py::gil_scoped_release>;
    py::class_<Kernel>(module, "Kernel")
        .def(py::init<const std::string&, const std::string&, const std::string&>(),
             py::arg("connection_file"), py::arg("version"), py::arg("python_version"))
        .def("run", &Kernel::run, py::arg("front"))
        .def("set_ready", &Kernel::set_ready)
        .def("wait", &wait_for, py::arg("timeout"), py::arg("other_fd"))
        .def("wake", &Kernel::wake)
        .def("stop", &Kernel::stop, py::arg("restart"))
        .def_property_readonly("stopping", &Kernel::stopping)
        .def("call_interruptible", &Kernel::call_interruptible, py::arg("function"))
        .def("ask", &ask, py::arg("prompt"), py::arg("password"))
        .def("publish", &publish, py::arg("msg_type"), py::arg("content"), py::arg("parent"),
             py::arg("metadata") = py::none(), py::arg("buffers") = py::tuple())
        .def("publish_text", &publish_text, py::arg("stream"), py::arg("text"), py::arg("parent"))
        .def("write", &write_text, py::arg("stream"), py::arg("text"), py::arg("parent"))
        .def(
            "begin_cell",
            [](Kernel& kernel, const ParentHandle& parent) {
                kernel.output().begin_cell(parent.header);
            },
            py::arg("parent"))
        .def(
            "flush", [](Kernel& kernel) { kernel.output().flush(); }, no_gil())
        .def_property_readonly("session", &Kernel::session)
        .def("original_stdout_fd", [](Kernel& kernel) { return kernel.output().original_stdout(); })
        .def("original_stderr_fd", [](Kernel& kernel) { return kernel.output().original_stderr(); })
        .def("finish", &Kernel::finish, no_gil());
    module.attr("COUNT_KEY") = sgpu::Server::kCountKey;
}
