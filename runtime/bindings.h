// bindings.h: the parts of the extension module `serverless_gpu._core`.
#pragma once

#include <pybind11/pybind11.h>

namespace sgpu {

void bind_buffers(pybind11::module_& m);
void bind_doctor(pybind11::module_& m);
void bind_gpu(pybind11::module_& m);
void bind_pool(pybind11::module_& m);
void bind_rank(pybind11::module_& m);
void bind_stream(pybind11::module_& m);
namespace magics {
void bind_magics(pybind11::module_& m);
}

// Throws OSError with the error's number and message.
[[noreturn]] void throw_os_error(int number, const char* message);

}  // namespace sgpu
