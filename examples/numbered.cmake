# The numbered examples: strict C99, nothing but the public headers and the library.
foreach(name IN ITEMS 01_all_reduce 02_overlap 04_edit 05_acco)
  add_executable(example_${name} ${CMAKE_CURRENT_LIST_DIR}/${name}.c)
  target_link_libraries(example_${name} PRIVATE entrain m)
  target_compile_options(example_${name} PRIVATE -Wall -Wextra -Wpedantic -Wshadow $<$<BOOL:${ENTRAIN_WERROR}>:-Werror>)
  if(ENTRAIN_SANITIZE)
    target_link_options(example_${name} PRIVATE -fsanitize=${ENTRAIN_SANITIZE})
  endif()
endforeach()
