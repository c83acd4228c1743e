# Debian packages (tools/setup.sh debs DIR): the files that are installed for them alone, and CPack's settings. A package is a
# component of the installation. The version has no Debian revision, because nobody else packages Entrain.
include_guard()

set(folder ${PROJECT_SOURCE_DIR}/packaging/debian)
set(work ${PROJECT_BINARY_DIR}/debian)
set(contact "Entrain maintainers <maintainers@entrain.invalid>")  # a placeholder until the project has an address

# entrain_deb(COMPONENT PACKAGE SECTION SUMMARY TEXT [DEPENDS component...]): names a package.
function(entrain_deb component package section summary text)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  string(TOUPPER ${component} name)
  set(about "Entrain is a collective-communication library for loosely synchronised\ntraining: replicas of a model train alone, and agree now and then.\n.\n")
  foreach(pair IN ITEMS "CPACK_DEBIAN_${name}_PACKAGE_NAME|${package}" "CPACK_DEBIAN_${name}_PACKAGE_SECTION|${section}"
          "CPACK_DEBIAN_${name}_DESCRIPTION|${summary}\n${about}${text}" "CPACK_COMPONENT_${name}_DEPENDS|${ARG_DEPENDS}")
    string(REGEX MATCH "^([^|]*)\\|(.*)$" _ "${pair}")
    set(${CMAKE_MATCH_1} "${CMAKE_MATCH_2}" PARENT_SCOPE)
  endforeach()
  set(CPACK_COMPONENTS_ALL ${CPACK_COMPONENTS_ALL} ${component} PARENT_SCOPE)
  set(documents ${CMAKE_INSTALL_DATADIR}/doc/${package})
  install(FILES ${folder}/copyright DESTINATION ${documents} COMPONENT ${component})
  install(FILES ${work}/changelog.gz DESTINATION ${documents} COMPONENT ${component})
  if(EXISTS ${folder}/${package}.overrides)
    install(FILES ${folder}/${package}.overrides DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides COMPONENT ${component} RENAME ${package})
  endif()
endfunction()

# The date of the changelog is SOURCE_DATE_EPOCH's, or today's.
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(${folder}/changelog.in ${work}/changelog @ONLY)
execute_process(COMMAND gzip -9nkf ${work}/changelog COMMAND_ERROR_IS_FATAL ANY)

set(CPACK_COMPONENTS_ALL "")
entrain_deb(library libentrain${PROJECT_VERSION_MAJOR} libs "collective communication for loosely synchronised training"
  "This package has the shared library, without support for device memory. UCX and\nlibcurl (for etcd) are loaded at run time where they are installed.")
entrain_deb(development libentrain-dev libdevel "collective communication for training - development files"
  "This package has the C headers, files for pkg-config and CMake, and examples." DEPENDS library)
entrain_deb(tools entrain-tools utils "collective communication for training - launcher and measurements"
  "This package has entrain-run, which starts ranks of a program on a machine, and\nentrain-perf, which measures collectives." DEPENDS library)
entrain_deb(trainer entrain-train science "collective communication for training - trainer of small models"
  "This package has entrain-train, which trains a small language model on CPUs by\nEDiT, DiLoCo, ACCO and other methods, so that they can be compared." DEPENDS library)
entrain_deb(python python3-entrain python "collective communication for training - Python package"
  "This package has the Python package entrain, for arrays of NumPy, PyTorch and\nJAX, with EDiT, A-EDiT and ACCO for PyTorch. entrain-top shows which rank waits\nfor which, and entrain-plan estimates what a method costs on a cluster." DEPENDS library)

# What is in packages only.
set(documents ${CMAKE_INSTALL_DATADIR}/doc)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/ DESTINATION ${documents}/libentrain-dev/examples COMPONENT development
        FILES_MATCHING PATTERN "0*.c" PATTERN "trainer" EXCLUDE PATTERN "python" EXCLUDE PATTERN "results" EXCLUDE PATTERN "kubernetes" EXCLUDE)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/python/ DESTINATION ${documents}/python3-entrain/examples COMPONENT python
        FILES_MATCHING PATTERN "0*.py")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/entrain DESTINATION lib/python3/dist-packages COMPONENT python
        FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
configure_file(${folder}/METADATA.in ${work}/METADATA @ONLY)
install(FILES ${work}/METADATA DESTINATION lib/python3/dist-packages/entrain-${PROJECT_VERSION}.dist-info COMPONENT python)
foreach(page IN ITEMS "entrain-top;show the ranks of this host, and who waits for whom" "entrain-plan;estimate what training methods cost on a cluster")
  list(GET page 0 program)
  list(GET page 1 description)
  install(PROGRAMS ${folder}/${program} DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT python)
  entrain_manual_page(${program} python ${description} ${folder}/${program} entrain)
endforeach()
# The programs contain header libraries, whose licences ask for their text.
foreach(library IN ITEMS libcli11-dev nlohmann-json3-dev)
  foreach(component IN ITEMS tools trainer)
    string(REPLACE trainer train package entrain-${component})
    install(FILES /usr/share/doc/${library}/copyright DESTINATION ${documents}/${package} COMPONENT ${component} RENAME copyright.${library})
  endforeach()
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME entrain)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${CMAKE_PROJECT_NAME} built using CMake")  # CPack's default, which it does not put above the texts
set(CPACK_PACKAGE_CONTACT ${contact})
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/debs_dates.cmake)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib/api)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${folder}/triggers)
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3 (>= 3.9), python3-cffi-backend, python3-numpy (>= 1:1.24)")
set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS entrain-tools)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SUGGESTS "python3-torch")
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA ${folder}/postinst ${folder}/prerm)
include(CPack)
