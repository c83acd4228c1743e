# ENTRAIN_DEVICE: AUTO builds the code for devices if nvcc is installed; ON requires nvcc. The build needs the CUDA toolkit,
# but no driver and no device. No library of CUDA is linked. Sets entrain_nvcc (empty: no code for devices),
# entrain_cuda_include, and cuda_state for the summary.
include_guard()

set(entrain_nvcc "")
set(cuda_state "off")
if(NOT ENTRAIN_DEVICE STREQUAL "OFF")
  find_program(ENTRAIN_NVCC nvcc
    HINTS "$ENV{CUDACXX}" "${CMAKE_CUDA_COMPILER}" "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin"
          "${CUDAToolkit_ROOT}/bin" /usr/local/cuda/bin
    DOC "The CUDA compiler")
  # CUDACXX and CMAKE_CUDA_COMPILER may name the compiler itself.
  foreach(named IN ITEMS "$ENV{CUDACXX}" "${CMAKE_CUDA_COMPILER}")
    if(NOT ENTRAIN_NVCC AND EXISTS "${named}")
      set(ENTRAIN_NVCC "${named}" CACHE FILEPATH "The CUDA compiler" FORCE)
    endif()
  endforeach()
  set(reason "no nvcc found")
  if(ENTRAIN_NVCC)
    execute_process(COMMAND ${ENTRAIN_NVCC} --list-gpu-code OUTPUT_VARIABLE codes RESULT_VARIABLE failed ERROR_QUIET)
    file(REAL_PATH ${ENTRAIN_NVCC} compiler)
    cmake_path(GET compiler PARENT_PATH toolkit)
    cmake_path(GET toolkit PARENT_PATH toolkit)
    find_path(ENTRAIN_CUDA_INCLUDE cuda.h
      HINTS ${toolkit}/include ${toolkit}/targets/${CMAKE_SYSTEM_PROCESSOR}-linux/include NO_DEFAULT_PATH)
    if(failed OR NOT codes MATCHES "sm_100")
      set(reason "${ENTRAIN_NVCC} does not know sm_100 (12.8 does)")
    elseif(NOT ENTRAIN_CUDA_INCLUDE)
      set(reason "no cuda.h beside ${ENTRAIN_NVCC}")
    else()
      set(entrain_nvcc ${ENTRAIN_NVCC})
      set(entrain_cuda_include ${ENTRAIN_CUDA_INCLUDE})
    endif()
  endif()
  if(entrain_nvcc)
    set(cuda_state "${entrain_nvcc}")
    enable_language(ASM)
  elseif(ENTRAIN_DEVICE STREQUAL "ON")
    message(FATAL_ERROR "ENTRAIN_DEVICE is ON, but ${reason}")
  else()
    set(cuda_state "${reason}")
  endif()
endif()

set(ENTRAIN_CUDA_ARCHITECTURES "80;90;100" CACHE STRING "Architectures that CUDA kernels are compiled for, and as PTX for later ones")
set(entrain_gencode)
foreach(arch IN LISTS ENTRAIN_CUDA_ARCHITECTURES)
  list(APPEND entrain_gencode -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
list(GET ENTRAIN_CUDA_ARCHITECTURES -1 latest)
list(APPEND entrain_gencode -gencode arch=compute_${latest},code=compute_${latest})

# entrain_cuda_image(IMAGE SOURCE HEADERS...): compiles all kernels of SOURCE into one file for all architectures, with PTX for
# later architectures. A program or library contains this file as data. -fmad=false: a product is rounded before it is added,
# as in all code of the library. Equal bits also need rounded quotients and roots, and subnormal numbers, which are nvcc's
# defaults.
function(entrain_cuda_image image source)
  add_custom_command(
    OUTPUT ${image}
    COMMAND ${entrain_nvcc} -fatbin -std=c++20 -O3 -fmad=false --compress-mode=size -ccbin ${CMAKE_CXX_COMPILER}
            -I${PROJECT_SOURCE_DIR}
            ${entrain_gencode}
            -o ${image} ${source}
    DEPENDS ${source} ${ARGN}
    COMMENT "Compiling CUDA kernels"
    VERBATIM)
endfunction()
