# Runs schedules of all ranks on one thread.
if(NOT TARGET entrain_simulator)
  # Optimised: tests of all algorithms spend their time here.
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/simulator.cc PROPERTIES COMPILE_OPTIONS -O2 SKIP_PRECOMPILE_HEADERS ON)
  entrain_test_library(entrain_simulator SOURCES ${CMAKE_CURRENT_LIST_DIR}/simulator.cc DEPS entrain_collectives)
endif()
