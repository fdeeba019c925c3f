# Builds scripts/engine, the Go program that does the work, and gives functions to run it.

find_program(HEARTH_GO go REQUIRED)
set(HEARTH_TOOL "${CMAKE_BINARY_DIR}/tools/engine")

# hearth_tool(ARG...) runs the program; its messages go to the console as they come.
function(hearth_tool)
  execute_process(COMMAND "${HEARTH_TOOL}" ${ARGN} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}" RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "the engine bundle could not be made; the reason stands above")
  endif()
endfunction()

# hearth_default_source(VAR): Debian packages where apt can unpack them, else what is installed, else a build.
function(hearth_default_source var)
  find_program(HEARTH_APT_GET apt-get)
  find_program(HEARTH_DPKG_DEB dpkg-deb)
  find_program(HEARTH_PKG_CONFIG NAMES pkg-config pkgconf)
  mark_as_advanced(HEARTH_APT_GET HEARTH_DPKG_DEB HEARTH_PKG_CONFIG)
  set(found source)
  if(HEARTH_APT_GET AND HEARTH_DPKG_DEB AND CMAKE_HOST_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(found debian)
  elseif(HEARTH_PKG_CONFIG)
    execute_process(COMMAND "${HEARTH_PKG_CONFIG}" --exists llama ggml RESULT_VARIABLE missing)
    if(missing EQUAL 0)
      set(found system)
    endif()
  endif()
  set(${var} "${found}" PARENT_SCOPE)
endfunction()

execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env CGO_ENABLED=0 "${HEARTH_GO}" build -o "${HEARTH_TOOL}" ./scripts/engine
  WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}" RESULT_VARIABLE _built)
if(NOT _built EQUAL 0)
  message(FATAL_ERROR "go build ./scripts/engine failed")
endif()
