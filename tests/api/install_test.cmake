# Installs the build into a fresh tree, moves it, builds and runs the consumer against it through find_package and
# through pkg-config, and starts every program that was installed:
#   cmake -DBUILD=build -DCONSUMER=folder -DWORK=folder -DCC=compiler -DSANITIZE=... -DLIBDIR=lib -DVERSION=1.0.0
#         -DREADELF=readelf -P ...
cmake_minimum_required(VERSION 3.25)

function(run_or_fail what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE log ERROR_VARIABLE log)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${what} ended with ${code}:\n${log}")
  endif()
  set(log "${log}" PARENT_SCOPE)
endfunction()

function(expect_version program)
  run_or_fail(${program} ${CMAKE_COMMAND} -E env --unset=RANK --unset=ENTRAIN_STORE ${program})
  string(REPLACE "." ";" parts ${VERSION})
  list(GET parts 0 major)
  list(GET parts 1 minor)
  list(GET parts 2 patch)
  math(EXPR number "${major} * 10000 + ${minor} * 100 + ${patch}")
  if(NOT log MATCHES "entrain ${number}")
    message(FATAL_ERROR "${program} printed ${log}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
run_or_fail("cmake --install" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/moved)
set(prefix ${WORK}/moved)
set(flags)
if(SANITIZE)
  set(flags -fsanitize=${SANITIZE})
endif()

run_or_fail("configuring the consumer" ${CMAKE_COMMAND} -G Ninja -S ${CONSUMER} -B ${WORK}/build
            -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_C_COMPILER=${CC} -DCMAKE_C_FLAGS=${flags})
run_or_fail("building the consumer" ${CMAKE_COMMAND} --build ${WORK}/build)
expect_version(${WORK}/build/consumer)

# find_package must accept this major version, and no newer minor version.
string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" version ${VERSION})
set(major ${CMAKE_MATCH_1})
math(EXPR next_major "${major} + 1")
math(EXPR next_minor "${CMAKE_MATCH_2} + 1")
foreach(wanted IN ITEMS ${next_major}.0 ${major}.${next_minor} 0.9)
  file(WRITE ${WORK}/wants/CMakeLists.txt
       "cmake_minimum_required(VERSION 3.25)\nproject(wants LANGUAGES NONE)\nfind_package(entrain ${wanted} REQUIRED)\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${WORK}/wants -B ${WORK}/wants/build -DCMAKE_PREFIX_PATH=${prefix}
                  RESULT_VARIABLE code OUTPUT_VARIABLE log ERROR_VARIABLE log)
  if(code EQUAL 0 OR NOT log MATCHES "entrainConfig.cmake, version: ${VERSION}")
    message(FATAL_ERROR "find_package(entrain ${wanted}) was not refused because of the version ${VERSION}:\n${log}")
  endif()
endforeach()
run_or_fail("readelf" ${READELF} -d ${prefix}/${LIBDIR}/libentrain.so)
if(NOT log MATCHES "soname: \\[libentrain\\.so\\.${major}\\]")
  message(FATAL_ERROR "libentrain.so has another SONAME than libentrain.so.${major}:\n${log}")
endif()

set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
run_or_fail("pkg-config" pkg-config --cflags --libs entrain)
separate_arguments(options UNIX_COMMAND "${log}")
run_or_fail("compiling with pkg-config's flags" ${CC} -std=c99 ${flags} ${CONSUMER}/consumer.c ${options} -o ${WORK}/consumer)
expect_version(${WORK}/consumer)

# The installed programs start from the moved tree.
file(GLOB programs ${prefix}/bin/*)
list(LENGTH programs count)
if(count LESS 2)
  message(FATAL_ERROR "${prefix}/bin has ${programs}")
endif()
foreach(program IN LISTS programs)
  run_or_fail("${program} --help" ${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${program} --help)
endforeach()
run_or_fail("two ranks" ${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${prefix}/bin/entrain-run -n 2 ${WORK}/consumer)
