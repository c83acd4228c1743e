# kernel_bench measures the kernel tables. bench/CMakeLists.txt includes this file.
find_package(benchmark REQUIRED)
add_executable(kernel_bench ${CMAKE_CURRENT_LIST_DIR}/kernel_bench.cc)
target_link_libraries(kernel_bench PRIVATE entrain_kernels entrain_base benchmark::benchmark entrain_flags)
