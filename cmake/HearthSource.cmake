# HEARTH_ENGINE=source: compiles llama.cpp from LLAMA_CPP_DIR and copies the result into the bundle.

if(LLAMA_CPP_DIR STREQUAL "" OR NOT EXISTS "${LLAMA_CPP_DIR}/CMakeLists.txt")
  message(FATAL_ERROR "HEARTH_ENGINE=source needs -DLLAMA_CPP_DIR=DIR, a source tree of llama.cpp (tag b11669 is 0.7.0, "
    "the version hearth is tested with)")
endif()

set(_prefix "${CMAKE_BINARY_DIR}/llama.cpp/${HEARTH_NAME}/install")
set(_args
  "-DCMAKE_BUILD_TYPE=Release" "-DCMAKE_INSTALL_PREFIX=${_prefix}" "-DCMAKE_INSTALL_LIBDIR=lib" "-DBUILD_SHARED_LIBS=ON"
  # One plugin file for each backend and CPU level, loaded at run time: the bundle's shape depends on it.
  "-DGGML_BACKEND_DL=ON" "-DGGML_NATIVE=OFF" "-DGGML_CPU_ALL_VARIANTS=ON" "-DGGML_BACKEND_DIR=${_prefix}/backends"
  "-DLLAMA_BUILD_TESTS=OFF" "-DLLAMA_BUILD_EXAMPLES=OFF" "-DLLAMA_BUILD_TOOLS=OFF" "-DLLAMA_BUILD_SERVER=OFF")
set(_environment)

# HIP: where a ROCm toolchain is found. HEARTH_HIP=ON makes its absence an error.
find_program(HEARTH_HIPCONFIG hipconfig PATHS /opt/rocm/bin /opt/rocm/core/bin)
if(HEARTH_HIPCONFIG)
  execute_process(COMMAND "${HEARTH_HIPCONFIG}" -l OUTPUT_VARIABLE _clang OUTPUT_STRIP_TRAILING_WHITESPACE)
  execute_process(COMMAND "${HEARTH_HIPCONFIG}" -R OUTPUT_VARIABLE _rocm OUTPUT_STRIP_TRAILING_WHITESPACE)
  list(APPEND _args "-DGGML_HIP=ON")
  list(APPEND _environment "HIPCXX=${_clang}/clang" "HIP_PATH=${_rocm}")
  if(NOT AMDGPU_TARGETS STREQUAL "")
    # The list separator must survive two command lines; both names are in use among llama.cpp and ROCm releases.
    string(REPLACE ";" "|" _targets "${AMDGPU_TARGETS}")
    list(APPEND _args "-DGPU_TARGETS=${_targets}" "-DAMDGPU_TARGETS=${_targets}")
  endif()
  message(NOTICE "engine: HIP: yes (${_rocm})")
elseif(HEARTH_HIP)
  message(FATAL_ERROR "HEARTH_HIP=ON, and no hipconfig on PATH or in /opt/rocm/bin: install the ROCm toolchain")
else()
  message(NOTICE "engine: HIP: no (no hipconfig)")
endif()

# Vulkan: where the shader compiler is.
find_program(HEARTH_GLSLC glslc)
if(HEARTH_GLSLC)
  list(APPEND _args "-DGGML_VULKAN=ON")
  message(NOTICE "engine: Vulkan: yes (${HEARTH_GLSLC})")
else()
  message(NOTICE "engine: Vulkan: no (no glslc)")
endif()

include(ExternalProject)
include(ProcessorCount)
ProcessorCount(_jobs)
ExternalProject_Add(llama.cpp
  SOURCE_DIR "${LLAMA_CPP_DIR}"
  PREFIX "${CMAKE_BINARY_DIR}/llama.cpp/${HEARTH_NAME}"
  LIST_SEPARATOR "|"
  CONFIGURE_COMMAND "${CMAKE_COMMAND}" -E env ${_environment} "${CMAKE_COMMAND}" -S <SOURCE_DIR> -B <BINARY_DIR> ${_args}
  BUILD_COMMAND "${CMAKE_COMMAND}" --build <BINARY_DIR> --parallel ${_jobs}
  INSTALL_COMMAND "${CMAKE_COMMAND}" --install <BINARY_DIR>
  BUILD_ALWAYS TRUE # the tree is the user's; its own build knows what changed
  USES_TERMINAL_CONFIGURE TRUE USES_TERMINAL_BUILD TRUE)
add_custom_target(bundle ALL
  COMMAND "${HEARTH_TOOL}" describe -source source -out "${HEARTH_BUNDLE}" -prefix "${_prefix}"
  DEPENDS llama.cpp VERBATIM)
