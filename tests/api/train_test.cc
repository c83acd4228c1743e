// train.h through the C ABI: refused arguments, and one small model through mesh, shards and EDiT.
// tests/train tests the methods themselves.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

constexpr entrain_status_t kInvalid = ENTRAIN_INVALID_ARGUMENT;
constexpr size_t kCounts[] = {7, 1, 12};
constexpr int32_t kLayers = 3;

// A mesh with `shard_size` ranks per replica, and the model on it.
class Model {
 public:
  Model(entrain_comm_t* comm, int32_t shard_size, const uint8_t* frozen = nullptr) {
    entrain_mesh_config_t mesh_config;
    entrain_mesh_config_init(&mesh_config);
    mesh_config.shard = shard_size;
    EXPECT_OK(entrain_mesh_create(comm, &mesh_config, &mesh_));
    entrain_shard_config_t config;
    entrain_shard_config_init(&config);
    config.layers = kLayers;
    config.layer_counts = kCounts;
    config.layer_frozen = frozen;
    EXPECT_OK(entrain_shard_create(mesh_, &config, &shard_));
    size_t count = 0;
    EXPECT_OK(entrain_shard_slab_count(shard_, &count));
    params_.resize(count);
    grads_.resize(count);
  }
  ~Model() {
    entrain_shard_destroy(shard_);
    entrain_mesh_destroy(mesh_);
  }
  void Bind() { EXPECT_OK(entrain_shard_bind(shard_, params_.data(), grads_.data(), ENTRAIN_F32)); }
  void Load(float value) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const std::vector<float> full(kCounts[layer], value);
      EXPECT_OK(entrain_shard_load(shard_, layer, full.data(), ENTRAIN_F32));
    }
  }
  // Gathers every layer and checks its first and last element.
  void ExpectAll(float value) {
    EXPECT_OK(entrain_shard_begin_pass(shard_, ENTRAIN_PASS_FORWARD));
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      void* params = nullptr;
      ASSERT_OK(entrain_shard_wait(shard_, layer, &params));
      for (size_t i = 0; i < kCounts[layer]; ++i) {
        ASSERT_EQ(static_cast<const float*>(params)[i], value)
            << "layer " << layer << " element " << i;
      }
      ASSERT_OK(entrain_shard_release(shard_, layer));
    }
  }
  entrain_mesh_t* mesh() const { return mesh_; }
  entrain_shard_t* shard() const { return shard_; }
  std::vector<float>& params() { return params_; }
  std::vector<float>& grads() { return grads_; }

 private:
  entrain_mesh_t* mesh_ = nullptr;
  entrain_shard_t* shard_ = nullptr;
  std::vector<float> params_, grads_;
};

// Returns a configuration of EDiT with the mean of the replicas as its outer step.
entrain_edit_config_t Averaging(entrain_shard_t* shard) {
  entrain_edit_config_t config;
  entrain_edit_config_init(&config);
  config.shard = shard;
  config.outer_optimizer = ENTRAIN_OUTER_SGD;
  config.outer_lr = 1;
  config.outer_momentum = 0;
  return config;
}

TEST(Train, MeshCoordinatesAreThoseOfThePicture) {
  RunWorld(6, [](const Rank& self) {
    entrain_mesh_config_t config;
    entrain_mesh_config_init(&config);
    config.shard = 2;
    entrain_mesh_t* mesh = nullptr;
    ASSERT_OK(entrain_mesh_create(self.comm, &config, &mesh));
    int32_t shard = -1, shards = -1, sync = -1, syncs = -1;
    EXPECT_OK(entrain_mesh_coordinate(mesh, ENTRAIN_AXIS_SHARD, &shard, &shards));
    EXPECT_OK(entrain_mesh_coordinate(mesh, ENTRAIN_AXIS_SYNC, &sync, &syncs));
    EXPECT_EQ(shards, 2);
    EXPECT_EQ(syncs, 3);
    EXPECT_EQ(shard, self.rank % 2);
    EXPECT_EQ(sync, self.rank / 2);
    entrain_comm_t* comm = nullptr;
    ASSERT_OK(entrain_mesh_comm(mesh, ENTRAIN_AXIS_SYNC, &comm));
    int32_t sum = self.rank;
    EXPECT_OK(entrain_all_reduce(comm, &sum, &sum, 1, ENTRAIN_I32, ENTRAIN_SUM, nullptr, nullptr));
    EXPECT_EQ(sum, self.rank % 2 == 0 ? 6 : 9);
    entrain_comm_destroy(comm);  // belongs to the mesh: no effect
    EXPECT_OK(entrain_barrier(comm, nullptr, nullptr));
    EXPECT_FAILS(entrain_mesh_comm(mesh, 6, &comm), kInvalid, "axis 6");
    EXPECT_FAILS(entrain_mesh_coordinate(mesh, -1, &sync, &syncs), kInvalid, "axis -1");
    entrain_mesh_destroy(mesh);
  });
}

// The reason that a rank gives when it waits for another in vain.
constexpr char kReason[] =
    "its call failed: all_gather: entrain_edit_wait_layer: layer 99 is not one of 3";

TEST(Train, ARankThatEndsBecauseItsCallWasRefusedGivesTheReason) {
  RunWorld(2, [](const Rank& self) {
    Model model(self.comm, 1);
    model.Bind();
    const entrain_edit_config_t config = Averaging(model.shard());
    entrain_edit_t* edit = nullptr;
    ASSERT_OK(entrain_edit_create(model.mesh(), &config, &edit));
    int32_t syncing = 0;
    ASSERT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr));  // the anchors
    ASSERT_OK(entrain_edit_end_step(edit));
    if (self.rank == 1) {
      EXPECT_FAILS(entrain_edit_wait_layer(edit, 99), kInvalid, "layer 99 is not one of 3");
    } else {
      ASSERT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr));
      EXPECT_FAILS(entrain_edit_wait_layer(edit, 0), ENTRAIN_PEER_LOST, kReason);
    }
    entrain_edit_destroy(edit);
  });
}

TEST(Train, ARankThatStaysAwayBecauseItsCallWasRefusedGivesTheReason) {
  std::promise<void> over;
  const std::shared_future<void> until = over.get_future().share();
  RunWorld(2, [&, until](const Rank& self) {
    Model model(self.comm, 1);
    model.Bind();
    entrain_edit_config_t config = Averaging(model.shard());
    config.prefetch = 0;
    config.timeout_ns = 300'000'000;
    entrain_edit_t* edit = nullptr;
    ASSERT_OK(entrain_edit_create(model.mesh(), &config, &edit));
    int32_t syncing = 0;
    ASSERT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr));  // the anchors
    ASSERT_OK(entrain_edit_end_step(edit));
    ASSERT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr));
    ASSERT_OK(entrain_edit_wait_layer(edit, 0));
    if (self.rank == 1) {
      EXPECT_FAILS(entrain_edit_wait_layer(edit, 99), kInvalid, "layer 99 is not one of 3");
      until.wait();
    } else {
      EXPECT_FAILS(entrain_edit_wait_layer(edit, 1), ENTRAIN_TIMED_OUT, kReason);
      over.set_value();
    }
    entrain_edit_destroy(edit);
  });
}

TEST(Train, AMeshThatDoesNotFillTheRanksIsRefused) {
  RunWorld(3, [](const Rank& self) {
    entrain_mesh_config_t config;
    entrain_mesh_config_init(&config);
    config.shard = 2;
    entrain_mesh_t* mesh = nullptr;
    EXPECT_FAILS(entrain_mesh_create(self.comm, &config, &mesh), kInvalid, "shard 2");
    config.shard = 0;
    EXPECT_FAILS(entrain_mesh_create(self.comm, &config, &mesh), kInvalid, "0 is not positive");
    config.shard = 3;
    config.order = "shard,sync";
    EXPECT_FAILS(entrain_mesh_create(self.comm, &config, &mesh), kInvalid, "shard,sync");
    EXPECT_EQ(mesh, nullptr);
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
}

TEST(Train, AMeshOfTwoCommunicatorsIsTheSame) {
  RunWorld(4, [](const Rank& self) {
    entrain_comm_t *shard = nullptr, *sync = nullptr;
    ASSERT_OK(entrain_comm_split(self.comm, self.rank / 2, self.rank, &shard, nullptr));
    ASSERT_OK(entrain_comm_split(self.comm, self.rank % 2, self.rank, &sync, nullptr));
    entrain_mesh_t* mesh = nullptr;
    ASSERT_OK(entrain_mesh_create_from(shard, sync, &mesh));
    int32_t coordinate = -1, length = -1;
    EXPECT_OK(entrain_mesh_coordinate(mesh, ENTRAIN_AXIS_SYNC, &coordinate, &length));
    EXPECT_EQ(coordinate, self.rank / 2);
    EXPECT_EQ(length, 2);
    entrain_mesh_destroy(mesh);
    entrain_comm_destroy(sync);
    entrain_comm_destroy(shard);
  });
}

TEST(Train, ShardArgumentsAreChecked) {
  RunWorld(1, [](const Rank& self) {
    Model model(self.comm, 1);
    entrain_shard_config_t config;
    entrain_shard_config_init(&config);
    entrain_shard_t* shard = nullptr;
    EXPECT_FAILS(entrain_shard_create(model.mesh(), &config, &shard), kInvalid, "layers 0");
    config.layers = 1;
    EXPECT_FAILS(entrain_shard_create(model.mesh(), &config, &shard), kInvalid,
                 "layer_counts is NULL");
    size_t count = 0;
    config.layer_counts = &count;
    EXPECT_FAILS(entrain_shard_create(model.mesh(), &config, &shard), kInvalid,
                 "layer_counts: all are 0");
    count = std::numeric_limits<size_t>::max();
    EXPECT_FAILS(entrain_shard_create(model.mesh(), &config, &shard), kInvalid, "layer_counts[0]");
    count = 4;
    const uint8_t frozen = 2;
    config.layer_frozen = &frozen;
    EXPECT_FAILS(entrain_shard_create(model.mesh(), &config, &shard), kInvalid,
                 "layer_frozen[0] 2 is neither 0 (off) nor 1 (on)");
    config.layer_frozen = nullptr;
    config.prefetch = -1;
    EXPECT_FAILS(entrain_shard_create(model.mesh(), &config, &shard), kInvalid, "prefetch -1");
    config.prefetch = 0;
    config.param_dtype = ENTRAIN_F16;
    EXPECT_FAILS(entrain_shard_create(model.mesh(), &config, &shard), ENTRAIN_UNIMPLEMENTED,
                 "param_dtype f16");
    EXPECT_EQ(shard, nullptr);

    void* params = nullptr;
    EXPECT_FAILS(entrain_shard_wait(model.shard(), 0, &params), ENTRAIN_FAILED_PRECONDITION,
                 "bound");
    const auto bind = [&](float* given, float* grads, entrain_dtype_t dtype) {
      return entrain_shard_bind(model.shard(), given, grads, dtype);
    };
    float* const slab = model.params().data();
    EXPECT_FAILS(bind(nullptr, model.grads().data(), ENTRAIN_F32), kInvalid, "params is NULL");
    EXPECT_FAILS(bind(slab, slab, ENTRAIN_F32), kInvalid, "overlap");
    EXPECT_FAILS(bind(slab, model.grads().data(), ENTRAIN_F16), ENTRAIN_UNIMPLEMENTED,
                 "dtype f16: layers are f32 or bf16");
    EXPECT_FAILS(bind(slab, model.grads().data(), -3), kInvalid, "dtype -3");
    model.Bind();
    EXPECT_FAILS(entrain_shard_wait(model.shard(), 3, &params), kInvalid,
                 "layer 3 is not one of 3");
    EXPECT_FAILS(entrain_shard_load(model.shard(), 0, nullptr, ENTRAIN_F32), kInvalid,
                 "full is NULL");
    EXPECT_FAILS(entrain_shard_load(model.shard(), 0, slab, ENTRAIN_I32), ENTRAIN_UNIMPLEMENTED,
                 "dtype i32: parameters are converted from and to f32, f64, bf16, f16");
    EXPECT_FAILS(entrain_shard_begin_pass(model.shard(), 2), kInvalid, "pass 2");
    EXPECT_FAILS(entrain_shard_set_gradients(model.shard(), 5), kInvalid, "scope 5");
    EXPECT_FAILS(entrain_shard_release(model.shard(), 0), ENTRAIN_FAILED_PRECONDITION, "layer 0");
  });
}

// One array per layer, in no order. One array is empty.
TEST(Train, LayersAreBoundOneByOne) {
  RunWorld(4, [](const Rank& self) {
    Model model(self.comm, 2);
    entrain_shard_t* const shard = model.shard();
    std::vector<std::vector<float>> params(kLayers), grads(kLayers);
    std::vector<void*> at(kLayers), into(kLayers);
    for (const int32_t layer : {2, 0, 1}) {
      entrain_shard_layer_t info;
      entrain_shard_layer_init(&info);
      ASSERT_OK(entrain_shard_layer_info(shard, layer, &info));
      params[static_cast<size_t>(layer)].resize(info.shard_count);
      grads[static_cast<size_t>(layer)].resize(info.shard_count);
      at[static_cast<size_t>(layer)] = params[static_cast<size_t>(layer)].data();
      into[static_cast<size_t>(layer)] = grads[static_cast<size_t>(layer)].data();
    }
    const auto bind = [&](std::vector<void*> p, std::vector<void*> g, entrain_dtype_t dtype) {
      return entrain_shard_bind_layers(shard, p.data(), g.data(), dtype);
    };
    EXPECT_FAILS(entrain_shard_bind_layers(shard, nullptr, into.data(), ENTRAIN_F32), kInvalid,
                 "params is NULL");
    EXPECT_FAILS(bind({at[0], nullptr, at[2]}, into, ENTRAIN_F32), kInvalid, "params[1] is NULL");
    EXPECT_FAILS(bind(at, {into[0], into[1], at[2]}, ENTRAIN_F32), kInvalid,
                 "params[2] and grads[2] overlap");
    EXPECT_FAILS(bind({at[0], static_cast<char*>(at[0]) + 4, at[2]}, into, ENTRAIN_F32), kInvalid,
                 "params[0] and params[1] overlap");
    EXPECT_FAILS(bind(at, {into[0], static_cast<char*>(into[1]) + 1, into[2]}, ENTRAIN_F32),
                 kInvalid, "is not aligned to the 4 bytes of f32");
    EXPECT_FAILS(bind(at, into, ENTRAIN_F64), ENTRAIN_UNIMPLEMENTED, "dtype f64");
    ASSERT_OK(bind(at, into, ENTRAIN_F32));
    EXPECT_FAILS(bind(at, into, ENTRAIN_F32), ENTRAIN_FAILED_PRECONDITION, "bound already");
    model.Load(static_cast<float>(self.rank / 2 + 1));
    ASSERT_OK(entrain_shard_broadcast(shard, nullptr));
    model.ExpectAll(1.0f);
    void* sums = nullptr;
    ASSERT_OK(entrain_shard_gradients(shard, 2, &sums));
    static_cast<float*>(sums)[0] = static_cast<float>(self.rank);
    ASSERT_OK(entrain_shard_reduce_gradients(shard, 2));
    ASSERT_OK(entrain_shard_finish_gradients(shard));
    EXPECT_EQ(grads[2][0], self.rank % 2 == 0 ? 1.5f : 0.0f);  // element 0 belongs to slot 0
  });
}

// EDiT beside the caller's own sharding: begin_forward, wait_layer, end_step.
TEST(Train, WhoeverReducesAlreadyNeedsTheExchangeOnly) {
  RunWorld(2, [](const Rank& self) {
    Model model(self.comm, 1);
    std::vector<float> params[kLayers];
    void* at[kLayers];
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      params[layer].assign(kCounts[layer], 1);
      at[layer] = params[layer].data();
    }
    ASSERT_OK(entrain_shard_bind_layers(model.shard(), at, nullptr, ENTRAIN_F32));
    void* none = nullptr;
    EXPECT_FAILS(entrain_shard_gradients(model.shard(), 0, &none), ENTRAIN_FAILED_PRECONDITION,
                 "no gradients are bound");
    entrain_edit_config_t config = Averaging(model.shard());
    config.local_sgd_warmup_steps = 1;
    entrain_edit_t* edit = nullptr;
    ASSERT_OK(entrain_edit_create(model.mesh(), &config, &edit));
    EXPECT_FAILS(entrain_edit_gradient_scope(edit, nullptr), kInvalid, "scope is NULL");
    for (int step = 0; step < 3; ++step) {
      int32_t syncing = -1, scope = -1;
      ASSERT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr));
      EXPECT_EQ(syncing, step == 2 ? 1 : 0);
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        ASSERT_OK(entrain_edit_wait_layer(edit, layer));
      }
      ASSERT_OK(entrain_edit_gradient_scope(edit, &scope));
      EXPECT_EQ(scope, step == 0 ? ENTRAIN_GRADIENTS_GLOBAL : ENTRAIN_GRADIENTS_LOCAL);
      EXPECT_EQ(params[2][11], step == 2 ? 3.5f : static_cast<float>(step + 1)) << step;
      for (std::vector<float>& layer : params) {
        for (float& value : layer) {
          value += scope == ENTRAIN_GRADIENTS_GLOBAL ? 1.0f : static_cast<float>(1 + self.rank);
        }
      }
      ASSERT_OK(entrain_edit_end_step(edit));
      ASSERT_OK(entrain_edit_gradient_scope(edit, &scope));
      EXPECT_EQ(scope, step == 0 ? ENTRAIN_GRADIENTS_GLOBAL : ENTRAIN_GRADIENTS_LOCAL);
    }
    entrain_edit_destroy(edit);
  });
}

// Along the tensor axis, layer 0 is replicated and the others are parts. Along the context axis,
// all layers are copies.
TEST(Train, TheNormOfGradientsIsTheReplicas) {
  RunWorld(4, [](const Rank& self) {
    entrain_mesh_config_t mesh_config;
    entrain_mesh_config_init(&mesh_config);
    mesh_config.tensor = mesh_config.context = 2;
    entrain_mesh_t* mesh = nullptr;
    ASSERT_OK(entrain_mesh_create(self.comm, &mesh_config, &mesh));
    int32_t tensor = -1, length = 0;
    ASSERT_OK(entrain_mesh_coordinate(mesh, ENTRAIN_AXIS_TENSOR, &tensor, &length));
    const uint8_t replicated[kLayers] = {1, 0, 0}, frozen[kLayers] = {0, 1, 0};
    entrain_shard_config_t config;
    entrain_shard_config_init(&config);
    config.layers = kLayers;
    config.layer_counts = kCounts;
    config.layer_replicated = replicated;
    config.layer_frozen = frozen;
    entrain_shard_t* shard = nullptr;
    ASSERT_OK(entrain_shard_create(mesh, &config, &shard));
    double norm = 0;
    EXPECT_FAILS(entrain_shard_gradient_norm(shard, &norm, nullptr), ENTRAIN_FAILED_PRECONDITION,
                 "bound");
    // 7 elements of 2, one frozen element, 12 elements of 1 or 3.
    std::vector<float> params(20), grads(20, 2.0f);
    for (size_t i = 8; i < 20; ++i) {
      grads[i] = tensor == 0 ? 1.0f : 3.0f;
    }
    ASSERT_OK(entrain_shard_bind(shard, params.data(), grads.data(), ENTRAIN_F32));
    EXPECT_FAILS(entrain_shard_gradient_norm(shard, nullptr, nullptr), kInvalid, "norm is NULL");
    ASSERT_OK(entrain_shard_gradient_norm(shard, &norm, nullptr));
    EXPECT_DOUBLE_EQ(norm * norm, 7 * 4 + 12 * 1 + 12 * 9);
    float whole[12];
    EXPECT_FAILS(entrain_shard_set_buffers(shard, 3, whole, nullptr), kInvalid, "layer 3");
    EXPECT_FAILS(entrain_shard_set_buffers(shard, 2, whole, whole), kInvalid, "overlap");
    EXPECT_FAILS(entrain_shard_set_buffers(shard, 1, nullptr, whole), kInvalid, "is frozen");
    ASSERT_OK(entrain_shard_set_buffers(shard, 2, whole, nullptr));
    void* given = nullptr;
    ASSERT_OK(entrain_shard_wait(shard, 2, &given));
    EXPECT_EQ(given, whole);
    EXPECT_FAILS(entrain_shard_set_buffers(shard, 2, nullptr, nullptr), ENTRAIN_FAILED_PRECONDITION,
                 "is gathered");
    ASSERT_OK(entrain_shard_release(shard, 2));
    entrain_shard_destroy(shard);
    entrain_mesh_destroy(mesh);
  });
}

TEST(Train, EditOptionsAreChecked) {
  RunWorld(1, [](const Rank& self) {
    Model model(self.comm, 1);
    model.Bind();
    entrain_edit_config_t config;
    entrain_edit_config_init(&config);
    entrain_edit_t* edit = nullptr;
    EXPECT_FAILS(entrain_edit_create(model.mesh(), &config, &edit), kInvalid,
                 "config.shard is NULL");
    config.shard = model.shard();
    config.reducer = 4;
    EXPECT_FAILS(entrain_edit_create(model.mesh(), &config, &edit), kInvalid, "reducer 4");
    config.reducer = ENTRAIN_REDUCER_NONE;
    config.outer_optimizer = 9;
    EXPECT_FAILS(entrain_edit_create(model.mesh(), &config, &edit), kInvalid, "outer_optimizer 9");
    config.outer_optimizer = ENTRAIN_OUTER_SGD;
    config.local_sgd_sync_interval = 0;
    EXPECT_FAILS(entrain_edit_create(model.mesh(), &config, &edit), kInvalid,
                 "local_sgd_sync_interval");
    config.local_sgd_sync_interval = 2;
    config.pseudo_gradnorm_reduce = 1;
    EXPECT_FAILS(entrain_edit_create(model.mesh(), &config, &edit), kInvalid,
                 "pseudo_gradnorm_reduce");
    EXPECT_EQ(edit, nullptr);
    config.pseudo_gradnorm_reduce = 0;
    const auto expect_refused = [&](int32_t* field, int32_t value, const char* says) {
      const int32_t before = *field;
      *field = value;
      EXPECT_FAILS(entrain_edit_create(model.mesh(), &config, &edit), kInvalid, says);
      *field = before;
    };
    expect_refused(&config.consensus_method, 3, "consensus_method 3");
    expect_refused(&config.consensus_method, 1,
                   "consensus_method: 1 has no effect without reducer");
    expect_refused(&config.sparsification_method, 4, "sparsification_method 4");
    expect_refused(&config.wire_format, -1, "wire_format -1 is not an ENTRAIN_WIRE_* value");
    expect_refused(&config.wire_block, 16, "wire_block: 16");
    expect_refused(&config.sparsify_chunk, 64, "sparsify_chunk: 64 has no effect without");
    expect_refused(&config.wire_rounding, 2, "wire_rounding 2");
    expect_refused(&config.error_feedback, 1, "error_feedback: 1 has no effect");
    expect_refused(&config.overlap_steps, 3,
                   "overlap_steps: 3 is more than local_sgd_sync_interval 2");
    expect_refused(&config.use_async, 2, "use_async 2 is neither 0 (off) nor 1 (on)");
    expect_refused(&config.use_step_weight, 1,
                   "use_step_weight: 1 has no effect without use_async");
    expect_refused(&config.skip_anomaly, 5, "skip_anomaly 5");
    expect_refused(&config.is_debug, 2, "is_debug 2");
    expect_refused(&config.compat, 2, "compat 2");
    expect_refused(&config.outer_optimizer, ENTRAIN_OUTER_CALLBACK, "outer_step: NULL");
    expect_refused(&config.normalize, 7, "normalize 7 is neither 0 (off) nor 1 (on)");
    expect_refused(&config.outer_nesterov, 2, "outer_nesterov 2");
    expect_refused(&config.pseudo_gradnorm_reduce, 3, "pseudo_gradnorm_reduce 3");
    expect_refused(&config.pseudo_gradnorm_reduce, -1, "pseudo_gradnorm_reduce -1");
    expect_refused(&config.threads, -1, "threads: -1 is not in [0, 64]");
    expect_refused(&config.threads, 65, "threads: 65 is not in [0, 64]");
    expect_refused(&config.reserved, 1, "reserved 1");
    config.outer_lr = 0.25;
    expect_refused(
        &config.outer_optimizer, ENTRAIN_OUTER_NONE,
        "outer_lr: 0.25 has no effect without outer_optimizer sgd, adamw or lion; set both");
    EXPECT_EQ(edit, nullptr);
    ASSERT_OK(entrain_edit_create(model.mesh(), &config, &edit));
    EXPECT_FAILS(entrain_edit_end_step(edit), ENTRAIN_FAILED_PRECONDITION,
                 "0 of the step's micro-batches, but gradient_accumulation_steps is 1");
    EXPECT_FAILS(entrain_edit_wait_layer(edit, 3), kInvalid, "layer 3");
    float* const grads = model.grads().data();
    EXPECT_FAILS(entrain_edit_anchor(edit, grads, ENTRAIN_F32), ENTRAIN_FAILED_PRECONDITION,
                 "anchor");
    EXPECT_FAILS(entrain_edit_anchor(edit, grads, ENTRAIN_U8), ENTRAIN_UNIMPLEMENTED, "dtype u8");
    entrain_edit_destroy(edit);
  });
}

TEST(Train, OptionsOfEditDescribeThemselves) {
  entrain_edit_config_t config;
  entrain_edit_config_init(&config);
  std::map<std::string, int32_t> index;
  for (int32_t i = 0; i < entrain_option_count(ENTRAIN_METHOD_EDIT); ++i) {
    entrain_option_t option;
    entrain_option_init(&option);
    ASSERT_OK(entrain_option(ENTRAIN_METHOD_EDIT, i, &option));
    index[option.name] = i;
    EXPECT_EQ(option.type == ENTRAIN_OPTION_CHOICE, option.choices != nullptr) << option.name;
    EXPECT_STRNE(option.help, "");
    EXPECT_LE(option.least, option.default_value) << option.name;
    EXPECT_LE(option.default_value, option.most) << option.name;
    ASSERT_LT(option.offset, sizeof(config));
    if (option.type == ENTRAIN_OPTION_F64) {
      double value = -1;
      std::memcpy(&value, reinterpret_cast<const char*>(&config) + option.offset, sizeof(value));
      EXPECT_EQ(value, option.default_value) << option.name;
    }
  }
  entrain_option_t merge;
  entrain_option_init(&merge);
  ASSERT_OK(entrain_option(ENTRAIN_METHOD_EDIT, index.at("overlap_merge"), &merge));
  EXPECT_STREQ(merge.choices, "add,mix,restart");
  EXPECT_EQ(merge.offset, offsetof(entrain_edit_config_t, overlap_merge));
  EXPECT_EQ(merge.most, 2);
  int32_t matters = -1;
  ASSERT_OK(entrain_edit_option_matters(&config, index.at("outer_momentum"), &matters));
  EXPECT_EQ(matters, 0);
  config.outer_optimizer = ENTRAIN_OUTER_SGD;
  ASSERT_OK(entrain_edit_option_matters(&config, index.at("outer_momentum"), &matters));
  EXPECT_EQ(matters, 1);
  config.wire_format = 256;  // would be f32 in a byte
  EXPECT_FAILS(entrain_edit_option_matters(&config, 0, &matters), kInvalid, "wire_format 256");
  EXPECT_FAILS(entrain_option(ENTRAIN_METHOD_EDIT, -1, &merge), kInvalid,
               "option -1 is not one of");
  EXPECT_FAILS(
      entrain_option(ENTRAIN_METHOD_EDIT, entrain_option_count(ENTRAIN_METHOD_EDIT), &merge),
      kInvalid, "is not one of");
}

TEST(Train, PresetsAreTheMethods) {
  ASSERT_GE(entrain_edit_preset_count(), 9);
  EXPECT_STREQ(entrain_edit_preset_name(0), "edit");
  EXPECT_STREQ(entrain_edit_preset_name(-1), "");
  entrain_edit_config_t config;
  entrain_edit_config_init(&config);
  ASSERT_OK(entrain_edit_config_preset(&config, "edit", 3, nullptr, 0));
  EXPECT_EQ(config.reducer, ENTRAIN_REDUCER_LINEAR);
  EXPECT_EQ(config.outer_optimizer, ENTRAIN_OUTER_SGD);
  EXPECT_TRUE(config.outer_nesterov && config.pseudo_gradnorm_reduce && config.skip_anomaly);
  EXPECT_EQ(config.clip_pseudo_grad, 10);

  // Options that the caller has set stay. Options without effect beside them are left out.
  entrain_edit_config_init(&config);
  config.local_sgd_sync_interval = 5;
  config.outer_optimizer = ENTRAIN_OUTER_LION;
  const char* const given[] = {"local_sgd_sync_interval", "outer_optimizer"};
  ASSERT_OK(entrain_edit_config_preset(&config, "co2", 3, given, 2));
  EXPECT_EQ(config.local_sgd_sync_interval, 5);
  EXPECT_EQ(config.overlap_steps, 5);
  EXPECT_EQ(config.outer_optimizer, ENTRAIN_OUTER_LION);
  EXPECT_NE(config.outer_lr, 1);

  // A caller that was built with fewer fields.
  entrain_edit_config_t older;
  entrain_edit_config_init(&older);
  older.size = offsetof(entrain_edit_config_t, in_flight_bytes);
  older.in_flight_bytes = -7;
  ASSERT_OK(entrain_edit_config_preset(&older, "decoupled-diloco", 3, nullptr, 0));
  EXPECT_EQ(older.size, offsetof(entrain_edit_config_t, in_flight_bytes));
  EXPECT_EQ(older.in_flight_bytes, -7);
  EXPECT_EQ(older.fragments, 3);

  EXPECT_FAILS(entrain_edit_config_preset(&config, "EDiT", 3, nullptr, 0), kInvalid,
               "name: \"EDiT\" is none of the methods: edit, a-edit, diloco");
  const char* const unknown[] = {"sync_interval"};
  EXPECT_FAILS(entrain_edit_config_preset(&config, "edit", 3, unknown, 1), kInvalid,
               "given: \"sync_interval\" is no option of EDiT");
  EXPECT_FAILS(entrain_edit_config_preset(&config, "edit", -1, nullptr, 0), kInvalid,
               "layers: -1 is negative");
}

TEST(Train, LayersCutUnevenlyComeBackWhole) {
  RunWorld(4, [](const Rank& self) {
    Model model(self.comm, 2);
    size_t slab = 0;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      entrain_shard_layer_t info;
      entrain_shard_layer_init(&info);
      ASSERT_OK(entrain_shard_layer_info(model.shard(), layer, &info));
      EXPECT_EQ(info.full_count, kCounts[layer]);
      EXPECT_EQ(info.shard_count, (kCounts[layer] + 1) / 2);
      EXPECT_EQ(info.padded_count, 2 * info.shard_count);
      EXPECT_EQ(info.slab_offset, slab);
      slab += info.shard_count;
    }
    EXPECT_EQ(model.params().size(), slab);
    model.Bind();
    model.Load(static_cast<float>(self.rank / 2 + 1));
    model.ExpectAll(static_cast<float>(self.rank / 2 + 1));
    EXPECT_OK(entrain_shard_broadcast(model.shard(), nullptr));
    model.ExpectAll(1.0f);
    entrain_shard_stats_t stats;
    entrain_shard_stats_init(&stats);
    EXPECT_OK(entrain_shard_stats(model.shard(), &stats));
    EXPECT_GT(stats.bytes_sent_shard, 0u);
  });
}

TEST(Train, LayersAreLoadedFromAnyFloatType) {
  RunWorld(2, [](const Rank& self) {
    Model model(self.comm, 2);
    model.Bind();
    const uint16_t bf16[7] = {0x4040, 0x4040, 0x4040, 0x4040, 0x4040, 0x4040, 0x4040};  // 3
    const uint16_t f16[1] = {0x4200};
    const std::vector<double> f64(12, 3.0);
    EXPECT_OK(entrain_shard_load(model.shard(), 0, bf16, ENTRAIN_BF16));
    EXPECT_OK(entrain_shard_load(model.shard(), 1, f16, ENTRAIN_F16));
    EXPECT_OK(entrain_shard_load(model.shard(), 2, f64.data(), ENTRAIN_F64));
    model.ExpectAll(3.0f);
  });
}

TEST(Train, GradientsAreAveragedOverTheScope) {
  RunWorld(4, [](const Rank& self) {
    Model model(self.comm, 2);
    model.Bind();
    for (const int32_t scope : {ENTRAIN_GRADIENTS_GLOBAL, ENTRAIN_GRADIENTS_LOCAL}) {
      std::fill(model.grads().begin(), model.grads().end(), 0.0f);
      ASSERT_OK(entrain_shard_set_gradients(model.shard(), scope));
      ASSERT_OK(entrain_shard_begin_pass(model.shard(), ENTRAIN_PASS_BACKWARD));
      for (int32_t layer = kLayers - 1; layer >= 0; --layer) {
        void* grads = nullptr;
        ASSERT_OK(entrain_shard_gradients(model.shard(), layer, &grads));
        for (size_t i = 0; i < kCounts[layer]; ++i) {
          static_cast<float*>(grads)[i] += static_cast<float>(self.rank);
        }
        ASSERT_OK(entrain_shard_reduce_gradients(model.shard(), layer));
      }
      ASSERT_OK(entrain_shard_finish_gradients(model.shard()));
      const float replica_mean = self.rank < 2 ? 0.5f : 2.5f;
      EXPECT_EQ(model.grads().front(), scope == ENTRAIN_GRADIENTS_GLOBAL ? 1.5f : replica_mean);
    }
  });
}

TEST(Train, AFrozenLayerIsGatheredAndNotExchanged) {
  RunWorld(4, [](const Rank& self) {
    const uint8_t frozen[kLayers] = {0, 1, 0};
    Model model(self.comm, 2, frozen);
    model.Bind();
    model.Load(1.0f);
    void* grads = nullptr;
    EXPECT_FAILS(entrain_shard_gradients(model.shard(), 1, &grads), kInvalid, "is frozen");
    entrain_edit_config_t config = Averaging(model.shard());
    entrain_edit_t* edit = nullptr;
    ASSERT_OK(entrain_edit_create(model.mesh(), &config, &edit));
    int32_t syncing = -1;
    ASSERT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr));
    model.Load(static_cast<float>(self.rank / 2 + 2));  // replica 0: 2, replica 1: 3
    ASSERT_OK(entrain_edit_end_step(edit));
    ASSERT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr));
    EXPECT_EQ(syncing, 1);
    for (const int32_t layer : {0, 1, 2}) {
      void* params = nullptr;
      ASSERT_OK(entrain_edit_wait_layer(edit, layer));
      ASSERT_OK(entrain_shard_wait(model.shard(), layer, &params));
      const float own = static_cast<float>(self.rank / 2 + 2);
      EXPECT_EQ(*static_cast<const float*>(params), layer == 1 ? own : 2.5f) << "layer " << layer;
    }
    for (const int32_t layer : {0, 1, 2}) {
      ASSERT_OK(entrain_shard_release(model.shard(), layer));
    }
    double norms[2] = {}, weights[2] = {}, clip = 0;
    EXPECT_OK(entrain_edit_layer_report(edit, 2, norms, weights, &clip));
    EXPECT_FAILS(entrain_edit_layer_report(edit, 1, norms, weights, &clip), kInvalid, "layer: 1");
    entrain_edit_destroy(edit);
  });
}

TEST(Train, EditBringsReplicasToOneAnchor) {
  RunWorld(4, [](const Rank& self) {
    Model model(self.comm, 2);
    model.Bind();
    model.Load(1.0f);
    entrain_edit_config_t config = Averaging(model.shard());
    config.local_sgd_sync_interval = 2;
    entrain_edit_t* edit = nullptr;
    ASSERT_OK(entrain_edit_create(model.mesh(), &config, &edit));
    // Replica 0 adds 1 in each step, replica 1 adds 2. They meet at their mean.
    const float stride = static_cast<float>(self.rank / 2 + 1);
    int32_t synced = 0;
    for (int step = 0; step <= 4; ++step) {
      int32_t syncing = -1;
      ASSERT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr));
      synced += step > 0 ? syncing : 0;
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        ASSERT_OK(entrain_edit_wait_layer(edit, layer));
      }
      if (step % 2 == 0) {
        model.ExpectAll(1.0f + 1.5f * static_cast<float>(step));
      }
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        entrain_shard_layer_t info;
        entrain_shard_layer_init(&info);
        ASSERT_OK(entrain_shard_layer_info(model.shard(), layer, &info));
        for (size_t i = 0; i < info.valid_count; ++i) {
          model.params()[info.slab_offset + i] += stride;
        }
      }
      ASSERT_OK(entrain_edit_end_step(edit));
    }
    EXPECT_EQ(synced, 2);
    entrain_edit_info_t info;
    entrain_edit_info_init(&info);
    ASSERT_OK(entrain_edit_info(edit, &info));
    EXPECT_EQ(info.steps, 5);
    EXPECT_EQ(info.syncs, 2);
    EXPECT_EQ(info.last_sync_step, 4);
    EXPECT_EQ(info.in_warmup, 0);
    EXPECT_GT(info.bytes_sent_sync, 0u);
    EXPECT_EQ(info.replicas, 2);
    EXPECT_EQ(info.losses, 0);
    EXPECT_EQ(info.short_rounds, 0);
    EXPECT_FAILS(entrain_edit_loss(edit, 0, nullptr, nullptr, nullptr, 0), kInvalid,
                 "index 0 is not one of 0 losses");
    entrain_comm_t* sync = nullptr;
    ASSERT_OK(entrain_mesh_comm(model.mesh(), ENTRAIN_AXIS_SYNC, &sync));
    uint64_t low = info.anchor_checksum, high = info.anchor_checksum;
    EXPECT_OK(entrain_all_reduce(sync, &low, &low, 1, ENTRAIN_U64, ENTRAIN_MIN, nullptr, nullptr));
    EXPECT_OK(
        entrain_all_reduce(sync, &high, &high, 1, ENTRAIN_U64, ENTRAIN_MAX, nullptr, nullptr));
    EXPECT_EQ(low, high);
    EXPECT_NE(low, 0u);
    std::vector<float> anchor(model.params().size());
    EXPECT_OK(entrain_edit_anchor(edit, anchor.data(), ENTRAIN_F32));
    EXPECT_EQ(anchor.front(), 7.0f);
    std::vector<double> wide(anchor.size());
    EXPECT_OK(entrain_edit_anchor(edit, wide.data(), ENTRAIN_F64));
    EXPECT_EQ(wide.front(), 7.0);
    std::vector<uint16_t> narrow(anchor.size());
    EXPECT_OK(entrain_edit_anchor(edit, narrow.data(), ENTRAIN_BF16));
    EXPECT_EQ(narrow.front(), 0x40e0);  // 7 in bf16
    double norms[2] = {}, weights[2] = {}, clip = 0;
    EXPECT_OK(entrain_edit_layer_report(edit, 0, norms, weights, &clip));
    EXPECT_EQ(weights[0], 0.5);
    EXPECT_EQ(weights[1], 0.5);
    EXPECT_EQ(clip, 1.0);
    EXPECT_LT(norms[0], norms[1]);
    entrain_edit_destroy(edit);
  });
}

// The arguments of the callback in the test below.
struct Descent {
  int64_t last_step = 0;
  size_t elements = 0;
};

int32_t HalfStep(void* user, int32_t layer, int64_t step, float* anchor, const float* grad,
                 size_t count) {
  auto* descent = static_cast<Descent*>(user);
  descent->last_step = step;
  descent->elements += layer == 0 ? count : 0;
  for (size_t i = 0; i < count; ++i) {
    anchor[i] -= 0.5f * grad[i];
  }
  return 0;
}

TEST(Train, AEditMeetsByTimeWithACallersOuterStepAndLeaves) {
  RunWorld(2, [](const Rank& self) {
    Model model(self.comm, 1);
    model.Bind();
    model.Load(1.0f);
    Descent descent;
    entrain_edit_config_t config;
    entrain_edit_config_init(&config);
    config.shard = model.shard();
    config.use_async = 1;
    config.local_sgd_sync_time = 1e-9;  // passes at every step
    config.min_total_global_steps = 1;
    config.outer_optimizer = ENTRAIN_OUTER_CALLBACK;
    config.outer_step = HalfStep;
    config.outer_user = &descent;
    config.skip_anomaly = 1;
    entrain_edit_t* edit = nullptr;
    ASSERT_OK(entrain_edit_create(model.mesh(), &config, &edit));
    entrain_edit_replica_t replica;
    entrain_edit_replica_init(&replica);
    EXPECT_FAILS(entrain_edit_replica(edit, 0, &replica), ENTRAIN_FAILED_PRECONDITION, "met");
    EXPECT_FAILS(entrain_edit_wish(edit, 8), kInvalid, "wishes 8");
    EXPECT_FAILS(entrain_edit_record(edit, -1, 0, 0), kInvalid, "tokens: -1");
    EXPECT_FAILS(entrain_edit_record(edit, 0, 0, -1), kInvalid, "weight: -1");
    int32_t syncing = -1;
    ASSERT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr));
    EXPECT_EQ(syncing, 0);
    for (float& value : model.params()) {
      value += self.rank == 0 ? 2.0f : 4.0f;
    }
    ASSERT_OK(entrain_edit_end_step(edit));
    ASSERT_OK(entrain_edit_record(edit, 100 + self.rank, self.rank, 1));
    ASSERT_OK(entrain_edit_wish(edit, self.rank == 1 ? ENTRAIN_WISH_STOP : 0));
    ASSERT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr));
    EXPECT_EQ(syncing, 1);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_OK(entrain_edit_wait_layer(edit, layer));
    }
    model.ExpectAll(1.0f + 0.5f * 3.0f);
    EXPECT_EQ(descent.last_step, 1);
    EXPECT_GT(descent.elements, 0u);
    ASSERT_OK(entrain_edit_replica(edit, 1, &replica));
    EXPECT_EQ(replica.tokens_since, 101);
    EXPECT_EQ(replica.steps, 1);
    EXPECT_EQ(replica.wishes, ENTRAIN_WISH_STOP);
    EXPECT_EQ(replica.leaving, 0);
    EXPECT_FAILS(entrain_edit_replica(edit, 2, &replica), kInvalid, "replica 2 is not one of 2");
    double z = -1, limit = -1;
    EXPECT_OK(entrain_edit_layer_score(edit, 0, &z, &limit));
    EXPECT_EQ(z, 0);
    EXPECT_EQ(limit, 0);
    entrain_edit_info_t info;
    entrain_edit_info_init(&info);
    ASSERT_OK(entrain_edit_info(edit, &info));
    EXPECT_EQ(info.rendezvous, 1);
    EXPECT_EQ(info.metric, 0.5);
    EXPECT_EQ(info.wishes, ENTRAIN_WISH_STOP);
    EXPECT_EQ(info.rejections, 0);
    ASSERT_OK(entrain_edit_leave(edit, nullptr));
    ASSERT_OK(entrain_edit_replica(edit, 0, &replica));
    EXPECT_EQ(replica.leaving, 1);
    EXPECT_FAILS(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr),
                 ENTRAIN_FAILED_PRECONDITION, "leave");
    entrain_edit_destroy(edit);
  });
}

}  // namespace
}  // namespace entrain_test
