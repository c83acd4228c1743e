# Shared by the simulations: a world of virtual processes in which the library's own code runs. Programs that
# link it replace these calls of the library (virtual_system.cc, virtual_transport.cc).
include_guard(GLOBAL)
entrain_test_library(entrain_sim
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/virtual_job.cc ${CMAKE_CURRENT_LIST_DIR}/virtual_store.cc ${CMAKE_CURRENT_LIST_DIR}/virtual_system.cc
          ${CMAKE_CURRENT_LIST_DIR}/virtual_transport.cc ${CMAKE_CURRENT_LIST_DIR}/virtual_world.cc
  DEPS entrain_comm)
foreach(call IN ITEMS
    clock_gettime close epoll_create1 epoll_ctl epoll_wait eventfd poll pthread_create pthread_detach pthread_setname_np pthread_sigmask read sched_yield syscall
    write
    _ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE _ZNSt6thread4joinEv
    _ZN7entrain11RandomBytesEPvm _ZN7entrain17TransportRegistryEv
    _ZN7entrain11ProcessName3OwnEv _ZNK7entrain11ProcessName6IsHereEv _ZNK7entrain11ProcessName8HasEndedEv)
  target_link_options(entrain_sim INTERFACE -Wl,--wrap=${call})
endforeach()
# No object refers to virtual_system.cc before the linker has read the archives that do.
target_link_options(entrain_sim INTERFACE -Wl,--undefined=__wrap_poll)
