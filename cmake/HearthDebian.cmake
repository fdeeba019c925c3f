# HEARTH_ENGINE=debian: apt fetches the packages pinned in engine.lock, dpkg-deb unpacks them into the bundle.

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/engine.lock")

# Downloads outlive the checkout.
if(NOT "$ENV{HEARTH_CACHE}" STREQUAL "")
  set(_cache "$ENV{HEARTH_CACHE}")
elseif(NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
  set(_cache "$ENV{XDG_CACHE_HOME}/hearth")
else()
  set(_cache "$ENV{HOME}/.cache/hearth")
endif()

set(_flags -cache "${_cache}" -lock "${CMAKE_SOURCE_DIR}/engine.lock" -out "${HEARTH_BUNDLE}")
set(_mirror "${HEARTH_DEBIAN_MIRROR}")
if(_mirror STREQUAL "")
  set(_mirror "$ENV{HEARTH_DEBIAN_MIRROR}")
endif()
if(NOT _mirror STREQUAL "")
  list(APPEND _flags -mirror "${_mirror}")
endif()
if(HEARTH_HIP)
  list(APPEND _flags -hip)
endif()
if(HEARTH_MESA)
  list(APPEND _flags -mesa)
endif()
hearth_tool(debian ${_flags})
