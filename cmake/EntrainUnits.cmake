# How the project's targets are made: entrain_unit (a folder of the library), entrain_test, entrain_program.
include_guard()
include(GNUInstallDirs)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
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
if(ENTRAIN_SANITIZE)
  # vptr looks into type information, which the units are compiled without.
  target_compile_options(entrain_flags INTERFACE -fsanitize=${ENTRAIN_SANITIZE} -fno-sanitize=vptr
                         -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(entrain_flags INTERFACE -fsanitize=${ENTRAIN_SANITIZE})
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
          _ZN4absl7debian36Status15UnrefNonInlinedEm)
    target_link_options(entrain_flags INTERFACE LINKER:--wrap=${symbol})
  endforeach()
  # Also where only Abseil's own libraries lock.
  target_link_options(entrain_flags INTERFACE LINKER:--undefined=__wrap_${mutex}4LockEv)
endif()

# entrain_unit(NAME SOURCES a.cc ... DEPS entrain_base ... absl::status ...)
# One folder of the library: a static archive of position-independent objects. libentrain.so is made of all of them,
# tests link the ones they need.
function(entrain_unit name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(entrain_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(entrain_${name} PUBLIC ${ARG_DEPS} PRIVATE entrain_flags)
  target_include_directories(entrain_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(entrain_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions -fno-rtti>)
  set_target_properties(entrain_${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  set_property(GLOBAL APPEND PROPERTY ENTRAIN_UNITS entrain_${name})
endfunction()

# entrain_test(NAME SOURCES x_test.cc ... DEPS entrain_base ... LABELS unit|multi|slow|gpu TIMEOUT seconds [SERIAL])
# One GoogleTest program, run as one CTest test. Labels default to unit, the timeout to 60 s. SERIAL: it asserts times, so
# nothing else runs beside it.
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
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main entrain_flags)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ${ARG_SERIAL})
endfunction()
