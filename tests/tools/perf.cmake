entrain_test(entrain_perf_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/entrain_perf_test.cc
  DEPS absl::strings nlohmann_json::nlohmann_json LABELS multi TIMEOUT 240)
target_compile_definitions(entrain_perf_test
  PRIVATE ENTRAIN_RUN="$<TARGET_FILE:entrain-run>" ENTRAIN_PERF="$<TARGET_FILE:entrain-perf>")
add_dependencies(entrain_perf_test entrain-run entrain-perf)
entrain_test(perf_tune_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/perf_tune_test.cc
  DEPS entrain_perf_tune LABELS unit)
entrain_test(perf_pattern_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/perf_pattern_test.cc
  DEPS entrain_perf_loop LABELS unit)
entrain_test(flight_page_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/flight_page_test.cc
  DEPS entrain_flight_page entrain_comm nlohmann_json::nlohmann_json)
# Processes that hang, die or differ, and the page that names them.
include(${PROJECT_SOURCE_DIR}/tests/support/ranks.cmake)
entrain_test(flight_job_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/flight_job_test.cc
  DEPS entrain_ranks entrain_flight_page nlohmann_json::nlohmann_json LABELS multi TIMEOUT 180)
target_compile_definitions(flight_job_test PRIVATE ENTRAIN_PERF="$<TARGET_FILE:entrain-perf>")
add_dependencies(flight_job_test entrain-perf)
if(entrain_nvcc)
  add_dependencies(entrain_perf_test fake_cuda)
  target_compile_definitions(entrain_perf_test PRIVATE FAKE_CUDA_LIBRARY="$<TARGET_FILE:fake_cuda>")
endif()
