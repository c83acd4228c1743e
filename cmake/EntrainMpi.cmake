# Implementations of MPI: peers to measure against, and what 03_mpi_launch.c is compiled with. The library knows none of them.
# Each has an option: AUTO takes it where the packages are, ON insists on it. Of each one found, NAME is in ENTRAIN_MPIS, its
# headers and libraries are PkgConfig::NAME, and ENTRAIN_MPIRUN_NAME starts its programs.
find_package(PkgConfig QUIET)
set(ENTRAIN_MPIS "")
# MODULE: what pkg-config calls it; PACKAGES: Debian's; then names of its mpirun.
function(entrain_find_mpi option name module packages)
  if(${option} STREQUAL "OFF")
    return()
  endif()
  if(PkgConfig_FOUND)
    pkg_check_modules(${name} QUIET IMPORTED_TARGET GLOBAL ${module})
  endif()
  find_program(ENTRAIN_MPIRUN_${name} NAMES ${ARGN})
  if(TARGET PkgConfig::${name} AND ENTRAIN_MPIRUN_${name})
    list(APPEND ENTRAIN_MPIS ${name})
    set(ENTRAIN_MPIS "${ENTRAIN_MPIS}" PARENT_SCOPE)
  elseif(${option} STREQUAL "ON")
    message(FATAL_ERROR "${option} is ON, but ${name} (Debian: ${packages}) was not found")
  endif()
endfunction()
entrain_find_mpi(ENTRAIN_OPENMPI openmpi ompi-c "libopenmpi-dev openmpi-bin" mpirun.openmpi)
entrain_find_mpi(ENTRAIN_MPICH mpich mpich "libmpich-dev mpich" mpiexec.mpich)
