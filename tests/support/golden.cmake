# The numbers of tests/testdata, and the unit that reads them.
if(NOT TARGET entrain_golden)
  add_library(entrain_golden INTERFACE)
  target_compile_definitions(entrain_golden INTERFACE
                             ENTRAIN_TESTDATA="${PROJECT_SOURCE_DIR}/tests/testdata")
  target_link_libraries(entrain_golden INTERFACE nlohmann_json::nlohmann_json)
endif()
