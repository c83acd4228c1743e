// The methods that layer_sync_bench compares: all_reduces alone, the arithmetic of an exchange
// written by hand, and EDiT itself through the C API. All functions are collective over the ranks.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "entrain/entrain.h"
#include "lib/kernels/kernels.h"
#include "tools/perf/entrain_subject.h"

namespace entrain::perf {

double Now();  // seconds
absl::StatusOr<RuntimePtr> MakeRuntime(const std::string& transports);
absl::StatusOr<CommPtr> MakeComm(entrain_runtime_t* runtime);
// Pins the calling thread to the core with the number of this rank. The launcher's variables give
// the number.
void PinToOwnCore();

// A named set of EDiT's options.
struct Variant {
  const char* name;
  const char* what;
  void (*set)(entrain_edit_config_t& config);
};
const Variant* FindVariant(absl::string_view name);  // null: no such variant
std::string VariantNames();
std::string DescribeVariants();

// The mesh, and its communicators.
class Ranks {
 public:
  static absl::StatusOr<Ranks> Create(entrain_comm_t* comm, int shards);
  entrain_mesh_t* mesh() const { return mesh_.get(); }
  entrain_comm_t* sync() const { return sync_; }  // across replicas
  // within one replica; null if a replica is one rank
  entrain_comm_t* model() const { return model_; }
  int replicas = 0, shards = 0, replica = 0, rank = 0;

 private:
  struct Destroy {
    void operator()(entrain_mesh_t* mesh) const { entrain_mesh_destroy(mesh); }
  };
  std::unique_ptr<entrain_mesh_t, Destroy> mesh_;
  entrain_comm_t *sync_ = nullptr, *model_ = nullptr;
};

struct Shape {
  int layers;
  int64_t count;  // f32 elements of a rank's shard of a layer
  int shards;
};

class Way {
 public:
  virtual ~Way() = default;
  // Writes new data for the exchange. Not part of the measurement.
  virtual void Refill() = 0;
  virtual absl::Status Run() = 0;
};

class Alone final : public Way {
 public:
  Alone(Ranks& ranks, const Shape& shape);
  void Refill() override;
  absl::Status Run() override;

 private:
  Ranks& ranks_;
  std::vector<std::vector<float>> layers_;
};

class ByHand final : public Way {
 public:
  ByHand(Ranks& ranks, const Shape& shape, const Variant& variant);
  absl::Status Create();
  void Refill() override;
  absl::Status Run() override;

 private:
  struct Layer {
    std::vector<float> params, anchor, momentum;
  };
  struct Destroy {
    void operator()(entrain_reduction_t* reduction) const { entrain_reduction_destroy(reduction); }
  };
  absl::StatusOr<std::vector<double>> Gather(entrain_comm_t* comm, int ranks,
                                             const std::vector<double>& mine);
  absl::Status Norms();
  absl::Status Combine(Layer& layer);

  Ranks& ranks_;
  const Kernels& kernels_ = BestKernels();
  entrain_edit_config_t config_;
  std::unique_ptr<entrain_reduction_t, Destroy>
      reduction_;  // null: a plain sum of values already weighted
  std::vector<Layer> layers_;
  std::vector<float> delta_;
  double weight_ = 1;
  int round_ = 0;
};

class Edit final : public Way {
 public:
  Edit(Ranks& ranks, const Shape& shape, const Variant& variant, int prefetch);
  absl::Status Create();
  void Refill() override;
  absl::Status Run() override;
  // Begin and Wait are the two parts of Run.
  absl::Status Begin();
  absl::Status Wait(int layer);
  absl::Status End();
  uint64_t bytes_sent() const;  // across replicas
  // Checks that every exchange took place, and that no replica was rejected.
  absl::Status Check() const;

 private:
  struct Destroy {
    void operator()(entrain_shard_t* shard) const { entrain_shard_destroy(shard); }
    void operator()(entrain_edit_t* edit) const { entrain_edit_destroy(edit); }
  };
  Ranks& ranks_;
  const Shape shape_;
  const Variant& variant_;
  const int prefetch_;
  std::vector<float> params_, grads_;
  std::unique_ptr<entrain_shard_t, Destroy> shard_;
  std::unique_ptr<entrain_edit_t, Destroy> edit_;
  int64_t exchanges_ = 0;
};

}  // namespace entrain::perf
