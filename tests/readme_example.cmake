# Compiles the first ```c block of README.md as strict C99 and runs it, alone and as four ranks:
#   cmake -DROOT=... -DWORK=folder -DCC=compiler -DSANITIZE=... -DLIBRARY=libentrain.so -DRUN=entrain-run -P ...
cmake_minimum_required(VERSION 3.25)

function(run_or_fail what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE log ERROR_VARIABLE log TIMEOUT 40)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${what} ended with ${code}:\n${log}")
  endif()
  message(STATUS "${what}:\n${log}")
endfunction()

file(READ ${ROOT}/README.md text)
string(FIND "${text}" "```c\n" start)
if(start EQUAL -1)
  message(FATAL_ERROR "README.md has no ```c block")
endif()
math(EXPR start "${start} + 5")
string(SUBSTRING "${text}" ${start} -1 text)
string(FIND "${text}" "```" end)
string(SUBSTRING "${text}" 0 ${end} text)
file(MAKE_DIRECTORY ${WORK})
file(WRITE ${WORK}/readme_example.c "${text}")

cmake_path(GET LIBRARY PARENT_PATH library_dir)
set(flags -std=c99 -Wall -Wextra -Wpedantic -Werror)
if(SANITIZE)
  list(APPEND flags -fsanitize=${SANITIZE})
endif()
run_or_fail("compiling the example of README.md" ${CC} ${flags} -I${ROOT}/include ${WORK}/readme_example.c
            -o ${WORK}/readme_example -L${library_dir} -lentrain -Wl,-rpath,${library_dir})
run_or_fail("one rank" ${WORK}/readme_example)
run_or_fail("four ranks" ${RUN} -n 4 ${WORK}/readme_example)
