# Both programs, as every MPI that was found starts them, and under the variables of other launchers.
if(TARGET entrain-train)
  set(mpiruns "")
  foreach(mpi IN LISTS ENTRAIN_MPIS)
    list(APPEND mpiruns "\"${ENTRAIN_MPIRUN_${mpi}}\"")
  endforeach()
  list(JOIN mpiruns "," mpiruns)
  entrain_test(launchers_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/launchers_test.cc
    DEPS absl::strings LABELS multi TIMEOUT 240)
  target_compile_definitions(launchers_test PRIVATE ENTRAIN_MPIRUNS=${mpiruns}
    ENTRAIN_PERF="$<TARGET_FILE:entrain-perf>" ENTRAIN_TRAIN="$<TARGET_FILE:entrain-train>")
  add_dependencies(launchers_test entrain-perf entrain-train)
endif()
