entrain_test(launcher_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/launcher_test.cc
  DEPS entrain_launcher entrain_base)
