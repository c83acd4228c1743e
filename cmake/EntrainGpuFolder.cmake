# The target gpu-folder makes one folder with programs and the libraries that they need, except glibc and the driver. The
# folder can be copied to a machine with a GPU and any Linux distribution. tests/gpu.sh runs the programs there.
include_guard()

# entrain_for_gpu(TARGET [COMMAND arguments...]): puts the program into the folder. With COMMAND, gpu.sh runs the program with
# these arguments. The program finds its libraries in the folder.
function(entrain_for_gpu target)
  cmake_parse_arguments(ARG "" "" "COMMAND" ${ARGN})
  # Sets RPATH instead of RUNPATH, because RPATH also applies to the libraries that a library needs.
  set_target_properties(${target} PROPERTIES BUILD_RPATH "$ORIGIN/../lib")
  target_link_options(${target} PRIVATE LINKER:--disable-new-dtags)
  set_property(GLOBAL APPEND PROPERTY ENTRAIN_GPU_PROGRAMS ${target})
  if("COMMAND" IN_LIST ARGN)
    list(JOIN ARG_COMMAND " " arguments)
    set_property(GLOBAL APPEND_STRING PROPERTY ENTRAIN_GPU_COMMANDS "${target} ${arguments}\n")
  endif()
endfunction()

# Must be called once, after all calls of entrain_for_gpu.
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
