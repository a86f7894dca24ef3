// bindings.cpp: the extension module `serverless_gpu._core`. Only bindings*.cpp know Python.
#include "runtime/bindings.h"

#include <pybind11/stl.h>

#include "runtime/process_tree.h"
#include "runtime/wire.h"

namespace py = pybind11;
using namespace py::literals;

namespace sgpu {

void throw_os_error(int number, const char* message) {
    const auto arguments = py::make_tuple(number, message);
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
    throw py::error_already_set();
}

PYBIND11_MODULE(_core, m) {
    m.doc() =
        "The C++ core: the pool of rank processes, a rank's agent, buffers, and the magics' text.";
    bind_buffers(m);
    bind_gpu(m);
    bind_doctor(m);
    bind_pool(m);
    bind_rank(m);
    bind_stream(m);
    magics::bind_magics(m);
    m.def("descendants", [](pid_t root) {
        py::list list;
        for (const Process& p : descendants(root))
            list.append(py::make_tuple(p.pid, p.parent, std::string(1, p.state)));
        return list;
    });
    m.attr("CHANNEL_LOST") = kChannelLost;  // a signal
    m.def("ended_among", &ended_among, "pids"_a, "Those of these processes that have ended.");
}

}  // namespace sgpu
