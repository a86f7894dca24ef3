# The extension module serverless_gpu._kernel: the Jupyter kernel, on xeus.

# Of xeus only the core is used (kernel/compat.h): its sockets, since 3.0 the package xeus-zmq, are
# not needed.
find_package(xeus QUIET)
find_path(SGPU_ZMQ_HPP zmq.hpp)
find_library(SGPU_LIBZMQ zmq)
find_package(OpenSSL QUIET COMPONENTS Crypto)
if(NOT xeus_FOUND OR NOT SGPU_ZMQ_HPP OR NOT SGPU_LIBZMQ OR NOT OpenSSL_FOUND)
  message(FATAL_ERROR
    "The kernel needs xeus (2.4 or newer), ZeroMQ with cppzmq, and OpenSSL. Debian, Ubuntu: "
    "apt install xeus-dev cppzmq-dev libzmq3-dev libssl-dev. conda-forge: xeus cppzmq openssl.")
endif()
if(xeus_VERSION VERSION_LESS 2.4)
  message(FATAL_ERROR "xeus ${xeus_VERSION} is too old: the kernel needs 2.4 or newer.")
endif()

# Archives where the system has them and they can go into a shared module: then the module runs where
# xeus and ZeroMQ are missing. Why libstdc++ too, and why nothing is exported: kernel/archive_needs.cpp,
# and pyzmq brings a libzmq of its own into the same process, which must not see ours.
option(SGPU_STATIC_ZMQ "Link xeus and ZeroMQ into the kernel module if possible" ON)
set(SGPU_ARCHIVES)
set(SGPU_ARCHIVE_OPTIONS -static-libstdc++ -Wl,--gc-sections ${SGPU_SHOW_INIT_ONLY})
get_target_property(SGPU_XEUS_INCLUDES xeus INTERFACE_INCLUDE_DIRECTORIES)
if(SGPU_STATIC_ZMQ)
  foreach(name xeus zmq crypto sodium pgm norm protokit bsd md zstd z)
    find_library(SGPU_ARCHIVE_${name} lib${name}.a)
    if(SGPU_ARCHIVE_${name})
      list(APPEND SGPU_ARCHIVES ${SGPU_ARCHIVE_${name}})
    endif()
  endforeach()
  if(SGPU_ARCHIVE_xeus AND SGPU_ARCHIVE_zmq AND SGPU_ARCHIVE_crypto)
    try_compile(SGPU_ARCHIVES_FIT ${CMAKE_CURRENT_BINARY_DIR}/archive_probe
      SOURCES ${PROJECT_SOURCE_DIR}/kernel/archive_probe.cpp
              ${PROJECT_SOURCE_DIR}/kernel/archive_needs.cpp
      CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${SGPU_XEUS_INCLUDES};${SGPU_ZMQ_HPP}"
                  -DCMAKE_POSITION_INDEPENDENT_CODE=ON
      COMPILE_DEFINITIONS -DXEUS_STATIC_LIB -DZMQ_STATIC -fPIC
      LINK_OPTIONS -shared -Wl,--no-undefined ${SGPU_ARCHIVE_OPTIONS}
      LINK_LIBRARIES -Wl,--start-group ${SGPU_ARCHIVES} -Wl,--end-group
                     nlohmann_json::nlohmann_json Threads::Threads ${CMAKE_DL_LIBS}
      CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
  endif()
endif()

pybind11_add_module(_kernel MODULE
  ${PROJECT_SOURCE_DIR}/kernel/connection_file.cpp
  ${PROJECT_SOURCE_DIR}/kernel/control.cpp
  ${PROJECT_SOURCE_DIR}/kernel/exit_gate.cpp
  ${PROJECT_SOURCE_DIR}/kernel/interpreter.cpp
  ${PROJECT_SOURCE_DIR}/kernel/interrupt_watch.cpp
  ${PROJECT_SOURCE_DIR}/kernel/iopub.cpp
  ${PROJECT_SOURCE_DIR}/kernel/json_convert.cpp
  ${PROJECT_SOURCE_DIR}/kernel/kernel.cpp
  ${PROJECT_SOURCE_DIR}/kernel/message.cpp
  ${PROJECT_SOURCE_DIR}/kernel/module.cpp
  ${PROJECT_SOURCE_DIR}/kernel/output.cpp
  ${PROJECT_SOURCE_DIR}/kernel/parent_watch.cpp
  ${PROJECT_SOURCE_DIR}/kernel/server.cpp
  ${PROJECT_SOURCE_DIR}/kernel/signal_window.cpp
  ${PROJECT_SOURCE_DIR}/runtime/nudge.cpp)
target_include_directories(_kernel PRIVATE ${PROJECT_SOURCE_DIR})
target_include_directories(_kernel SYSTEM PRIVATE ${SGPU_XEUS_INCLUDES} ${SGPU_ZMQ_HPP})
target_link_libraries(_kernel PRIVATE sgpu_flags nlohmann_json::nlohmann_json Threads::Threads)
set_target_properties(_kernel PROPERTIES
  CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON)

if(SGPU_ARCHIVES_FIT)
  message(STATUS "Kernel: xeus ${xeus_VERSION} and ZeroMQ are linked into the module")
  target_sources(_kernel PRIVATE ${PROJECT_SOURCE_DIR}/kernel/archive_needs.cpp)
  target_compile_definitions(_kernel PRIVATE XEUS_STATIC_LIB ZMQ_STATIC)
  target_link_libraries(_kernel PRIVATE
    -Wl,--start-group ${SGPU_ARCHIVES} -Wl,--end-group ${CMAKE_DL_LIBS})
  target_link_options(_kernel PRIVATE ${SGPU_ARCHIVE_OPTIONS})
else()
  message(STATUS "Kernel: xeus ${xeus_VERSION} and ZeroMQ are used as shared libraries")
  target_link_libraries(_kernel PRIVATE xeus ${SGPU_LIBZMQ} OpenSSL::Crypto)
  target_link_options(_kernel PRIVATE ${SGPU_SHOW_INIT_ONLY})
endif()

install(TARGETS _kernel LIBRARY DESTINATION serverless_gpu)
