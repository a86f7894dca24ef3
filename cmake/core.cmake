# serverless_gpu._core; installs the guard beside it.

pybind11_add_module(_core NO_EXTRAS
  runtime/bindings.cpp
  runtime/bindings_buffers.cpp
  runtime/bindings_doctor.cpp
  runtime/bindings_gpu.cpp
  runtime/bindings_pool.cpp
  runtime/bindings_rank.cpp
  runtime/bindings_stream.cpp
  magics/bindings.cpp)
target_link_libraries(_core PRIVATE sgpu_flags sgpu_runtime sgpu_magics)
target_link_options(_core PRIVATE ${SGPU_SHOW_INIT_ONLY})

install(TARGETS _core LIBRARY DESTINATION serverless_gpu)
install(TARGETS serverless-gpu-guard RUNTIME DESTINATION serverless_gpu)
