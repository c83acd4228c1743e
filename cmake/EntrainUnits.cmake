# How the project's targets are made: entrain_unit (a folder of the library), entrain_test, entrain_test_library.
include_guard()
include(GNUInstallDirs)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Installed programs find the library beside them, wherever the prefix is moved to.
file(RELATIVE_PATH bin_to_lib /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${CMAKE_INSTALL_LIBDIR})
set(CMAKE_INSTALL_RPATH $ORIGIN/${bin_to_lib})
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# Warnings, sanitizers, arithmetic and the include root, for every target of ours.
add_library(entrain_flags INTERFACE)
target_include_directories(entrain_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(entrain_flags INTERFACE -Wall -Wextra -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wconversion>
                       $<$<BOOL:${ENTRAIN_WERROR}>:-Werror>)
# A product is rounded before it is added, on every machine: where it is one instruction to do both, as on Arm, compilers take that.
target_compile_options(entrain_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
# Lets ccache see which precompiled headers a file was compiled with.
target_compile_options(entrain_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
if(ENTRAIN_SANITIZE)
  # vptr looks into type information, which the units are compiled without.
  target_compile_options(entrain_flags INTERFACE -fsanitize=${ENTRAIN_SANITIZE} -fno-sanitize=vptr
                         -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(entrain_flags INTERFACE -fsanitize=${ENTRAIN_SANITIZE})
  # GCC finds faults that are none in what the sanitizers add; the other presets are compiled with these warnings.
  target_compile_options(entrain_flags INTERFACE
                         "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds;-Wno-maybe-uninitialized;-Wno-stringop-overflow>")
endif()
if(ENTRAIN_FUZZ)
  target_compile_options(entrain_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(ENTRAIN_SANITIZE MATCHES "thread")
  # GCC warns that the sanitizer does not see fences. Ours order wake-ups only; data is handed over by acquire and release.
  target_compile_options(entrain_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-tsan>)
  # Abseil's locks and counts, made visible to the sanitizer: see tsan_abseil.cc.
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
  # Also where only Abseil's own libraries lock.
  target_link_options(entrain_flags INTERFACE LINKER:--undefined=__wrap_${mutex}4LockEv)
endif()

# Precompiled headers, of the system only: the headers that most files include, and that cost most of their time. One set for each
# set of options that the compiler wants alike. A file must still include what it uses: CMAKE_DISABLE_PRECOMPILE_HEADERS=ON must
# build. A source with options of its own (-O3, -mavx2) sets SKIP_PRECOMPILE_HEADERS.
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
  # Programs as their libraries, so that both can use the same precompiled headers. Tests themselves need not be quick.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC $<$<NOT:$<CONFIG:Debug>>:-O1>>)
endfunction()

# entrain_unit(NAME SOURCES a.cc ... DEPS entrain_base ... absl::status ...)
# One folder of the library: a static archive of position-independent objects. libentrain.so is made of all of them,
# tests link the ones they need.
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
# One GoogleTest program, run as one CTest test. Labels default to unit, the timeout to 60 s. SERIAL: it asserts times, or
# its threads yield in loops, so nothing else runs beside it.
function(entrain_test name)
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  if(ENTRAIN_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 4")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest_main entrain_flags)
  entrain_test_options(${name})
  entrain_precompile(${name} test)
  add_test(NAME ${name} COMMAND ${name})
  # CTest begins with what costs most, so that no long test is left running alone at the end.
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT} RUN_SERIAL ${ARG_SERIAL})
endfunction()

# entrain_test_library(NAME SOURCES a.cc ... DEPS entrain_comm ...): what several tests share.
function(entrain_test_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE entrain_flags)
  entrain_test_options(${name})
  entrain_precompile(${name} test)
endfunction()
