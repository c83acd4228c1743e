// Checkpoints through the C ABI: what arguments are refused, and a run that goes on from one.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

constexpr entrain_status_t kInvalid = ENTRAIN_INVALID_ARGUMENT;
constexpr size_t kCounts[] = {7, 12};

// One rank's model and EDiT object, with an inner optimizer that only counts.
class Trainer {
 public:
  Trainer(entrain_comm_t* comm, int32_t shard_size) {
    entrain_mesh_config_t mesh;
    entrain_mesh_config_init(&mesh);
    mesh.shard = shard_size;
    EXPECT_OK(entrain_mesh_create(comm, &mesh, &mesh_));
    entrain_shard_config_t shard;
    entrain_shard_config_init(&shard);
    shard.layers = 2;
    shard.layer_counts = kCounts;
    EXPECT_OK(entrain_shard_create(mesh_, &shard, &shard_));
    size_t count = 0;
    EXPECT_OK(entrain_shard_slab_count(shard_, &count));
    params_.resize(count);
    grads_.resize(count);
    inner_.resize(count);
    EXPECT_OK(entrain_shard_bind(shard_, params_.data(), grads_.data(), ENTRAIN_F32));
    entrain_edit_config_t edit;
    entrain_edit_config_init(&edit);
    edit.shard = shard_;
    edit.outer_optimizer = ENTRAIN_OUTER_SGD;
    EXPECT_OK(entrain_edit_create(mesh_, &edit, &edit_));
    EXPECT_OK(entrain_edit_add_state(edit_, "inner", inner_.data(), count, ENTRAIN_F64,
                                     ENTRAIN_STATE_RANK));
    EXPECT_OK(entrain_edit_add_state(edit_, "seen", &seen_, 1, ENTRAIN_I64, ENTRAIN_STATE_ALL));
    int32_t replicas = 0;
    EXPECT_OK(entrain_mesh_coordinate(mesh_, ENTRAIN_AXIS_SYNC, &replica_, &replicas));
  }
  ~Trainer() {
    entrain_edit_destroy(edit_);
    entrain_shard_destroy(shard_);
    entrain_mesh_destroy(mesh_);
  }
  void Forward() {
    int32_t syncing = 0;
    EXPECT_OK(entrain_edit_begin_forward(edit_, 1, 1, &syncing));
    EXPECT_OK(entrain_edit_wait_layer(edit_, 0));
    EXPECT_OK(entrain_edit_wait_layer(edit_, 1));
  }
  void Step() {
    for (size_t i = 0; i < params_.size(); ++i) {
      inner_[i] += 0.25 * static_cast<double>(replica_ + 1);
      params_[i] += static_cast<float>(inner_[i]);
    }
    ++seen_;
    EXPECT_OK(entrain_edit_end_step(edit_));
  }
  int64_t steps() const {
    entrain_edit_info_t info;
    entrain_edit_info_init(&info);
    EXPECT_OK(entrain_edit_info(edit_, &info));
    return info.steps;
  }
  entrain_edit_t* edit() const { return edit_; }
  const std::vector<float>& params() const { return params_; }
  const std::vector<double>& inner() const { return inner_; }
  int64_t seen() const { return seen_; }

 private:
  entrain_mesh_t* mesh_ = nullptr;
  entrain_shard_t* shard_ = nullptr;
  entrain_edit_t* edit_ = nullptr;
  std::vector<float> params_, grads_;
  std::vector<double> inner_;
  int64_t seen_ = 0;
  int32_t replica_ = 0;
};

class Checkpoint : public ::testing::Test {
 protected:
  Checkpoint() {
    std::string pattern = ::testing::TempDir() + "entrain-api-XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~Checkpoint() override { std::filesystem::remove_all(directory_); }
  entrain_checkpoint_config_t Config(int32_t kind) const {
    entrain_checkpoint_config_t config;
    entrain_checkpoint_config_init(&config);
    config.save_dir = directory_.c_str();
    config.ckpt_name = "api";
    config.kind = kind;
    return config;
  }
  std::string directory_;
};

TEST_F(Checkpoint, ARunGoesOnFromIt) {
  RunWorld(4, [&](const Rank& self) {
    entrain_checkpoint_config_t config = Config(ENTRAIN_CHECKPOINT_EXACT);
    config.full_state_dict = 0;
    Trainer straight(self.comm, 2), resumed(self.comm, 2);
    for (int step = 0; step < 5; ++step) {
      straight.Forward();
      if (step == 2) {
        ASSERT_OK(entrain_edit_save(straight.edit(), &config));
      }
      straight.Step();
    }
    ASSERT_OK(entrain_edit_load(resumed.edit(), &config));
    EXPECT_EQ(resumed.steps(), 2);
    EXPECT_EQ(resumed.seen(), 2);
    for (int step = 2; step < 5; ++step) {
      resumed.Forward();
      resumed.Step();
    }
    EXPECT_EQ(resumed.params(), straight.params());
    EXPECT_EQ(resumed.inner(), straight.inner());
  });
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/api.ckpt"));
  RunWorld(1, [&](const Rank& self) {
    Trainer alone(self.comm, 1);
    entrain_checkpoint_config_t config = Config(ENTRAIN_CHECKPOINT_EXACT);
    EXPECT_FAILS(entrain_edit_load(alone.edit(), &config), ENTRAIN_FAILED_PRECONDITION,
                 "load: rank 0: " + directory_ + "/api.ckpt: was saved on a mesh of");
    config.kind = ENTRAIN_CHECKPOINT_PORTABLE;
    ASSERT_OK(entrain_edit_load(alone.edit(), &config));
    EXPECT_EQ(alone.steps(), 2);
    EXPECT_EQ(alone.seen(), 2);
    EXPECT_EQ(alone.inner()[0], 0);
    EXPECT_NE(alone.params()[0], 0);
  });
}

TEST_F(Checkpoint, ArgumentsAreChecked) {
  RunWorld(1, [&](const Rank& self) {
    Trainer trainer(self.comm, 1);
    entrain_edit_t* const edit = trainer.edit();
    entrain_checkpoint_config_t config = Config(ENTRAIN_CHECKPOINT_PORTABLE);
    EXPECT_FAILS(entrain_edit_save(nullptr, &config), kInvalid, "edit is NULL");
    EXPECT_FAILS(entrain_edit_load(nullptr, &config), kInvalid, "edit is NULL");
    EXPECT_FAILS(entrain_edit_save(edit, &config), ENTRAIN_FAILED_PRECONDITION,
                 "step 0 has had no exchange");
    EXPECT_FAILS(entrain_edit_load(edit, &config), ENTRAIN_FAILED_PRECONDITION,
                 "api.ckpt: cannot open it: No such file");
    EXPECT_FAILS(entrain_edit_load(edit, nullptr), ENTRAIN_FAILED_PRECONDITION,
                 "local_sgd_ckpt/local_sgd_ckpt.ckpt: cannot open it");
    trainer.Forward();
    const auto refused = [&](int32_t* field, const char* says) {
      const int32_t before = *field;
      *field = 7;
      EXPECT_FAILS(entrain_edit_save(edit, &config), kInvalid, says);
      EXPECT_FAILS(entrain_edit_load(edit, &config), kInvalid, says);
      *field = before;
    };
    refused(&config.kind, "kind 7 is not an ENTRAIN_CHECKPOINT_* value");
    refused(&config.full_state_dict, "full_state_dict 7");
    refused(&config.rank0_only, "rank0_only 7");
    refused(&config.cpu_offload, "cpu_offload 7");
    config.timeout_ns = -1;
    EXPECT_FAILS(entrain_edit_save(edit, &config), kInvalid, "timeout_ns");
    config.timeout_ns = 0;
    config.ckpt_name = "a/b";
    EXPECT_FAILS(entrain_edit_save(edit, &config), kInvalid, "ckpt_name: \"a/b\"");
    config.ckpt_name = "api";
    config.save_dir = "";
    EXPECT_FAILS(entrain_edit_save(edit, &config), kInvalid, "save_dir: is empty");
    const std::string deep = directory_ + "/not/there";
    config.save_dir = deep.c_str();
    EXPECT_FAILS(entrain_edit_save(edit, &config), ENTRAIN_FAILED_PRECONDITION,
                 deep + ": cannot create the directory");
    const std::string made = directory_ + "/made";
    config.save_dir = made.c_str();
    EXPECT_OK(entrain_edit_save(edit, &config));

    int64_t value = 0;
    EXPECT_FAILS(entrain_edit_add_state(edit, nullptr, &value, 1, ENTRAIN_I64, 0), kInvalid,
                 "name is NULL");
    EXPECT_FAILS(entrain_edit_add_state(edit, "v", nullptr, 1, ENTRAIN_I64, 0), kInvalid,
                 "data is NULL");
    EXPECT_FAILS(entrain_edit_add_state(edit, "v", &value, 1, 99, 0), kInvalid, "dtype");
    EXPECT_FAILS(entrain_edit_add_state(edit, "v", &value, 1, ENTRAIN_I64, 2), kInvalid,
                 "holder 2 is not an ENTRAIN_STATE_* value");
    EXPECT_FAILS(entrain_edit_add_state(edit, "", &value, 1, ENTRAIN_I64, 0), kInvalid, "name");
    EXPECT_FAILS(entrain_edit_add_state(edit, "seen", &value, 1, ENTRAIN_I64, 0), kInvalid,
                 "there is an array \"seen\" already");
  });
}

}  // namespace
}  // namespace entrain_test
