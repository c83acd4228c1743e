# Finds implementations of MPI. bench/ compares the library with them, and examples/03_mpi_launch.c is compiled with them. The
# library itself does not depend on MPI. Each implementation has an option: AUTO uses the implementation if its packages are
# installed; ON requires the packages. If the implementation NAME is found, ENTRAIN_MPIS contains NAME, PkgConfig::NAME has its
# headers and libraries, and ENTRAIN_MPIRUN_NAME starts its programs.
find_package(PkgConfig QUIET)
set(ENTRAIN_MPIS "")
# `module`: the implementation's name in pkg-config. `packages`: its packages in Debian. The other arguments are the names of
# its mpirun.
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
