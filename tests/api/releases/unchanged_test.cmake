# Checks that the ABI of a frozen version does not grow: apart from comments and the version, the headers of x.y.z equal those of
# the release x.y.0, and so do the exported functions:
#   cmake -DROOT=repository -DRELEASE=folder of x.y.0 -P ...
cmake_minimum_required(VERSION 3.25)
if(NOT EXISTS ${RELEASE})
  message("skipped: ${RELEASE} does not exist; tests/api/releases/freeze.sh makes it before the release")
  return()
endif()

# declarations(OUT FILE): the text of a header without comments, versions and line breaks, which may change.
function(declarations out file)
  file(READ ${file} text)
  string(REGEX REPLACE "/\\*([^*]|\\*+[^*/])*\\*+/" " " text "${text}")
  string(REGEX REPLACE "#define ENTRAIN_VERSION_[A-Z]+ [^\n]*" " " text "${text}")
  string(REGEX REPLACE "[ \t\r\n]+" " " text "${text}")
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

file(GLOB now RELATIVE ${ROOT}/include/entrain ${ROOT}/include/entrain/*.h)
file(GLOB then RELATIVE ${RELEASE}/entrain ${RELEASE}/entrain/*.h)
if(NOT now STREQUAL then)
  message(FATAL_ERROR "headers: ${now}\nof the release: ${then}")
endif()
foreach(header IN LISTS now)
  declarations(today ${ROOT}/include/entrain/${header})
  declarations(frozen ${RELEASE}/entrain/${header})
  if(NOT today STREQUAL frozen)
    message(FATAL_ERROR "include/entrain/${header} declares other things than ${RELEASE}/entrain/${header}. The ABI of a "
                        "release does not change: raise the minor version in CMakeLists.txt (docs/versions.md)")
  endif()
endforeach()
file(READ ${ROOT}/tests/api/exported_symbols.txt today)
file(READ ${RELEASE}/exported_symbols.txt frozen)
if(NOT today STREQUAL frozen)
  message(FATAL_ERROR "tests/api/exported_symbols.txt differs from ${RELEASE}/exported_symbols.txt")
endif()
