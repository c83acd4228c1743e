# Runs a test body as N ranks, threads of the test's process.
if(NOT TARGET entrain_ranks)
  add_library(entrain_ranks STATIC ${CMAKE_CURRENT_LIST_DIR}/trial.cc ${CMAKE_CURRENT_LIST_DIR}/ranks.cc)
  target_link_libraries(entrain_ranks PUBLIC entrain_comm PRIVATE entrain_perf_loop GTest::gtest entrain_flags)
endif()
