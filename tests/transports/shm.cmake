entrain_test(byte_ring_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/byte_ring_test.cc
  DEPS absl::strings absl::span)
entrain_test(shm_segment_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/shm_segment_test.cc
  DEPS entrain_transports_shm absl::strings)
entrain_test(shm_ways_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/shm_ways_test.cc
  DEPS entrain_transports_shm)
entrain_test(shm_transfers_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/shm_transfers_test.cc
  DEPS entrain_transports_shm)
entrain_test(shm_process_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/shm_process_test.cc
  DEPS entrain_transports_shm absl::strings
  LABELS multi TIMEOUT 120 SERIAL)
entrain_test(shm_hostile_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/shm_hostile_test.cc
  DEPS entrain_transports_shm absl::strings
  LABELS multi)
