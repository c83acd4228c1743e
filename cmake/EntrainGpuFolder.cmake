# The target gpu-folder: programs, and the libraries they need but for glibc and the driver, in one folder that can be carried
# to a machine with a GPU and run there (tests/gpu.sh), whatever its distribution.
include_guard()

# entrain_for_gpu(TARGET [COMMAND arguments...]): the program goes into the folder, and gpu.sh runs it with these
# arguments; without COMMAND it is only there. What the program needs is found beside it.
function(entrain_for_gpu target)
  cmake_parse_arguments(ARG "" "" "COMMAND" ${ARGN})
  # RPATH and not RUNPATH: it holds for what the libraries need, too.
  set_target_properties(${target} PROPERTIES BUILD_RPATH "$ORIGIN/../lib")
  target_link_options(${target} PRIVATE LINKER:--disable-new-dtags)
  set_property(GLOBAL APPEND PROPERTY ENTRAIN_GPU_PROGRAMS ${target})
  if("COMMAND" IN_LIST ARGN)
    list(JOIN ARG_COMMAND " " arguments)
    set_property(GLOBAL APPEND_STRING PROPERTY ENTRAIN_GPU_COMMANDS "${target} ${arguments}\n")
  endif()
endfunction()

# Once all programs are known.
function(entrain_add_gpu_folder)
  get_property(programs GLOBAL PROPERTY ENTRAIN_GPU_PROGRAMS)
  get_property(commands GLOBAL PROPERTY ENTRAIN_GPU_COMMANDS)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/gpu-commands CONTENT "${commands}" @ONLY)
  set(files)
  foreach(program IN LISTS programs)
    list(APPEND files $<TARGET_FILE:${program}>)
  endforeach()
  add_custom_target(gpu-folder
    COMMAND ${CMAKE_COMMAND} "-DPROGRAMS=${files}" -DOUT=${PROJECT_BINARY_DIR}/gpu-folder
            -DCOMMANDS=${PROJECT_BINARY_DIR}/gpu-commands -DSCRIPT=${PROJECT_SOURCE_DIR}/tests/gpu.sh
            -P ${PROJECT_SOURCE_DIR}/cmake/gpu_folder.cmake
    DEPENDS ${programs}
    VERBATIM)
endfunction()
