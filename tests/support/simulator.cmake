# Runs schedules of all ranks on one thread.
if(NOT TARGET entrain_simulator)
  add_library(entrain_simulator STATIC ${CMAKE_CURRENT_LIST_DIR}/simulator.cc)
  target_link_libraries(entrain_simulator PUBLIC entrain_collectives PRIVATE entrain_flags)
endif()
