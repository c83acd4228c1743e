# Reads the environment variables of a launcher. Must not use other code of lib/comm.
entrain_unit(launcher SOURCES ${CMAKE_CURRENT_LIST_DIR}/launcher.cc ${CMAKE_CURRENT_LIST_DIR}/launching_process.cc
    ${CMAKE_CURRENT_LIST_DIR}/node_list.cc
  DEPS entrain_net entrain_base absl::status absl::statusor absl::strings absl::str_format)
