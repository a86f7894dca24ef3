# serverless_gpu._core and the guard.

# The guard links nothing but the standard library, so that it starts in a millisecond.
add_executable(serverless-gpu-guard
  runtime/guard/main.cpp
  runtime/packet_socket.cpp
  runtime/process_tree.cpp)
target_include_directories(serverless-gpu-guard PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(serverless-gpu-guard PRIVATE sgpu_flags)
target_link_options(serverless-gpu-guard PRIVATE -static-libstdc++ -static-libgcc)

pybind11_add_module(_core
  runtime/bindings.cpp
  runtime/bindings_buffers.cpp
  runtime/bindings_pool.cpp
  runtime/bindings_rank.cpp
  magics/bindings.cpp)
target_link_libraries(_core PRIVATE sgpu_flags sgpu_runtime sgpu_magics)

install(TARGETS _core LIBRARY DESTINATION serverless_gpu)
install(TARGETS serverless-gpu-guard RUNTIME DESTINATION serverless_gpu)
