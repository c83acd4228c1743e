// Bad arguments. Each is refused before it concerns another rank, with the argument's name and
// value, and the communicator works afterwards.
#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

constexpr entrain_status_t kInvalid = ENTRAIN_INVALID_ARGUMENT;

// A single rank, which communicates with no other: every error must be found locally.
class Arguments : public testing::Test {
 protected:
  void SetUp() override {
    entrain_runtime_config_t runtime_config;
    entrain_runtime_config_init(&runtime_config);
    runtime_config.transports = "inproc";
    ASSERT_OK(entrain_runtime_create(&runtime_config, &runtime_));
    ASSERT_OK(entrain_store_open(NewStoreUrl().c_str(), 0, &store_));
    entrain_comm_config_init(&config_);
    config_.runtime = runtime_;
    config_.store = store_;
    ASSERT_OK(entrain_comm_create(&config_, &comm_));
    entrain_call_options_init(&options_);
  }
  void TearDown() override {
    // The refused calls have not harmed the communicator.
    EXPECT_OK(entrain_all_reduce(comm_, in_, out_, 8, ENTRAIN_F32, ENTRAIN_SUM, nullptr, nullptr));
    entrain_comm_destroy(comm_);
    entrain_store_destroy(store_);
    entrain_runtime_destroy(runtime_);
  }
  entrain_status_t AllReduce() {
    return entrain_all_reduce(comm_, in_, out_, 8, ENTRAIN_F32, ENTRAIN_SUM, &options_, nullptr);
  }

  entrain_runtime_t* runtime_ = nullptr;
  entrain_store_t* store_ = nullptr;
  entrain_comm_config_t config_;
  entrain_comm_t* comm_ = nullptr;
  entrain_call_options_t options_;
  float in_[64] = {}, out_[64] = {};
};

TEST_F(Arguments, NullPointersAreNamed) {
  EXPECT_FAILS(
      entrain_all_reduce(nullptr, in_, out_, 8, ENTRAIN_F32, ENTRAIN_SUM, nullptr, nullptr),
      kInvalid, "entrain_all_reduce: comm is NULL");
  EXPECT_FAILS(
      entrain_all_reduce(comm_, nullptr, out_, 8, ENTRAIN_F32, ENTRAIN_SUM, nullptr, nullptr),
      kInvalid, "in is NULL, expected a buffer of 32 bytes");
  EXPECT_FAILS(
      entrain_all_reduce(comm_, in_, nullptr, 8, ENTRAIN_F32, ENTRAIN_SUM, nullptr, nullptr),
      kInvalid, "out is NULL");
  EXPECT_FAILS(entrain_broadcast(comm_, nullptr, 8, ENTRAIN_F32, 0, nullptr, nullptr), kInvalid,
               "buffer is NULL");
  EXPECT_FAILS(entrain_comm_rank(comm_, nullptr), kInvalid, "entrain_comm_rank: rank is NULL");
  EXPECT_FAILS(entrain_comm_create(&config_, nullptr), kInvalid, "comm is NULL");
  EXPECT_FAILS(entrain_work_wait(nullptr, 0), kInvalid, "work is NULL");
  EXPECT_FAILS(entrain_store_open(nullptr, 0, &store_), kInvalid, "url is NULL");
  EXPECT_FAILS(entrain_comm_create(nullptr, &comm_), kInvalid, "entrain_comm_config_t");
}

TEST_F(Arguments, UnknownTypesAndOperatorsAreNamed) {
  EXPECT_FAILS(entrain_all_reduce(comm_, in_, out_, 8, 18, ENTRAIN_SUM, nullptr, nullptr), kInvalid,
               "dtype 18");
  EXPECT_FAILS(entrain_all_reduce(comm_, in_, out_, 8, -1, ENTRAIN_SUM, nullptr, nullptr), kInvalid,
               "dtype -1");
  EXPECT_FAILS(entrain_all_reduce(comm_, in_, out_, 8, ENTRAIN_F32, 13, nullptr, nullptr), kInvalid,
               "op 13");
  EXPECT_FAILS(
      entrain_all_reduce(comm_, in_, out_, 8, ENTRAIN_F32, ENTRAIN_REDUCTION, nullptr, nullptr),
      kInvalid, "options.reduction is NULL");
}

TEST_F(Arguments, CountsThatCannotBeAreNamed) {
  const auto negative = static_cast<size_t>(-1);
  EXPECT_FAILS(
      entrain_all_reduce(comm_, in_, out_, negative, ENTRAIN_F32, ENTRAIN_SUM, nullptr, nullptr),
      kInvalid, "count 18446744073709551615");
  const size_t too_many = static_cast<size_t>(std::numeric_limits<int64_t>::max()) / 4 + 1;
  EXPECT_FAILS(entrain_all_gather(comm_, in_, out_, too_many, ENTRAIN_F32, nullptr, nullptr),
               kInvalid, "count");
  EXPECT_FAILS(entrain_all_gather(comm_, in_, out_, too_many - 1, ENTRAIN_F32, nullptr, nullptr),
               kInvalid,
               // Buffers of this size are legal, so these two overlap.
               "overlap");
}

TEST_F(Arguments, MisalignedBuffersAreNamed) {
  auto* odd = reinterpret_cast<char*>(in_) + 2;
  EXPECT_FAILS(entrain_all_reduce(comm_, odd, out_, 8, ENTRAIN_F32, ENTRAIN_SUM, nullptr, nullptr),
               kInvalid, "is not aligned to the 4 bytes of f32");
  EXPECT_OK(entrain_all_reduce(comm_, odd, out_, 8, ENTRAIN_F16, ENTRAIN_SUM, nullptr, nullptr));
}

TEST_F(Arguments, OverlapOtherThanInPlaceIsRefused) {
  EXPECT_FAILS(
      entrain_all_reduce(comm_, in_, in_ + 1, 8, ENTRAIN_F32, ENTRAIN_SUM, nullptr, nullptr),
      kInvalid, "overlap");
  EXPECT_OK(entrain_all_reduce(comm_, in_, in_ + 8, 8, ENTRAIN_F32, ENTRAIN_SUM, nullptr, nullptr));
  RunWorld(2, [](const Rank& self) {
    float data[16] = {};
    const int other = 1 - self.rank;
    EXPECT_FAILS(
        entrain_all_gather(self.comm, data + 8 * other, data, 8, ENTRAIN_F32, nullptr, nullptr),
        kInvalid, "overlap");
    EXPECT_FAILS(entrain_reduce_scatter(self.comm, data, data + 8 * other, 8, ENTRAIN_F32,
                                        ENTRAIN_SUM, nullptr, nullptr),
                 kInvalid, "overlap");
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
}

TEST_F(Arguments, RanksOutOfRangeAreNamed) {
  EXPECT_FAILS(entrain_broadcast(comm_, in_, 8, ENTRAIN_F32, 1, nullptr, nullptr), kInvalid,
               "root 1 is not a rank of 1");
  EXPECT_FAILS(entrain_broadcast(comm_, in_, 8, ENTRAIN_F32, -1, nullptr, nullptr), kInvalid,
               "root -1");
  EXPECT_FAILS(entrain_send(comm_, in_, 8, ENTRAIN_F32, 3, nullptr, nullptr), kInvalid, "peer 3");
  EXPECT_FAILS(entrain_send(comm_, in_, 8, ENTRAIN_F32, 0, nullptr, nullptr), kInvalid,
               "peer 0 is this rank itself");
  EXPECT_FAILS(entrain_recv(comm_, in_, 8, ENTRAIN_F32, 0, nullptr, nullptr), kInvalid,
               "peer 0 is this rank itself");
  const char* name = nullptr;
  EXPECT_FAILS(entrain_comm_transport(comm_, 7, &name), kInvalid, "peer 7");
  entrain_comm_t* comm = nullptr;
  config_.rank = 4;
  config_.world_size = 4;
  EXPECT_FAILS(entrain_comm_create(&config_, &comm), kInvalid,
               "rank 4 is not a rank of 4 (0 to 3)");
  config_.rank = 0;
  config_.world_size = 0;
  EXPECT_FAILS(entrain_comm_create(&config_, &comm), kInvalid, "world_size 0");
  EXPECT_EQ(comm, nullptr);
}

TEST_F(Arguments, OptionsOutOfRangeAreNamed) {
  options_.tag = -2;
  EXPECT_FAILS(AllReduce(), kInvalid, "options.tag -2");
  options_.tag = (1 << 20) - 1;
  EXPECT_FAILS(AllReduce(), kInvalid, "options.tag 1048575");
  options_.tag = (1 << 20) - 2;
  EXPECT_OK(AllReduce());
  options_.timeout_ns = -5;
  EXPECT_FAILS(AllReduce(), kInvalid, "timeout_ns -5 is negative");
  options_.timeout_ns = 0;
  options_.wait = 2;
  EXPECT_FAILS(AllReduce(), kInvalid, "options.wait 2");
  options_.wait = ENTRAIN_WAIT_BACKGROUND;
  EXPECT_OK(AllReduce());
  options_.memory = 9;
  EXPECT_FAILS(AllReduce(), kInvalid, "options.memory 9");
  options_.memory = ENTRAIN_MEMORY_HOST;
  options_.stream = &options_;
  EXPECT_FAILS(AllReduce(), kInvalid, "options.stream");
}

TEST_F(Arguments, OperatorsWithoutAMeaningForTheTypeAreRefused) {
  EXPECT_FAILS(entrain_all_reduce(comm_, in_, out_, 8, ENTRAIN_F32, ENTRAIN_BAND, nullptr, nullptr),
               kInvalid, "op band reduces integers only, not dtype f32");
  EXPECT_FAILS(
      entrain_reduce_scatter(comm_, in_, out_, 2, ENTRAIN_I32, ENTRAIN_MINLOC, nullptr, nullptr),
      kInvalid, "op minloc reduces pairs of value and location");
  EXPECT_FAILS(
      entrain_all_reduce(comm_, in_, out_, 2, ENTRAIN_I32_I32, ENTRAIN_SUM, nullptr, nullptr),
      kInvalid, "dtype i32_i32 is reduced by minloc and maxloc only, not op sum");
  entrain_reduction_t* reduction = nullptr;
  ASSERT_OK(entrain_reduction_builtin(ENTRAIN_BXOR, &reduction));
  options_.reduction = reduction;
  EXPECT_FAILS(
      entrain_all_reduce(comm_, in_, out_, 8, ENTRAIN_F16, ENTRAIN_REDUCTION, &options_, nullptr),
      kInvalid, "op bxor reduces integers only, not dtype f16");
  entrain_reduction_destroy(reduction);
}

TEST_F(Arguments, PairsAreAlignedToHalfOfTheirSize) {
  auto* odd = reinterpret_cast<char*>(in_);
  EXPECT_OK(entrain_all_reduce(comm_, odd + 4, odd + 4, 1, ENTRAIN_F32_I32, ENTRAIN_MAXLOC, nullptr,
                               nullptr));
  EXPECT_FAILS(entrain_all_reduce(comm_, odd + 2, odd + 2, 1, ENTRAIN_F32_I32, ENTRAIN_MAXLOC,
                                  nullptr, nullptr),
               kInvalid, "is not aligned to the 4 bytes of f32_i32");
}

TEST_F(Arguments, WhatThisBuildCannotDoIsUnimplemented) {
  options_.memory = ENTRAIN_MEMORY_DEVICE;
  EXPECT_FAILS(AllReduce(), ENTRAIN_UNIMPLEMENTED, "options.memory 1 (of a device)");
}

TEST_F(Arguments, SettingsThatAreNoneAreNamed) {
  entrain_runtime_config_t config;
  entrain_runtime_config_init(&config);
  entrain_runtime_t* runtime = nullptr;
  config.transports = "shm,carrier-pigeon";
  EXPECT_FAILS(entrain_runtime_create(&config, &runtime), kInvalid, "carrier-pigeon");
  config.transports = nullptr;
  config.progress = 7;
  EXPECT_FAILS(entrain_runtime_create(&config, &runtime), kInvalid, "progress 7");
  entrain_comm_t* comm = nullptr;
  config.progress = ENTRAIN_PROGRESS_THREAD;
  config.ports = "9-1";
  ASSERT_OK(entrain_runtime_create(&config, &runtime));
  config_.runtime = runtime;  // creates its transports
  EXPECT_FAILS(entrain_comm_create(&config_, &comm), kInvalid, "ports \"9-1\"");
  entrain_runtime_destroy(runtime);
  config_.runtime = nullptr;
  config_.algorithms = "all_reduce:magic";
  EXPECT_FAILS(entrain_comm_create(&config_, &comm), kInvalid, "algorithms: no algorithm 'magic'");
  config_.algorithms = nullptr;
  config_.tuning = "/no/such/tuning";
  EXPECT_NE(entrain_comm_create(&config_, &comm), ENTRAIN_OK);
  EXPECT_THAT(entrain_test::LastError(), testing::HasSubstr("/no/such/tuning"));
  config_.tuning = nullptr;
  config_.timeout_ns = -1;
  EXPECT_FAILS(entrain_comm_create(&config_, &comm), kInvalid, "timeout_ns -1");
  config_.timeout_ns = 0;
  config_.store = nullptr;
  EXPECT_FAILS(entrain_comm_create(&config_, &comm), kInvalid, "config.store is NULL");
  EXPECT_EQ(comm, nullptr);
  entrain_store_t* store = nullptr;
  EXPECT_FAILS(entrain_store_open("http://nowhere", 0, &store), kInvalid, "http://nowhere");
  const char* name = nullptr;
  EXPECT_FAILS(entrain_comm_algorithm(comm_, "all_to_none", 1, ENTRAIN_F32, &name), kInvalid,
               "all_to_none");
}

TEST_F(Arguments, ARefusedCallLeavesItsRecord) {
  options_.tag = 7;
  ASSERT_EQ(entrain_all_reduce(comm_, in_, out_, 8, 77, ENTRAIN_SUM, &options_, nullptr), kInvalid);
  entrain_error_t error;
  entrain_error_init(&error);
  ASSERT_OK(entrain_last_error_record(&error));
  EXPECT_EQ(error.code, kInvalid);
  EXPECT_EQ(error.scope, ENTRAIN_SCOPE_CALL);
  EXPECT_EQ(error.phase, ENTRAIN_PHASE_CHECK);
  EXPECT_STREQ(error.operation, "all_reduce");
  EXPECT_EQ(error.tag, 7);
  EXPECT_EQ(error.sequence, 0u);
  EXPECT_EQ(error.guilty_rank, -1);
  EXPECT_STREQ(error.text, entrain_last_error());
  EXPECT_EQ(std::string(error.text).find('\n'), std::string::npos);
}

TEST_F(Arguments, DestroyingNullDoesNothing) {
  entrain_comm_destroy(nullptr);
  entrain_store_destroy(nullptr);
  entrain_runtime_destroy(nullptr);
  entrain_work_free(nullptr);
  entrain_reduction_destroy(nullptr);
  entrain_optim_destroy(nullptr);
  entrain_mesh_destroy(nullptr);
  entrain_shard_destroy(nullptr);
  entrain_edit_destroy(nullptr);
}

TEST_F(Arguments, NamesAreThoseOfTheTables) {
  EXPECT_EQ(entrain_version(), 10000);
  EXPECT_STREQ(entrain_status_name(ENTRAIN_PEER_LOST), "ENTRAIN_PEER_LOST");
  EXPECT_STREQ(entrain_status_name(-4711), "ENTRAIN_?");
  const char* const kNames[] = {"f32", "f64", "bf16",    "f16",     "f8_e4m3", "f8_e5m2",
                                "i8",  "u8",  "i16",     "u16",     "i32",     "u32",
                                "i64", "u64", "f32_i32", "f64_i64", "i32_i32", "i64_i64"};
  const size_t kSizes[] = {4, 8, 2, 2, 1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 8, 16, 8, 16};
  for (entrain_dtype_t dtype = 0; dtype < 18; ++dtype) {
    EXPECT_STREQ(entrain_dtype_name(dtype), kNames[dtype]);
    EXPECT_EQ(entrain_dtype_size(dtype), kSizes[dtype]);
  }
  EXPECT_EQ(entrain_dtype_name(18), nullptr);
  EXPECT_EQ(entrain_dtype_size(-1), 0u);
  EXPECT_STREQ(entrain_op_name(ENTRAIN_AVG), "avg");
  EXPECT_STREQ(entrain_op_name(ENTRAIN_LXOR), "lxor");
  EXPECT_STREQ(entrain_op_name(ENTRAIN_MAXLOC), "maxloc");
  EXPECT_EQ(entrain_op_name(13), nullptr);
  EXPECT_EQ(entrain_op_name(ENTRAIN_REDUCTION), nullptr);
}

}  // namespace
}  // namespace entrain_test
