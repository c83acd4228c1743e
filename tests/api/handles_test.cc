// Invalid handles: of another kind, destroyed, or destroyed twice. Those that can be recognised are
// refused with an error text.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

// A sanitizer would report the reading of freed memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class Handles : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(entrain_store_open(NewStoreUrl().c_str(), 0, &store_));
    comm_ = NewComm();
    entrain_optim_config_t config;
    entrain_optim_config_init(&config);
    ASSERT_OK(entrain_optim_create(&config, &optim_));
  }
  void TearDown() override {
    entrain_optim_destroy(optim_);
    entrain_comm_destroy(comm_);
    entrain_store_destroy(store_);
  }
  entrain_comm_t* NewComm() {
    static int made = 0;
    const std::string name = "handles" + std::to_string(made++);
    entrain_comm_config_t config;
    entrain_comm_config_init(&config);
    config.store = store_;
    config.name = name.c_str();
    entrain_comm_t* comm = nullptr;
    EXPECT_OK(entrain_comm_create(&config, &comm));
    return comm;
  }
  template <typename To>
  To* StoreAs() const {
    return reinterpret_cast<To*>(store_);
  }

  entrain_store_t* store_ = nullptr;
  entrain_comm_t* comm_ = nullptr;
  entrain_optim_t* optim_ = nullptr;
};

TEST_F(Handles, OfAnotherKindAreRefusedByEveryFamily) {
  int32_t number = 0;
  size_t count = 0;
  void* pointer = nullptr;
  float value[1] = {1};
  entrain_peer_id_t id;
  entrain_error_t error;
  entrain_error_init(&error);
  entrain_call_options_t options;
  entrain_call_options_init(&options);
  options.reduction = StoreAs<entrain_reduction_t>();
  entrain_call_options_t batched;
  entrain_call_options_init(&batched);
  batched.batch = StoreAs<entrain_batch_t>();
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.store = reinterpret_cast<entrain_store_t*>(comm_);
  entrain_comm_t* made = nullptr;
  entrain_optim_config_t wsam_config;
  entrain_optim_config_init(&wsam_config);
  wsam_config.kind = ENTRAIN_OPTIM_WSAM;
  wsam_config.base = StoreAs<entrain_optim_t>();
  entrain_optim_t* wsam = nullptr;

  EXPECT_FAILS(entrain_runtime_peer_id(StoreAs<entrain_runtime_t>(), &id), ENTRAIN_INVALID_ARGUMENT,
               "runtime is a store, not a runtime");
  EXPECT_FAILS(entrain_comm_rank(StoreAs<entrain_comm_t>(), &number), ENTRAIN_INVALID_ARGUMENT,
               "comm is a store, not a communicator");
  EXPECT_FAILS(entrain_barrier(StoreAs<entrain_comm_t>(), nullptr, nullptr),
               ENTRAIN_INVALID_ARGUMENT, "comm is a store, not a communicator");
  EXPECT_FAILS(entrain_work_test(StoreAs<entrain_work_t>(), &number), ENTRAIN_INVALID_ARGUMENT,
               "work is not a work");
  EXPECT_FAILS(entrain_work_wait(StoreAs<entrain_work_t>(), 0), ENTRAIN_INVALID_ARGUMENT,
               "work is not a work");
  EXPECT_FAILS(
      entrain_all_reduce(comm_, value, value, 1, ENTRAIN_F32, ENTRAIN_REDUCTION, &options, nullptr),
      ENTRAIN_INVALID_ARGUMENT, "options.reduction is a store, not a reduction");
  EXPECT_FAILS(entrain_barrier(comm_, &batched, nullptr), ENTRAIN_INVALID_ARGUMENT,
               "options.batch is a store, not a batch");
  EXPECT_FAILS(entrain_comm_create(&config, &made), ENTRAIN_INVALID_ARGUMENT,
               "config.store is a communicator, not a store");
  EXPECT_FAILS(entrain_optim_state_arrays(StoreAs<entrain_optim_t>(), &number),
               ENTRAIN_INVALID_ARGUMENT, "optim is a store, not an optimizer");
  EXPECT_FAILS(entrain_optim_create(&wsam_config, &wsam), ENTRAIN_INVALID_ARGUMENT, "is a store");
  EXPECT_FAILS(entrain_mesh_coordinate(StoreAs<entrain_mesh_t>(), 0, &number, &number),
               ENTRAIN_INVALID_ARGUMENT, "mesh is a store, not a mesh");
  EXPECT_FAILS(entrain_shard_slab_count(StoreAs<entrain_shard_t>(), &count),
               ENTRAIN_INVALID_ARGUMENT, "shard is a store, not a shard object");
  EXPECT_FAILS(entrain_edit_end_step(StoreAs<entrain_edit_t>()), ENTRAIN_INVALID_ARGUMENT,
               "edit is a store, not an EDiT object");
  EXPECT_FAILS(entrain_acco_gradients(StoreAs<entrain_acco_t>(), &pointer),
               ENTRAIN_INVALID_ARGUMENT, "acco is a store, not an ACCO channel");
  EXPECT_FAILS(entrain_state_count(StoreAs<entrain_state_t>(), &count), ENTRAIN_INVALID_ARGUMENT,
               "state is a store, not a state");
  EXPECT_OK(entrain_barrier(comm_, nullptr, nullptr)) << "a refused call did harm";
}

TEST_F(Handles, APointerToSomethingElseIsRefused) {
  alignas(16) char text[64] = "no handle at all, but a text of some length";
  int32_t rank = 0;
  EXPECT_FAILS(entrain_comm_rank(reinterpret_cast<entrain_comm_t*>(text), &rank),
               ENTRAIN_INVALID_ARGUMENT, "comm is not a communicator");
  EXPECT_FAILS(entrain_comm_rank(reinterpret_cast<entrain_comm_t*>(text + 1), &rank),
               ENTRAIN_INVALID_ARGUMENT, "comm is not a communicator");
}

TEST_F(Handles, AStoresUrlIsEmptyForWhatIsNoStore) {
  alignas(16) char text[64] = "no handle at all, but a text of some length";
  EXPECT_STREQ(entrain_store_url(nullptr), "");
  EXPECT_STREQ(entrain_store_url(reinterpret_cast<entrain_store_t*>(comm_)), "");
  EXPECT_STREQ(entrain_store_url(reinterpret_cast<entrain_store_t*>(text)), "");
  EXPECT_STREQ(entrain_store_url(reinterpret_cast<entrain_store_t*>(text + 1)), "");
  EXPECT_THAT(entrain_store_url(store_), testing::StartsWith("mem:"));
}

TEST_F(Handles, DestroyLeavesWhatIsOfAnotherKindAlone) {
  entrain_runtime_destroy(StoreAs<entrain_runtime_t>());
  entrain_comm_destroy(StoreAs<entrain_comm_t>());
  entrain_work_free(StoreAs<entrain_work_t>());
  entrain_reduction_destroy(StoreAs<entrain_reduction_t>());
  entrain_batch_destroy(StoreAs<entrain_batch_t>());
  entrain_optim_destroy(StoreAs<entrain_optim_t>());
  entrain_mesh_destroy(StoreAs<entrain_mesh_t>());
  entrain_shard_destroy(StoreAs<entrain_shard_t>());
  entrain_edit_destroy(StoreAs<entrain_edit_t>());
  entrain_acco_destroy(StoreAs<entrain_acco_t>());
  entrain_state_destroy(StoreAs<entrain_state_t>());
  int64_t sum = 0;
  EXPECT_OK(entrain_store_add(store_, "still here", 1, &sum));
  EXPECT_EQ(sum, 1);
}

TEST_F(Handles, WhatWasDestroyedIsRefused) {
  if (kSanitized) {
    GTEST_SKIP() << "the sanitizer reports it first";
  }
  entrain_comm_t* const comm = NewComm();
  entrain_comm_destroy(comm);
  int32_t rank = 0;
  EXPECT_FAILS(entrain_comm_rank(comm, &rank), ENTRAIN_INVALID_ARGUMENT,
               "comm is not a communicator: it was destroyed, or never was one");
  entrain_comm_destroy(comm);  // has no effect
  EXPECT_OK(entrain_barrier(comm_, nullptr, nullptr));
}

}  // namespace
}  // namespace entrain_test
