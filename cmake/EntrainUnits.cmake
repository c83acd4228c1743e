# Functions that make the project's targets: entrain_unit (a folder of the library), entrain_test, entrain_test_library.
include_guard()
include(GNUInstallDirs)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Installed programs find the library relative to their own path, so that an installed tree can be moved.
file(RELATIVE_PATH bin_to_lib /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${CMAKE_INSTALL_LIBDIR})
set(CMAKE_INSTALL_RPATH $ORIGIN/${bin_to_lib})
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# The warnings, sanitizers, rules of arithmetic and include root of all targets of this project.
add_library(entrain_flags INTERFACE)
target_include_directories(entrain_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(entrain_flags INTERFACE -Wall -Wextra -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wconversion>
                       $<$<BOOL:${ENTRAIN_WERROR}>:-Werror>)
# A product must be rounded before it is added, on every machine. Without this option, compilers use fused multiply-add if the
# machine has it, for example on Arm.
target_compile_options(entrain_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
# Lets ccache see which precompiled headers a file was compiled with.
target_compile_options(entrain_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
set(entrain_time_factor 1)  # of the time limits of tests
if(ENTRAIN_SANITIZE)
  set(entrain_time_factor 4)
  # The check vptr needs type information, but the units are compiled without it (-fno-rtti).
  target_compile_options(entrain_flags INTERFACE -fsanitize=${ENTRAIN_SANITIZE} -fno-sanitize=vptr
                         -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(entrain_flags INTERFACE -fsanitize=${ENTRAIN_SANITIZE})
  # GCC gives these warnings falsely, for code that the sanitizers add. Builds without sanitizers keep the warnings.
  target_compile_options(entrain_flags INTERFACE
                         "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds;-Wno-maybe-uninitialized;-Wno-stringop-overflow;-Wno-stringop-overread>")
endif()
if(ENTRAIN_FUZZ)
  target_compile_options(entrain_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(ENTRAIN_SANITIZE MATCHES "thread")
  # GCC warns that the sanitizer does not see fences. The library's fences only order wake-ups. Data is passed between threads by
  # acquire and release, which the sanitizer sees.
  target_compile_options(entrain_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-tsan>)
  # Makes Abseil's locks and reference counts visible to the sanitizer: see tsan_abseil.cc.
  find_package(absl REQUIRED)
  add_library(entrain_tsan_abseil STATIC ${CMAKE_CURRENT_LIST_DIR}/tsan_abseil.cc)
  target_link_libraries(entrain_tsan_abseil PUBLIC absl::status absl::synchronization)
  target_link_libraries(entrain_flags INTERFACE entrain_tsan_abseil)
  set(mutex _ZN4absl7debian35Mutex)
  set(notification absl7debian312Notification)
  foreach(symbol IN ITEMS ${mutex}4LockEv ${mutex}6UnlockEv ${mutex}7TryLockEv ${mutex}10ReaderLockEv
          ${mutex}12ReaderUnlockEv ${mutex}5AwaitERKNS0_9ConditionE
          ${mutex}16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE _ZN4${notification}6NotifyEv
          _ZNK4${notification}19WaitForNotificationEv
          _ZNK4${notification}30WaitForNotificationWithTimeoutENS0_8DurationE
          _ZNK4${notification}31WaitForNotificationWithDeadlineENS0_4TimeE
          _ZN4absl7debian36Status15UnrefNonInlinedEm)
    target_link_options(entrain_flags INTERFACE LINKER:--wrap=${symbol})
  endforeach()
  # Links tsan_abseil.cc also into programs in which only Abseil's own libraries use locks.
  target_link_options(entrain_flags INTERFACE LINKER:--undefined=__wrap_${mutex}4LockEv)
endif()

# Precompiled headers: system headers that most files include, and that take long to compile. Files that share precompiled headers
# must have equal compiler options. So units have one set of headers, and tests have another. A file must still include what it
# uses, because the build must work with CMAKE_DISABLE_PRECOMPILE_HEADERS=ON too. A source with options of its own (-O3, -mavx2)
# must set SKIP_PRECOMPILE_HEADERS.
set(entrain_common_headers
  <algorithm> <array> <atomic> <chrono> <cmath> <cstddef> <cstdint> <cstdio> <cstdlib> <cstring> <deque> <fstream> <functional>
  <limits> <map> <memory> <mutex> <numeric> <optional> <random> <set> <string> <thread> <tuple> <utility> <vector>
  <absl/status/status.h> <absl/strings/match.h> <absl/strings/str_cat.h> <absl/strings/str_join.h> <absl/strings/str_split.h>
  <absl/strings/string_view.h>)
set(entrain_unit_headers ${entrain_common_headers}
  <absl/base/thread_annotations.h> <absl/container/flat_hash_map.h> <absl/functional/any_invocable.h>
  <absl/functional/function_ref.h> <absl/status/statusor.h> <absl/strings/numbers.h> <absl/strings/str_format.h>
  <absl/synchronization/mutex.h> <absl/types/span.h>)
set(entrain_test_headers ${entrain_common_headers}
  <barrier> <filesystem> <iterator> <absl/synchronization/notification.h> <gmock/gmock.h> <gtest/gtest.h>)

# Gives a target the precompiled headers of a KIND: unit or test.
function(entrain_precompile target kind)
  if(NOT TARGET entrain_${kind}_headers)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled/${kind}.cc CONTENT "// Only the precompiled headers of this target matter.\n")
    add_library(entrain_${kind}_headers OBJECT ${PROJECT_BINARY_DIR}/precompiled/${kind}.cc)
    target_link_libraries(entrain_${kind}_headers PRIVATE entrain_flags)
    cmake_language(CALL entrain_${kind}_options entrain_${kind}_headers)
    target_precompile_headers(entrain_${kind}_headers PRIVATE ${entrain_${kind}_headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM entrain_${kind}_headers)
endfunction()

function(entrain_unit_options target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions -fno-rtti>)
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

function(entrain_test_options target)
  find_package(GTest REQUIRED)
  target_link_libraries(${target} PRIVATE GTest::gmock GTest::gtest)
  # Test programs have the options of test libraries (-fPIC), so that both can use the same precompiled headers. -O1 is enough,
  # because the code of tests need not be fast.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC $<$<NOT:$<CONFIG:Debug>>:-O1>>)
endfunction()

# entrain_unit(NAME SOURCES a.cc ... DEPS entrain_base ... absl::status ...)
# One folder of the library: a static archive of position-independent objects. libentrain.so consists of all archives. A test
# links the archives that it needs.
function(entrain_unit name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(entrain_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(entrain_${name} PUBLIC ${ARG_DEPS} PRIVATE entrain_flags)
  target_include_directories(entrain_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  entrain_unit_options(entrain_${name})
  entrain_precompile(entrain_${name} unit)
  set_property(GLOBAL APPEND PROPERTY ENTRAIN_UNITS entrain_${name})
endfunction()

# entrain_test(NAME SOURCES x_test.cc ... DEPS entrain_base ... LABELS unit|multi|slow|gpu TIMEOUT seconds [SERIAL])
# One GoogleTest program, which runs as one CTest test. Labels default to unit, the timeout to 60 s. SERIAL: no other test runs at
# the same time. A test needs SERIAL if it checks times, or if its threads yield in loops.
function(entrain_test name)
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * ${entrain_time_factor}")
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest_main entrain_flags)
  entrain_test_options(${name})
  entrain_precompile(${name} test)
  add_test(NAME ${name} COMMAND ${name})
  # CTest begins with the tests of the highest cost, so that no long test runs alone at the end.
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT} RUN_SERIAL ${ARG_SERIAL})
endfunction()

# entrain_test_objects(NAME SOURCES x_test.cc ... DEPS ...): tests that several programs contain. A program names them in its
# SOURCES by $<TARGET_OBJECTS:NAME>.
function(entrain_test_objects name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} OBJECT ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} entrain_flags)
  entrain_test_options(${name})
  entrain_precompile(${name} test)
endfunction()

# entrain_test_library(NAME SOURCES a.cc ... DEPS entrain_comm ...): code that several tests share.
function(entrain_test_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE entrain_flags)
  entrain_test_options(${name})
  entrain_precompile(${name} test)
endfunction()
