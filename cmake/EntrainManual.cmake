# Manual pages, made from --help by help2man, and completion for bash and zsh. help2man runs the programs, so a build for another
# machine has no pages.
include_guard()

find_program(ENTRAIN_HELP2MAN help2man)
add_custom_target(manual) # all pages
set(zsh_folder site-functions)
if(ENTRAIN_DEBS)
  set(zsh_folder vendor-completions)
endif()

# entrain_manual_page(PROGRAM COMPONENT DESCRIPTION COMMAND DEPENDS...): makes and installs the page of what COMMAND starts. A program in
# Python finds the package and the library of this build.
function(entrain_manual_page program component description command)
  if(NOT ENTRAIN_HELP2MAN OR CMAKE_CROSSCOMPILING OR ENTRAIN_SANITIZE)
    return()
  endif()
  set(page ${PROJECT_BINARY_DIR}/man/${program}.1.gz)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/man)
  set(script ${PROJECT_SOURCE_DIR}/packaging/manual.sh)
  add_custom_command(OUTPUT ${page} DEPENDS ${ARGN} ${script} VERBATIM
    COMMAND ${CMAKE_COMMAND} -E env PYTHONPATH=${PROJECT_SOURCE_DIR}/python PYTHONDONTWRITEBYTECODE=1 COLUMNS=80
            ENTRAIN_LIBRARY=$<TARGET_FILE:entrain> ${script} ${command} ${PROJECT_VERSION} ${description} > ${page})
  add_custom_target(manual-${program} ALL DEPENDS ${page})
  add_dependencies(manual manual-${program})
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${component} OPTIONAL)
endfunction()

# entrain_manual(PROGRAM COMPONENT DESCRIPTION)
function(entrain_manual program component description)
  if(NOT TARGET ${program})
    return()
  endif()
  set(shells ${PROJECT_SOURCE_DIR}/packaging)
  install(FILES ${shells}/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
          COMPONENT ${component} RENAME ${program})
  install(FILES ${shells}/completion.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/${zsh_folder}
          COMPONENT ${component} RENAME _${program})
  entrain_manual_page(${program} ${component} ${description} $<TARGET_FILE:${program}> ${program})
endfunction()

entrain_manual(entrain-run tools "start ranks of a program on this machine")
entrain_manual(entrain-perf tools "measure the collectives of Entrain")
entrain_manual(entrain-train trainer "train a small model over Entrain")
