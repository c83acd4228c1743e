# entrain-perf, and the loop that it shares with the programs of bench/ that measure other
# libraries.

add_library(entrain_perf_loop STATIC
  ${CMAKE_CURRENT_LIST_DIR}/perf/cores.cc ${CMAKE_CURRENT_LIST_DIR}/perf/measure.cc
  ${CMAKE_CURRENT_LIST_DIR}/perf/measured_case.cc
  ${CMAKE_CURRENT_LIST_DIR}/perf/meeting.cc ${CMAKE_CURRENT_LIST_DIR}/perf/pattern.cc
  ${CMAKE_CURRENT_LIST_DIR}/perf/report.cc)
target_link_libraries(entrain_perf_loop
  PUBLIC entrain_base absl::status absl::statusor absl::strings absl::span
  PRIVATE nlohmann_json::nlohmann_json entrain_flags)

# Computes a model from measured times. Pure arithmetic.
add_library(entrain_perf_tune STATIC ${CMAKE_CURRENT_LIST_DIR}/perf/tune.cc)
target_link_libraries(entrain_perf_tune PUBLIC entrain_perf_loop entrain_tuning entrain_collectives PRIVATE entrain_flags)

# Merges flight dumps.
add_library(entrain_flight_page STATIC
  ${CMAKE_CURRENT_LIST_DIR}/perf/flight_model.cc ${CMAKE_CURRENT_LIST_DIR}/perf/flight_page.cc
  ${CMAKE_CURRENT_LIST_DIR}/perf/flight_verdict.cc)
target_link_libraries(entrain_flight_page
  PUBLIC entrain_base absl::status absl::statusor absl::strings
  PRIVATE absl::str_format nlohmann_json::nlohmann_json entrain_flags)

add_executable(entrain-perf
  ${CMAKE_CURRENT_LIST_DIR}/perf/device_buffers.cc ${CMAKE_CURRENT_LIST_DIR}/perf/entrain_perf.cc
  ${CMAKE_CURRENT_LIST_DIR}/perf/entrain_subject.cc ${CMAKE_CURRENT_LIST_DIR}/perf/flight.cc
  ${CMAKE_CURRENT_LIST_DIR}/perf/local_job.cc ${CMAKE_CURRENT_LIST_DIR}/perf/measure_rank.cc
  ${CMAKE_CURRENT_LIST_DIR}/perf/options.cc ${CMAKE_CURRENT_LIST_DIR}/perf/tune_rank.cc
  ${CMAKE_CURRENT_LIST_DIR}/job_key.cc ${CMAKE_CURRENT_LIST_DIR}/labelled_output.cc
  ${CMAKE_CURRENT_LIST_DIR}/outlet.cc ${CMAKE_CURRENT_LIST_DIR}/rank_process.cc)
target_link_libraries(entrain-perf
  PRIVATE entrain entrain_flight_page entrain_perf_loop entrain_perf_tune entrain_tuning entrain_transports entrain_device_registry entrain_collectives entrain_net entrain_base CLI11::CLI11 nlohmann_json::nlohmann_json entrain_flags)
target_compile_definitions(entrain-perf PRIVATE ENTRAIN_PROGRAM_VERSION="${PROJECT_VERSION}")
# optional: a build of only some targets lacks it
install(TARGETS entrain-perf RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools OPTIONAL)
