# HEARTH_ENGINE=system: a bundle around the installed libllama and libggml, found by pkg-config.

find_program(HEARTH_PKG_CONFIG NAMES pkg-config pkgconf REQUIRED)

# _pkg(VAR ARG...): the output of pkg-config, or an end with its message.
function(_pkg var)
  execute_process(COMMAND "${HEARTH_PKG_CONFIG}" ${ARGN}
    OUTPUT_VARIABLE out ERROR_VARIABLE err RESULT_VARIABLE result OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "HEARTH_ENGINE=system needs an installed llama.cpp (libllama-dev, libggml-dev): ${err}")
  endif()
  set(${var} "${out}" PARENT_SCOPE)
endfunction()

_pkg(_llama_version --modversion llama)
_pkg(_ggml_version --modversion ggml)
_pkg(_cflags --cflags --keep-system-cflags llama ggml)
_pkg(_libs --libs --keep-system-libs llama ggml)
_pkg(_libdir --variable=libdir ggml)

# hearth is written against the API of 0.7; another one may compile and then behave otherwise.
if(NOT _llama_version MATCHES "^0\\.7\\.")
  message(WARNING "installed llama.cpp is ${_llama_version}; hearth is tested with 0.7")
endif()

set(_backends "${HEARTH_BACKENDS_DIR}")
if(_backends STREQUAL "")
  # Debian keeps plugins in ggml/backendsN, upstream beside its programs or libraries.
  file(GLOB _candidates "${_libdir}/ggml/backends*")
  foreach(_dir IN LISTS _candidates ITEMS "${_libdir}/ggml" "${_libdir}" "${_libdir}/../bin")
    file(GLOB _cpu "${_dir}/libggml-cpu*.so")
    if(_cpu)
      set(_backends "${_dir}")
      break()
    endif()
  endforeach()
endif()
if(_backends STREQUAL "")
  message(FATAL_ERROR "no ggml plugins (libggml-cpu*.so) below ${_libdir}; name their folder with -DHEARTH_BACKENDS_DIR=DIR. "
    "A llama.cpp built without GGML_BACKEND_DL has none and cannot be used.")
endif()

if(HEARTH_HIP AND NOT EXISTS "${_backends}/libggml-hip.so")
  message(FATAL_ERROR "HEARTH_HIP=ON, and no libggml-hip.so in ${_backends}: install the HIP plugin (libggml0-backend-hip)")
endif()

hearth_tool(describe -source system -out "${HEARTH_BUNDLE}" -llama-version "${_llama_version}" -ggml-version "${_ggml_version}"
  -backends "${_backends}" -libdir "${_libdir}" "-cflags=${_cflags}" "-libs=${_libs} -lggml-base")
