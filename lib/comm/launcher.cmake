# The launcher's variables, read without anything else of the communicator.
entrain_unit(launcher SOURCES ${CMAKE_CURRENT_LIST_DIR}/launcher.cc
  DEPS entrain_base absl::status absl::statusor absl::strings)
