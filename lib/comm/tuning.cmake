# What algorithms are chosen by, without anything else of the communicator.
entrain_unit(tuning
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/cost_model.cc ${CMAKE_CURRENT_LIST_DIR}/overrides.cc
          ${CMAKE_CURRENT_LIST_DIR}/tuning.cc
  DEPS entrain_base entrain_collectives absl::status absl::statusor absl::strings absl::span absl::str_format)
