# Counts allocations. Not for sanitizers, with which this does not work.
if(NOT TARGET entrain_allocations)
  add_library(entrain_allocations STATIC ${CMAKE_CURRENT_LIST_DIR}/allocations.cc)
  target_link_libraries(entrain_allocations PRIVATE entrain_flags)
  target_include_directories(entrain_allocations PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_options(entrain_allocations INTERFACE
    -Wl,--wrap=aligned_alloc,--wrap=posix_memalign,--wrap=malloc,--wrap=calloc,--wrap=free)
endif()
