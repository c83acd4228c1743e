#include "tests/train/replicas.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "tests/support/ranks.h"

namespace entrain {
namespace {

uint64_t Scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

EditOptions Averaging() {
  EditOptions options;
  options.outer_optimizer = OuterKind::kSgd;
  options.outer_lr = 1;
  options.outer_momentum = 0;
  return options;
}

EditOptions Weighed() {
  EditOptions options;
  options.reducer = ReducerKind::kLinear;
  options.pseudo_gradnorm_reduce = true;
  options.clip_pseudo_grad = 0.8;
  options.outer_optimizer = OuterKind::kSgd;
  options.outer_nesterov = true;
  return options;
}

EditOptions Judged() {
  EditOptions options = Weighed();
  options.skip_anomaly = true;
  options.ewma_warmup_steps = 2;
  return options;
}

std::vector<NamedOptions> OtherMethods() {
  EditOptions adamw = Averaging(), diloco = Averaging(), gta, restart = Averaging();
  adamw.outer_optimizer = OuterKind::kAdamw;
  adamw.outer_momentum = EditOptions().outer_momentum;
  adamw.outer_lr = 0.01;
  EditOptions lion = adamw;
  lion.outer_optimizer = OuterKind::kLion;
  diloco.outer_nesterov = true;
  diloco.outer_momentum = 0.9;
  diloco.outer_lr = 0.7;
  gta.reducer = ReducerKind::kGta;
  gta.consensus_method = Consensus::kSum;
  gta.wire_format = WireFormat::kInt8;
  EditOptions sparse = gta;
  sparse.sparsification_method = Sparsification::kRandom;
  sparse.density = 0.5;
  EditOptions streaming = diloco;
  streaming.local_sgd_sync_interval = 2;
  streaming.fragments = 2;
  streaming.overlap_steps = 1;
  streaming.overlap_merge = OverlapMerge::kMix;
  restart.overlap_steps = 1;
  restart.overlap_merge = OverlapMerge::kRestart;
  restart.outer_momentum = 0.5;
  restart.staleness_penalty = true;
  return {{"adamw", adamw},   {"lion", lion},           {"diloco", diloco},  {"gta", gta},
          {"sparse", sparse}, {"streaming", streaming}, {"restart", restart}};
}

float Noise(int64_t a, int64_t b, int64_t c, int64_t d) {
  uint64_t x = 1;
  for (const int64_t part : {a, b, c, d}) {
    x = Scramble(x + 0x9e3779b97f4a7c15u + static_cast<uint64_t>(part));
  }
  return static_cast<float>(static_cast<double>(x >> 40) / (1 << 23) - 1);
}

float Replica::Initial(int layer, int64_t element) {
  return Noise(100 + layer, element);
}

// ---- Ranks

Replica::Replica(std::shared_ptr<Mesh> mesh, const ShardConfig& config) : mesh_(std::move(mesh)) {
  auto shards = LayerShards::Create(mesh_, config);
  EXPECT_TRUE(shards.ok()) << shards.status();
  shards_ = *std::move(shards);
  const entrain::Slab& slab = shards_->slab();
  params_.assign(static_cast<size_t>(slab.count()), 99.0f);
  grads_.assign(params_.size(), 0.0f);
  EXPECT_EQ(shards_->Bind(params_.data(), grads_.data()), absl::OkStatus());
  for (int l = 0; l < slab.layers(); ++l) {
    std::vector<float> full;
    for (int64_t i = 0; i < slab.layer(l).full; ++i) {
      full.push_back(Initial(l, i));
    }
    EXPECT_EQ(shards_->Load(l, full.data()), absl::OkStatus());
  }
}

LayerSync& Replica::Edit(const EditOptions& options) {
  auto edit = LayerSync::Create(mesh_, shards_, options);
  EXPECT_TRUE(edit.ok()) << edit.status();
  edit_ = *std::move(edit);
  return *edit_;
}

absl::Status Replica::Join(const EditOptions& options, int64_t wait_ns) {
  auto edit = LayerSync::Join(mesh_, shards_, options, wait_ns);
  if (edit.ok()) {
    edit_ = *std::move(edit);
  }
  return edit.status();
}

void Replica::ForEach(std::vector<float>& slab, const Visit& visit) const {
  for (int l = 0; l < shards_->slab().layers(); ++l) {
    const SlabLayer& layer = shards_->slab().layer(l);
    for (const SlabPiece& piece : layer.pieces) {
      for (int64_t i = 0; i < piece.count; ++i) {
        visit(l, piece.first + i, slab[static_cast<size_t>(layer.offset + piece.at + i)]);
      }
    }
  }
}

void Replica::DriftFromAnchor(const std::function<float(int layer, int64_t element)>& drift) {
  const std::vector<float> anchor = Anchor();
  std::copy(anchor.begin(), anchor.end(), params().begin());  // the memory is bound
  ForEach(params(), [&](int l, int64_t i, float& value) { value += drift(l, i); });
}

bool Replica::Forward(bool training, bool first_microbatch) {
  const auto syncing = edit().BeginForward(training, first_microbatch);
  EXPECT_TRUE(syncing.ok()) << syncing.status();
  for (int l = 0; l < shards_->slab().layers(); ++l) {
    EXPECT_EQ(edit_->WaitLayer(l), absl::OkStatus());
  }
  return syncing.ok() && *syncing;
}

void Replica::MeetAll() {
  EXPECT_EQ(mesh_->comm(Axis::kModel)->Barrier(), absl::OkStatus());
  EXPECT_EQ(mesh_->comm(Axis::kSync)->Barrier(), absl::OkStatus());
  EXPECT_EQ(mesh_->comm(Axis::kModel)->Barrier(), absl::OkStatus());
}

void Replica::EndStep() {
  EXPECT_EQ(edit().EndStep(), absl::OkStatus());
}

std::vector<float> Replica::Anchor() {
  std::vector<float> anchor(params_.size());
  EXPECT_EQ(edit_->CopyAnchor(anchor.data()), absl::OkStatus());
  return anchor;
}

void RunMesh(const Grid& grid, const std::function<void(const std::shared_ptr<Mesh>&)>& body) {
  RanksOptions options;
  if (grid.hosts) {
    options.transports = "tcp";
    options.host_id = [parts = grid.shards * grid.copies](int rank) {
      return absl::StrCat("host", rank / parts);
    };
  }
  RunRanks(grid.ranks(), options, [&](const std::shared_ptr<Communicator>& comm) {
    MeshConfig config;
    config.lengths[static_cast<size_t>(Axis::kShard)] = grid.shards;
    config.lengths[static_cast<size_t>(Axis::kContext)] = grid.copies;
    const auto mesh = Mesh::Create(comm, config);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    body(*mesh);
    // No rank leaves while another still needs it.
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

void RunReplicas(const Grid& grid, const ShardConfig& config,
                 const std::function<void(Replica&)>& body) {
  RunMesh(grid, [&](const std::shared_ptr<Mesh>& mesh) {
    Replica replica(mesh, config);
    body(replica);
  });
}

std::vector<float> Assemble(const std::vector<std::vector<float>>& slabs,
                            const std::vector<int64_t>& layer_counts) {
  std::vector<float> whole;
  const int slots = static_cast<int>(slabs.size());
  for (size_t l = 0; l < layer_counts.size(); ++l) {
    for (int slot = 0; slot < slots; ++slot) {
      const SlabLayer layer = Slab::Make(layer_counts, slots, slot)->layer(static_cast<int>(l));
      const float* const from = slabs[static_cast<size_t>(slot)].data() + layer.offset;
      whole.insert(whole.end(), from, from + layer.valid);
    }
  }
  return whole;
}

}  // namespace entrain
