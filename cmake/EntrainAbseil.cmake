# Abseil: the system's libraries, which EntrainPackages.cmake finds, or its source. The system's libraries are enough for
# development. A library for other machines must contain Abseil. This needs the source, because Debian's archives are not
# position-independent. `tools/setup.sh abseil` gets the source.
include_guard()

set(ENTRAIN_ABSEIL_SOURCE "" CACHE PATH "Folder of Abseil's source, to be linked in; empty: the system's Abseil")

if(ENTRAIN_ABSEIL_SOURCE)
  if(NOT EXISTS ${ENTRAIN_ABSEIL_SOURCE}/absl/base/config.h)
    message(FATAL_ERROR "ENTRAIN_ABSEIL_SOURCE is ${ENTRAIN_ABSEIL_SOURCE}, where there is no absl/base/config.h")
  endif()
  set(ABSL_PROPAGATE_CXX_STD ON)
  set(ABSL_ENABLE_INSTALL OFF)
  set(entrain_visibility ${CMAKE_CXX_VISIBILITY_PRESET})
  set(CMAKE_CXX_VISIBILITY_PRESET hidden)
  add_subdirectory(${ENTRAIN_ABSEIL_SOURCE} ${PROJECT_BINARY_DIR}/abseil EXCLUDE_FROM_ALL SYSTEM)
  set(CMAKE_CXX_VISIBILITY_PRESET ${entrain_visibility})
  set(abseil_state ${ENTRAIN_ABSEIL_SOURCE})
else()
  set(abseil_state "the system's")
endif()
