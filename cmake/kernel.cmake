# The extension module serverless_gpu._kernel: the Jupyter kernel, on xeus.

if(NOT TARGET Python::Module)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
endif()
if(NOT COMMAND pybind11_add_module)
  find_package(pybind11 CONFIG QUIET)
  if(NOT pybind11_FOUND)
    execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
                    OUTPUT_VARIABLE SGPU_PYBIND11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
    find_package(pybind11 CONFIG REQUIRED HINTS ${SGPU_PYBIND11_DIR})
  endif()
endif()

# Of xeus only the core is used (kernel/compat.h); from 3.0 on the sockets are a package of their
# own, xeus-zmq, which is not needed.
find_package(xeus QUIET)
find_package(cppzmq QUIET)
find_path(SGPU_ZMQ_HPP zmq.hpp)
find_package(OpenSSL QUIET COMPONENTS Crypto)
if(NOT xeus_FOUND OR NOT SGPU_ZMQ_HPP OR NOT OpenSSL_FOUND)
  message(FATAL_ERROR
    "The kernel needs xeus 2.4 or newer, cppzmq and OpenSSL. Debian and Ubuntu: "
    "apt install xeus-dev cppzmq-dev libssl-dev. conda-forge: xeus cppzmq openssl.")
endif()
if(xeus_VERSION VERSION_LESS 2.4)
  message(FATAL_ERROR "xeus ${xeus_VERSION} is too old: the kernel needs 2.4 or newer.")
endif()

# Archives where the system has them, so that the module runs where xeus and ZeroMQ are missing.
option(SGPU_STATIC_ZMQ "Link xeus and ZeroMQ into the module where the system has archives" ON)
set(SGPU_ARCHIVES)
if(SGPU_STATIC_ZMQ)
  foreach(name xeus zmq crypto sodium pgm norm protokit bsd md)
    find_library(SGPU_ARCHIVE_${name} lib${name}.a)
    if(SGPU_ARCHIVE_${name})
      list(APPEND SGPU_ARCHIVES ${SGPU_ARCHIVE_${name}})
    endif()
  endforeach()
endif()

pybind11_add_module(_kernel MODULE NO_EXTRAS
  ${PROJECT_SOURCE_DIR}/kernel/connection_file.cpp
  ${PROJECT_SOURCE_DIR}/kernel/control.cpp
  ${PROJECT_SOURCE_DIR}/kernel/exit_gate.cpp
  ${PROJECT_SOURCE_DIR}/kernel/interpreter.cpp
  ${PROJECT_SOURCE_DIR}/kernel/iopub.cpp
  ${PROJECT_SOURCE_DIR}/kernel/json_convert.cpp
  ${PROJECT_SOURCE_DIR}/kernel/kernel.cpp
  ${PROJECT_SOURCE_DIR}/kernel/message.cpp
  ${PROJECT_SOURCE_DIR}/kernel/module.cpp
  ${PROJECT_SOURCE_DIR}/kernel/output.cpp
  ${PROJECT_SOURCE_DIR}/kernel/parent_watch.cpp
  ${PROJECT_SOURCE_DIR}/kernel/server.cpp
  ${PROJECT_SOURCE_DIR}/kernel/signal_window.cpp)
target_include_directories(_kernel PRIVATE ${PROJECT_SOURCE_DIR})
target_include_directories(_kernel SYSTEM PRIVATE ${SGPU_ZMQ_HPP})
target_link_libraries(_kernel PRIVATE sgpu_flags nlohmann_json::nlohmann_json Threads::Threads)

if(SGPU_ARCHIVE_xeus AND SGPU_ARCHIVE_zmq AND SGPU_ARCHIVE_crypto)
  target_sources(_kernel PRIVATE ${PROJECT_SOURCE_DIR}/kernel/archive_needs.cpp)
  get_target_property(SGPU_XEUS_INCLUDES xeus INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(_kernel SYSTEM PRIVATE ${SGPU_XEUS_INCLUDES})
  target_compile_definitions(_kernel PRIVATE XEUS_STATIC_LIB ZMQ_STATIC)
  target_link_libraries(_kernel PRIVATE
    -Wl,--start-group ${SGPU_ARCHIVES} -Wl,--end-group ${CMAKE_DL_LIBS})
  # pyzmq brings a libzmq of its own into the same process: ours must not be seen by it.
  target_link_options(_kernel PRIVATE -static-libstdc++ -Wl,--version-script=${PROJECT_SOURCE_DIR}/kernel/exports.map
    -Wl,--exclude-libs,ALL -Wl,--gc-sections)
else()
  find_library(SGPU_LIBZMQ zmq REQUIRED)
  target_link_libraries(_kernel PRIVATE xeus ${SGPU_LIBZMQ} OpenSSL::Crypto)
endif()
set_target_properties(_kernel PROPERTIES
  CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON)

install(TARGETS _kernel LIBRARY DESTINATION serverless_gpu)
