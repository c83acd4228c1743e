entrain_test(launcher_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/launcher_test.cc
  DEPS entrain_launcher entrain_base)
entrain_test(node_list_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/node_list_test.cc
  DEPS entrain_launcher entrain_base absl::strings)
entrain_test(launching_process_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/launching_process_test.cc
  DEPS entrain_launcher entrain_base absl::strings LABELS multi)
