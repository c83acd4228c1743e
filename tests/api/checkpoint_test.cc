// Checkpoints and state through the C ABI: refused arguments, and runs that continue from a
// checkpoint.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
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
    EXPECT_OK(entrain_edit_begin_forward(edit_, 1, 1, &syncing, nullptr));
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
        ASSERT_OK(entrain_edit_save(straight.edit(), &config, nullptr, nullptr));
      }
      straight.Step();
    }
    ASSERT_OK(entrain_edit_load(resumed.edit(), &config, nullptr, nullptr));
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
    EXPECT_FAILS(entrain_edit_load(alone.edit(), &config, nullptr, nullptr),
                 ENTRAIN_FAILED_PRECONDITION,
                 "load: rank 0: " + directory_ + "/api.ckpt: was saved on a mesh of");
    config.kind = ENTRAIN_CHECKPOINT_PORTABLE;
    ASSERT_OK(entrain_edit_load(alone.edit(), &config, nullptr, nullptr));
    EXPECT_EQ(alone.steps(), 2);
    EXPECT_EQ(alone.seen(), 2);
    EXPECT_EQ(alone.inner()[0], 0);
    EXPECT_NE(alone.params()[0], 0);
  });
}

TEST_F(Checkpoint, ReduceGoesOverAllRanksWhenOneMayBeSaved) {
  RunWorld(4, [&](const Rank& self) {
    Trainer trainer(self.comm, 2);
    entrain_edit_t* const edit = trainer.edit();
    const auto reduce = [&](const double* in, double* out, size_t count, entrain_op_t op) {
      return entrain_edit_reduce(edit, in, out, count, ENTRAIN_F64, op, 0, nullptr, nullptr,
                                 nullptr);
    };
    const double in[] = {1.0 + self.rank, 0.1 * self.rank};
    double out[] = {-1, -1};
    EXPECT_FAILS(reduce(in, out, 2, ENTRAIN_SUM), ENTRAIN_FAILED_PRECONDITION,
                 "reduce: rank 0: step 0 has had no exchange");
    trainer.Forward();
    int32_t rank = -1, ranks = -1;
    ASSERT_OK(
        entrain_edit_reduce(edit, in, out, 2, ENTRAIN_F64, ENTRAIN_SUM, 0, &rank, &ranks, nullptr));
    EXPECT_EQ(out[0], 10);
    EXPECT_DOUBLE_EQ(out[1], 0.6);
    EXPECT_EQ(ranks, 4);
    EXPECT_EQ(rank, self.rank);
    ASSERT_OK(entrain_edit_reduce(edit, nullptr, nullptr, 0, ENTRAIN_F64, ENTRAIN_SUM, 0, nullptr,
                                  &ranks, nullptr));
    entrain_work_t* work = nullptr;
    ASSERT_OK(
        entrain_edit_reduce(edit, out, out, 1, ENTRAIN_F64, ENTRAIN_MAX, 0, &rank, &ranks, &work));
    ASSERT_OK(entrain_work_wait(work, -1));
    entrain_work_free(work);
    EXPECT_EQ(out[0], 10);
    // What is wrong on one rank fails on all, and the object lives.
    EXPECT_FAILS(reduce(in, out, 2, self.rank == 3 ? ENTRAIN_MIN : ENTRAIN_SUM), kInvalid,
                 "edit: reduce: op: differs between the ranks");
    EXPECT_FAILS(reduce(in, out, self.rank == 1 ? 1 << 20 : 2, ENTRAIN_SUM), kInvalid,
                 "edit: reduce: rank 1: count: 1048576");
    EXPECT_EQ(out[0], 10);
    ASSERT_OK(reduce(in, out, 1, ENTRAIN_MIN));
    EXPECT_EQ(out[0], 1);
    trainer.Step();
    if (self.rank == 0) {  // refused before any rank is asked
      EXPECT_FAILS(reduce(nullptr, out, 1, ENTRAIN_SUM), kInvalid, "in is NULL");
      EXPECT_FAILS(reduce(in, out, 1, ENTRAIN_REDUCTION), kInvalid, "is not a built-in operator");
      EXPECT_FAILS(entrain_edit_reduce(edit, in, out, 1, ENTRAIN_F64, ENTRAIN_SUM, -1, nullptr,
                                       nullptr, nullptr),
                   kInvalid, "timeout_ns");
    }
    ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
}

TEST_F(Checkpoint, ArgumentsAreChecked) {
  RunWorld(1, [&](const Rank& self) {
    Trainer trainer(self.comm, 1);
    entrain_edit_t* const edit = trainer.edit();
    entrain_checkpoint_config_t config = Config(ENTRAIN_CHECKPOINT_PORTABLE);
    EXPECT_FAILS(entrain_edit_save(nullptr, &config, nullptr, nullptr), kInvalid, "edit is NULL");
    EXPECT_FAILS(entrain_edit_load(nullptr, &config, nullptr, nullptr), kInvalid, "edit is NULL");
    EXPECT_FAILS(entrain_edit_save(edit, &config, nullptr, nullptr), ENTRAIN_FAILED_PRECONDITION,
                 "step 0 has had no exchange");
    EXPECT_FAILS(entrain_edit_load(edit, &config, nullptr, nullptr), ENTRAIN_FAILED_PRECONDITION,
                 "api.ckpt: cannot open it: No such file");
    EXPECT_FAILS(entrain_edit_load(edit, nullptr, nullptr, nullptr), ENTRAIN_FAILED_PRECONDITION,
                 "local_sgd_ckpt/local_sgd_ckpt.ckpt: cannot open it");
    trainer.Forward();
    const auto refused = [&](int32_t* field, const char* says) {
      const int32_t before = *field;
      *field = 7;
      EXPECT_FAILS(entrain_edit_save(edit, &config, nullptr, nullptr), kInvalid, says);
      EXPECT_FAILS(entrain_edit_load(edit, &config, nullptr, nullptr), kInvalid, says);
      *field = before;
    };
    refused(&config.kind, "kind 7 is not an ENTRAIN_CHECKPOINT_* value");
    refused(&config.full_state_dict, "full_state_dict 7");
    refused(&config.rank0_only, "rank0_only 7");
    config.timeout_ns = -1;
    EXPECT_FAILS(entrain_edit_save(edit, &config, nullptr, nullptr), kInvalid, "timeout_ns");
    config.timeout_ns = 0;
    config.ckpt_name = "a/b";
    EXPECT_FAILS(entrain_edit_save(edit, &config, nullptr, nullptr), kInvalid,
                 "ckpt_name: \"a/b\"");
    config.ckpt_name = "api";
    config.save_dir = "";
    EXPECT_FAILS(entrain_edit_save(edit, &config, nullptr, nullptr), kInvalid,
                 "save_dir: is empty");
    const std::string deep = directory_ + "/not/there";
    config.save_dir = deep.c_str();
    EXPECT_FAILS(entrain_edit_save(edit, &config, nullptr, nullptr), ENTRAIN_FAILED_PRECONDITION,
                 deep + ": cannot create the directory");
    const std::string made = directory_ + "/made";
    config.save_dir = made.c_str();
    EXPECT_OK(entrain_edit_save(edit, &config, nullptr, nullptr));

    int64_t value = 0;
    EXPECT_FAILS(entrain_edit_add_state(edit, nullptr, &value, 1, ENTRAIN_I64, 0), kInvalid,
                 "name is NULL");
    EXPECT_FAILS(entrain_edit_add_state(edit, "v", nullptr, 1, ENTRAIN_I64, 0), kInvalid,
                 "data is NULL");
    EXPECT_FAILS(entrain_edit_add_state(edit, "v", &value, 1, 99, 0), kInvalid, "dtype");
    EXPECT_FAILS(entrain_edit_add_state(edit, "v", &value, 1, ENTRAIN_I64, 2), kInvalid,
                 "holder 2 is neither ENTRAIN_STATE_ALL nor ENTRAIN_STATE_RANK");
    EXPECT_FAILS(entrain_edit_add_state(edit, "", &value, 1, ENTRAIN_I64, 0), kInvalid, "name");
    EXPECT_FAILS(entrain_edit_add_state(edit, "seen", &value, 1, ENTRAIN_I64, 0), kInvalid,
                 "there is an array \"seen\" already");
  });
}

// ---- In the caller's memory --------------------------------------------------------------------

// The bytes of an entry, by name, layer, first element and rank.
using Entries = std::map<std::tuple<std::string, int32_t, size_t, int32_t>, std::vector<char>>;

std::vector<entrain_state_info_t> InfosOf(const entrain_state_t* state) {
  size_t count = 0;
  EXPECT_OK(entrain_state_count(state, &count));
  std::vector<entrain_state_info_t> infos(count);
  for (size_t i = 0; i < count; ++i) {
    entrain_state_info_init(&infos[i]);
    EXPECT_OK(entrain_state_info(state, i, &infos[i]));
  }
  return infos;
}

size_t SizeOf(entrain_dtype_t dtype) {
  return dtype == ENTRAIN_I64 || dtype == ENTRAIN_F64 ? 8 : 4;
}

Entries Get(const entrain_state_t* state) {
  Entries entries;
  const std::vector<entrain_state_info_t> infos = InfosOf(state);
  for (size_t i = 0; i < infos.size(); ++i) {
    const entrain_state_info_t& info = infos[i];
    std::vector<char>& bytes = entries[{info.name, info.layer, info.first, info.rank}];
    bytes.resize(info.count * SizeOf(info.dtype));
    EXPECT_OK(entrain_state_get(state, i, bytes.data(), info.count, info.dtype));
  }
  return entries;
}

void Set(entrain_state_t* state, const Entries& entries) {
  const std::vector<entrain_state_info_t> infos = InfosOf(state);
  for (size_t i = 0; i < infos.size(); ++i) {
    const entrain_state_info_t& info = infos[i];
    const auto bytes = entries.find({info.name, info.layer, info.first, info.rank});
    ASSERT_NE(bytes, entries.end()) << info.name;
    ASSERT_OK(entrain_state_set(state, i, bytes->second.data(), info.count, info.dtype));
  }
}

TEST(State, OfEditGoesOnBitEqual) {
  RunWorld(4, [&](const Rank& self) {
    Trainer straight(self.comm, 2), resumed(self.comm, 2);
    Entries entries;
    entrain_state_t* state = nullptr;
    for (int step = 0; step < 5; ++step) {
      straight.Forward();
      if (step == 2) {
        ASSERT_OK(
            entrain_edit_open_state(straight.edit(), ENTRAIN_CHECKPOINT_EXACT, &state, nullptr));
        entries = Get(state);
        entrain_state_destroy(state);
      }
      straight.Step();
    }
    ASSERT_OK(entrain_edit_open_state(resumed.edit(), ENTRAIN_CHECKPOINT_EXACT, &state, nullptr));
    Set(state, entries);
    ASSERT_OK(entrain_state_commit(state, 0, nullptr));
    EXPECT_FAILS(entrain_state_commit(state, 0, nullptr), ENTRAIN_FAILED_PRECONDITION,
                 "committed already");
    entrain_state_destroy(state);
    EXPECT_EQ(resumed.steps(), 2);
    EXPECT_EQ(resumed.seen(), 2);
    for (int step = 2; step < 5; ++step) {
      resumed.Forward();
      resumed.Step();
    }
    EXPECT_EQ(resumed.params(), straight.params());
    EXPECT_EQ(resumed.inner(), straight.inner());
  });
}

TEST(State, SaysWhoseItIsAndWhereItLies) {
  RunWorld(4, [&](const Rank& self) {
    Trainer trainer(self.comm, 2);
    trainer.Forward();
    for (const int32_t kind : {ENTRAIN_CHECKPOINT_PORTABLE, ENTRAIN_CHECKPOINT_EXACT}) {
      const bool exact = kind == ENTRAIN_CHECKPOINT_EXACT;
      entrain_state_t* state = nullptr;
      ASSERT_OK(entrain_edit_open_state(trainer.edit(), kind, &state, nullptr));
      const auto info = [&](const char* name, int32_t layer) {
        size_t index = 0;
        EXPECT_OK(entrain_state_find(state, name, layer, &index));
        entrain_state_info_t found;
        entrain_state_info_init(&found);
        EXPECT_OK(entrain_state_info(state, index, &found));
        EXPECT_STREQ(found.name, name);
        EXPECT_EQ(found.layer, layer);
        return found;
      };
      // Layer 0 has 7 elements, of which 4 belong to slot 0.
      const int slot = self.rank % 2, replica = self.rank / 2;
      for (const char* name : {"anchor", "outer/0"}) {
        const entrain_state_info_t layer = info(name, 0);
        EXPECT_EQ(layer.holder, ENTRAIN_STATE_LAYER);
        EXPECT_EQ(layer.whole_count, 7u);
        EXPECT_EQ(layer.first, slot == 0 ? 0u : 4u);
        EXPECT_EQ(layer.count, slot == 0 ? 4u : 3u);
        EXPECT_EQ(layer.dtype, ENTRAIN_F32);
        EXPECT_EQ(layer.part, 0);
        EXPECT_EQ(layer.rank, -1);
        EXPECT_EQ(layer.saves, replica == 0 ? 1 : 0);
      }
      const entrain_state_info_t steps = info("steps", -1);
      EXPECT_EQ(steps.holder, ENTRAIN_STATE_REPLICA);
      EXPECT_EQ(steps.rank, exact ? 2 * replica : 0);
      EXPECT_EQ(steps.saves, slot == 0 && (exact || replica == 0) ? 1 : 0);
      EXPECT_EQ(steps.whole_count, 1u);
      const entrain_state_info_t seen = info("caller/seen", -1);
      EXPECT_EQ(seen.holder, ENTRAIN_STATE_ALL);
      EXPECT_EQ(seen.rank, -1);
      EXPECT_EQ(seen.saves, self.rank == 0 ? 1 : 0);
      if (exact) {
        const entrain_state_info_t inner = info("caller/inner", -1);
        EXPECT_EQ(inner.holder, ENTRAIN_STATE_RANK);
        EXPECT_EQ(inner.rank, self.rank);
        EXPECT_EQ(inner.dtype, ENTRAIN_F64);
        EXPECT_EQ(inner.saves, 1);
      } else {
        size_t index = 0;
        EXPECT_FAILS(entrain_state_find(state, "caller/inner", -1, &index), kInvalid,
                     "the portable state has no \"caller/inner\"");
      }
      entrain_state_destroy(state);
    }
  });
}

TEST(State, BadInputIsNamed) {
  RunWorld(1, [&](const Rank& self) {
    entrain_state_t* state = nullptr;
    {
      Trainer trainer(self.comm, 1);
      const entrain_status_t early = ENTRAIN_FAILED_PRECONDITION;
      EXPECT_FAILS(entrain_edit_open_state(nullptr, 0, &state, nullptr), kInvalid, "edit is NULL");
      EXPECT_FAILS(entrain_edit_open_state(trainer.edit(), 7, &state, nullptr), kInvalid,
                   "kind 7 is not an ENTRAIN_CHECKPOINT_* value");
      EXPECT_FAILS(entrain_edit_open_state(trainer.edit(), 0, nullptr, nullptr), kInvalid,
                   "state is NULL");
      ASSERT_OK(
          entrain_edit_open_state(trainer.edit(), 0, &state, nullptr));  // opens it for setting
      size_t index = 0, count = 0;
      EXPECT_FAILS(entrain_state_find(state, nullptr, 0, &index), kInvalid, "name is NULL");
      EXPECT_FAILS(entrain_state_find(state, "steps", 0, &index), kInvalid,
                   "the portable state has no \"steps\" of layer 0");
      EXPECT_OK(entrain_state_find(state, "steps", -1, &index));
      EXPECT_FAILS(entrain_state_find(state, "steps", -1, nullptr), kInvalid, "index is NULL");
      int64_t value[2] = {};
      EXPECT_FAILS(entrain_state_get(state, index, value, 1, ENTRAIN_I64), early,
                   "step 0 has had no exchange");
      EXPECT_FAILS(entrain_state_set(state, index, value, 2, ENTRAIN_I64), kInvalid,
                   "count: 2 was given");
      EXPECT_FAILS(entrain_state_set(state, index, value, 1, ENTRAIN_F64), kInvalid,
                   "dtype: f64 was given; \"steps\"");
      EXPECT_FAILS(entrain_state_set(state, index, value, 1, 99), kInvalid, "dtype");
      EXPECT_FAILS(entrain_state_set(state, index, nullptr, 1, ENTRAIN_I64), kInvalid,
                   "data is NULL");
      EXPECT_FAILS(entrain_state_set(state, 999, value, 1, ENTRAIN_I64), kInvalid, "index 999");
      EXPECT_FAILS(entrain_state_count(nullptr, &count), kInvalid, "state is NULL");
      EXPECT_FAILS(entrain_state_count(state, nullptr), kInvalid, "count is NULL");
      EXPECT_FAILS(entrain_state_info(state, 0, nullptr), kInvalid, "entrain_state_info_t is NULL");
      EXPECT_FAILS(entrain_state_commit(state, -1, nullptr), kInvalid, "timeout_ns");
      EXPECT_FAILS(entrain_state_commit(state, 0, nullptr), early, "have not been set");
      int64_t more = 0;
      EXPECT_OK(
          entrain_edit_add_state(trainer.edit(), "more", &more, 1, ENTRAIN_I64, ENTRAIN_STATE_ALL));
      EXPECT_FAILS(entrain_state_commit(state, 0, nullptr), early, "other arrays than when");
      EXPECT_EQ(trainer.steps(), 0);
      trainer.Forward();  // the run was not changed
    }
    size_t count = 0;
    EXPECT_FAILS(entrain_state_count(state, &count), ENTRAIN_FAILED_PRECONDITION,
                 "has been destroyed");
    entrain_state_destroy(state);
    entrain_state_destroy(nullptr);
  });
}

// A function of the caller that runs inside the library may only call queries.
struct Calling {
  entrain_comm_t* comm;
  entrain_edit_t* edit;
  std::string text;
};

TEST_F(Checkpoint, FunctionsMayNotUseTheEngine) {
  RunWorld(2, [&](const Rank& self) {
    Trainer trainer(self.comm, 1);
    trainer.Forward();
    Calling calling{self.comm, trainer.edit(), ""};
    entrain_checkpoint_functions_t functions;
    entrain_checkpoint_functions_init(&functions);
    functions.user = &calling;
    functions.write_at = [](void* user, int64_t, const void*, size_t) -> int32_t {
      auto& it = *static_cast<Calling*>(user);
      entrain_edit_info_t info;
      entrain_edit_info_init(&info);
      EXPECT_OK(entrain_edit_info(it.edit, &info));
      if (entrain_barrier(it.comm, nullptr, nullptr) == ENTRAIN_OK) {
        return 1;
      }
      it.text = LastError();
      return 0;
    };
    functions.finish = [](void*) -> int32_t { return 9; };
    EXPECT_FAILS(entrain_edit_save(trainer.edit(), nullptr, &functions, nullptr),
                 ENTRAIN_FAILED_PRECONDITION,
                 "save: rank 0: the checkpoint of the caller's functions: finish returned 9");
    EXPECT_EQ(calling.text.find("called from the write_at of a checkpoint") != std::string::npos,
              self.rank == 0)
        << calling.text;
    entrain_checkpoint_config_t config;
    entrain_checkpoint_config_init(&config);
    config.save_dir = directory_.c_str();
    EXPECT_FAILS(entrain_edit_save(trainer.edit(), &config, &functions, nullptr), kInvalid,
                 "save_dir: \"" + directory_ + "\" has no effect with functions");
    config.save_dir = nullptr;
    config.ckpt_name = "x";
    EXPECT_FAILS(entrain_edit_load(trainer.edit(), &config, &functions, nullptr), kInvalid,
                 "ckpt_name: \"x\" has no effect with functions");
    EXPECT_FAILS(entrain_edit_save(nullptr, nullptr, &functions, nullptr), kInvalid,
                 "edit is NULL");
    trainer.Step();  // the run continues
    trainer.Forward();
  });
}

// ---- ACCO --------------------------------------------------------------------------------------

constexpr size_t kCount = 101;
const std::vector<int32_t> kScript = {1, 2, 1, 1, 3, 1, 2};

class Channel {
 public:
  Channel(entrain_comm_t* comm, int32_t method) {
    entrain_optim_config_t rule;
    entrain_optim_config_init(&rule);
    rule.kind = ENTRAIN_OPTIM_ADAMW;
    entrain_optim_t* optim = nullptr;
    EXPECT_OK(entrain_optim_create(&rule, &optim));
    entrain_acco_config_t config;
    entrain_acco_config_init(&config);
    config.params = params.data();
    config.count = kCount;
    config.method = method;
    config.optim = optim;
    EXPECT_OK(entrain_acco_create(comm, &config, &acco));
    entrain_optim_destroy(optim);
  }
  ~Channel() { entrain_acco_destroy(acco); }
  void Round(size_t round, int rank) {
    for (int32_t i = 0; i < kScript[round]; ++i) {
      void* to = nullptr;
      EXPECT_OK(entrain_acco_gradients(acco, &to));
      for (size_t k = 0; k < kCount; ++k) {
        static_cast<float*>(to)[k] +=
            0.1f * params[k] + static_cast<float>(k % 7) - static_cast<float>(rank + i);
      }
      EXPECT_OK(entrain_acco_add(acco, 1, 10));
    }
    int32_t finished = 0;
    EXPECT_OK(entrain_acco_install(acco, &finished));
  }
  entrain_acco_t* acco = nullptr;
  std::vector<float> params = std::vector<float>(kCount, 1.0f);
};

TEST(State, OfAccoGoesOnBitEqual) {
  RunWorld(3, [](const Rank& self) {
    for (const int32_t method : {ENTRAIN_ACCO, ENTRAIN_ACCO_DPU}) {
      for (const size_t saved : {3u, 4u}) {  // after a commit, after an estimate
        Channel straight(self.comm, method), resumed(self.comm, method);
        Entries entries;
        entrain_state_t* state = nullptr;
        for (size_t round = 0; round < kScript.size(); ++round) {
          if (round == saved) {
            ASSERT_OK(
                entrain_acco_open_state(straight.acco, ENTRAIN_CHECKPOINT_EXACT, &state, nullptr));
            entries = Get(state);
          }
          straight.Round(round, self.rank);
          if (round == saved) {
            size_t index = 0;
            int64_t steps = 0;
            ASSERT_OK(entrain_state_find(state, "steps", -1, &index));
            EXPECT_FAILS(entrain_state_get(state, index, &steps, 1, ENTRAIN_I64),
                         ENTRAIN_FAILED_PRECONDITION, "the run has gone on");
            entrain_state_destroy(state);
          }
        }
        ASSERT_OK(entrain_acco_open_state(resumed.acco, ENTRAIN_CHECKPOINT_EXACT, &state, nullptr));
        EXPECT_FAILS(entrain_state_commit(state, 0, nullptr), ENTRAIN_FAILED_PRECONDITION,
                     "have not been set: \"steps\"");
        Set(state, entries);
        ASSERT_OK(entrain_state_commit(state, 0, nullptr));
        entrain_state_destroy(state);
        for (size_t round = saved; round < kScript.size(); ++round) {
          resumed.Round(round, self.rank);
        }
        EXPECT_EQ(resumed.params, straight.params);
        ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));
      }
    }
  });
}

// Masters and moments by layer and name. They are joined from one number of ranks and cut for
// another.
TEST(State, OfAccoIsPortable) {
  std::map<std::string, std::vector<float>> whole;
  std::map<std::string, std::vector<int64_t>> numbers;
  std::vector<float> saved;
  std::mutex mutex;
  for (const int ranks : {3, 1, 2, 5}) {
    RunWorld(ranks, [&](const Rank& self) {
      Channel channel(self.comm, ENTRAIN_ACCO_ZERO1);
      if (ranks == 3) {
        channel.Round(0, self.rank);
        channel.Round(1, self.rank);
      }
      entrain_state_t* state = nullptr;
      ASSERT_OK(
          entrain_acco_open_state(channel.acco, ENTRAIN_CHECKPOINT_PORTABLE, &state, nullptr));
      const std::vector<entrain_state_info_t> infos = InfosOf(state);
      for (size_t i = 0; i < infos.size(); ++i) {
        const entrain_state_info_t& info = infos[i];
        const std::lock_guard<std::mutex> lock(mutex);
        std::vector<float>& layer = whole[info.name];
        std::vector<int64_t>& number = numbers[info.name];
        layer.resize(info.dtype == ENTRAIN_F32 ? info.whole_count : 0);
        number.resize(info.dtype == ENTRAIN_I64 ? info.whole_count : 0);
        EXPECT_EQ(info.whole_count, info.layer == 0 ? kCount : info.count);
        void* const place = info.dtype == ENTRAIN_F32
                                ? static_cast<void*>(layer.data() + info.first)
                                : static_cast<void*>(number.data());
        ASSERT_OK(ranks == 3 ? entrain_state_get(state, i, place, info.count, info.dtype)
                             : entrain_state_set(state, i, place, info.count, info.dtype));
      }
      if (ranks == 3) {
        const std::lock_guard<std::mutex> lock(mutex);
        saved = channel.params;
      } else {
        ASSERT_OK(entrain_state_commit(state, 0, nullptr));
        EXPECT_EQ(channel.params, saved);
        entrain_acco_info_t info;
        entrain_acco_info_init(&info);
        EXPECT_OK(entrain_acco_info(channel.acco, &info));
        EXPECT_EQ(info.commits, 2);
      }
      entrain_state_destroy(state);
      ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));
    });
  }
  EXPECT_EQ(whole["master"], saved);
  EXPECT_EQ(whole.count("optim/1"), 1u);
}

TEST(State, OfAccoThroughFunctions) {
  std::string bytes;
  RunWorld(2, [&](const Rank& self) {
    Channel straight(self.comm, ENTRAIN_ACCO), resumed(self.comm, ENTRAIN_ACCO);
    entrain_checkpoint_config_t config;
    entrain_checkpoint_config_init(&config);
    config.kind = ENTRAIN_CHECKPOINT_EXACT;
    entrain_checkpoint_functions_t functions;
    entrain_checkpoint_functions_init(&functions);
    functions.user = &bytes;
    functions.write_at = [](void* user, int64_t offset, const void* data, size_t count) {
      auto& to = *static_cast<std::string*>(user);
      const auto at = static_cast<size_t>(offset);
      to.resize(std::max(to.size(), at + count));
      to.replace(at, count, static_cast<const char*>(data), count);
      return 0;
    };
    functions.finish = [](void*) { return 0; };
    functions.read_at = [](void* user, int64_t offset, void* data, size_t count) {
      static_cast<std::string*>(user)->copy(static_cast<char*>(data), count,
                                            static_cast<size_t>(offset));
      return 0;
    };
    for (size_t round = 0; round < kScript.size(); ++round) {
      if (round == 3) {
        // Functions on some ranks and a file on the others are no checkpoint.
        EXPECT_FAILS(entrain_acco_save(straight.acco, &config,
                                       self.rank == 0 ? &functions : nullptr, nullptr),
                     ENTRAIN_INVALID_ARGUMENT, "functions: 0 here, and 1 on rank 0");
        ASSERT_OK(entrain_acco_save(straight.acco, &config, &functions, nullptr));
      }
      straight.Round(round, self.rank);
    }
    functions.bytes = static_cast<int64_t>(bytes.size());
    ASSERT_OK(entrain_acco_load(resumed.acco, &config, &functions, nullptr));
    for (size_t round = 3; round < kScript.size(); ++round) {
      resumed.Round(round, self.rank);
    }
    EXPECT_EQ(resumed.params, straight.params);
    ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
}

}  // namespace
}  // namespace entrain_test
