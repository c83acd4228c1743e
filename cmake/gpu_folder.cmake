# cmake -DPROGRAMS="a;b" -DCOMMANDS=FILE -DSCRIPT=FILE -DOUT=FOLDER -P gpu_folder.cmake: see EntrainGpuFolder.cmake.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${OUT})
file(COPY ${PROGRAMS} DESTINATION ${OUT}/bin)
file(COPY ${SCRIPT} ${COMMANDS} DESTINATION ${OUT})
file(GET_RUNTIME_DEPENDENCIES
  EXECUTABLES ${PROGRAMS}
  RESOLVED_DEPENDENCIES_VAR libraries
  UNRESOLVED_DEPENDENCIES_VAR missing
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|util)\\.so" "^libcuda\\.so" "^libnvidia")
if(missing)
  message(FATAL_ERROR "libraries that are nowhere: ${missing}")
endif()
foreach(library IN LISTS libraries)
  file(COPY ${library} DESTINATION ${OUT}/lib FOLLOW_SYMLINK_CHAIN)
endforeach()
list(LENGTH PROGRAMS programs)
list(LENGTH libraries count)
message(STATUS "${OUT}: ${programs} programs, ${count} libraries")
