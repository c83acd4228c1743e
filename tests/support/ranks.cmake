# Runs a test body as N ranks, threads of the test's process.
if(NOT TARGET entrain_ranks)
  entrain_test_library(entrain_ranks SOURCES ${CMAKE_CURRENT_LIST_DIR}/trial.cc ${CMAKE_CURRENT_LIST_DIR}/ranks.cc DEPS entrain_comm entrain_device_side)
  target_link_libraries(entrain_ranks PRIVATE entrain_perf_loop)
endif()
