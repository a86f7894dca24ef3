// bindings_buffers.cpp: what Python sees of shared_buffer.h. bindings.cpp calls bind_buffers.
#include <pybind11/pybind11.h>

#include "runtime/shared_buffer.h"

namespace py = pybind11;
using namespace py::literals;

namespace sgpu {

void bind_buffers(py::module_& m);

namespace {

[[noreturn]] void throw_os_error(const Error& error) {
    const auto arguments = py::make_tuple(error.os_errno, error.message);
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
    throw py::error_already_set();
}

// Holds the memory of Python objects still: they can be neither freed nor resized meanwhile.
// Threads: with the GIL only.
class HeldBuffers {
public:
    HeldBuffers() = default;
    ~HeldBuffers() {
        for (Py_buffer& view : views_) PyBuffer_Release(&view);
    }
    HeldBuffers(const HeldBuffers&) = delete;
    HeldBuffers& operator=(const HeldBuffers&) = delete;
    HeldBuffers(HeldBuffers&&) = delete;
    HeldBuffers& operator=(HeldBuffers&&) = delete;

    BufferView hold(const py::handle& object) {
        Py_buffer view{};
        if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE) != 0)
            throw py::error_already_set();
        views_.push_back(view);
        return {view.buf, static_cast<std::size_t>(view.len)};
    }

private:
    std::vector<Py_buffer> views_;
};

BufferParts parts_of(const py::handle& item, HeldBuffers& held) {
    if (PyObject_CheckBuffer(item.ptr()) != 0) return {held.hold(item)};
    BufferParts parts;
    for (const py::handle part : item) {
        if (py::isinstance<py::int_>(part))
            parts.push_back({nullptr, part.cast<std::size_t>()});
        else
            parts.push_back(held.hold(part));
    }
    return parts;
}

py::tuple share_buffers(const py::iterable& buffers, int threads) {
    HeldBuffers held;
    std::vector<BufferParts> items;
    for (const py::handle item : buffers) items.push_back(parts_of(item, held));
    Result<SharedBuffer> shared = [&] {
        const py::gil_scoped_release release;
        // Asked at the end too: raised later, a Stop would find the memfd with nobody to close it.
        return share(items, threads, [] {
            const py::gil_scoped_acquire acquire;
            return PyErr_CheckSignals() == 0;
        });
    }();
    if (PyErr_Occurred()) throw py::error_already_set();
    if (!shared) throw_os_error(shared.error());
    py::list offsets;
    for (const std::uint64_t offset : shared.value().offsets) offsets.append(offset);
    return py::make_tuple(shared.value().fd.release(), offsets);
}

PrivateMapping open_mapping(int fd) {
    Result<PrivateMapping> mapping = PrivateMapping::open(fd);
    if (!mapping) throw_os_error(mapping.error());
    return std::move(mapping.value());
}

constexpr const char* kShareDoc =
    "Copies buffers into one sealed memfd. Returns (fd, offsets); the caller owns fd.\n\n"
    "Each item is a contiguous buffer, or a sequence of buffers and ints that lie end to end: an\n"
    "int is a hole of so many bytes, which reads as zeros and costs no memory. Every item starts\n"
    "at a multiple of 4096. The GIL is released while bytes are copied. OSError if there is no\n"
    "memory; what a signal handler raises, KeyboardInterrupt by default.";

constexpr const char* kMappingDoc =
    "The whole of a memfd as a writable buffer whose changes nobody else sees. `fd` is not taken\n"
    "over. Views of it keep it mapped.";

}  // namespace

void bind_buffers(py::module_& m) {
    m.def("share", &share_buffers, "buffers"_a, "threads"_a = 2, kShareDoc);
    py::class_<PrivateMapping>(m, "PrivateMapping", py::buffer_protocol(), kMappingDoc)
        .def(py::init(&open_mapping), "fd"_a)
        .def_buffer([](PrivateMapping& mapping) {
            return py::buffer_info(static_cast<unsigned char*>(mapping.data()),
                                   static_cast<py::ssize_t>(mapping.size()));
        });
}

}  // namespace sgpu
