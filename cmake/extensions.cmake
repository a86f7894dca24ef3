# The Python extension modules and what else goes into the wheel.

# Without scikit-build (the presets), the environment that ./dev made is the one to build for.
if(NOT SKBUILD AND NOT DEFINED Python_EXECUTABLE AND NOT DEFINED ENV{VIRTUAL_ENV}
   AND EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  set(Python_EXECUTABLE ${PROJECT_SOURCE_DIR}/.venv/bin/python)
endif()
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

# pybind11 is a package of that Python. (`python -m pybind11 --cmakedir` quotes a path with a blank.)
if(NOT pybind11_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import pybind11; print(pybind11.get_cmake_dir())"
                  OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
find_package(pybind11 3 CONFIG REQUIRED)

# A module shows nothing but what Python calls. Some compilers link libstdc++ into it, whose variables
# the loader would then share with every other library of the process: torch, at another version of
# libstdc++, crashed as soon as it wrote a number to a stream.
set(SGPU_SHOW_INIT_ONLY -Wl,--exclude-libs,ALL
    -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map)

include(${CMAKE_CURRENT_LIST_DIR}/core.cmake)
if(SGPU_KERNEL)
  include(${CMAKE_CURRENT_LIST_DIR}/kernel.cmake)
endif()

# The kernelspec, where Jupyter looks for it: <prefix>/share/jupyter/kernels.
if(SKBUILD)
  # The alias databricks.air, beside the package and found by every Python of the environment.
  install(FILES ${PROJECT_SOURCE_DIR}/share/alias/_serverless_gpu_air.py
                ${PROJECT_SOURCE_DIR}/share/alias/serverless_gpu_air.pth
          DESTINATION ${SKBUILD_PLATLIB_DIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/share/jupyter/kernels/serverless-gpu
          DESTINATION ${SKBUILD_DATA_DIR}/share/jupyter/kernels)
endif()
