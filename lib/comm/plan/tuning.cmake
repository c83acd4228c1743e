# The values by which algorithms are chosen. Must not use other code of lib/comm.
entrain_unit(tuning
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/cost_model.cc ${CMAKE_CURRENT_LIST_DIR}/overrides.cc
          ${CMAKE_CURRENT_LIST_DIR}/tuning.cc
  DEPS entrain_base entrain_collectives absl::status absl::statusor absl::strings absl::span absl::str_format)
