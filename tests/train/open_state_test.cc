// EDiT's state in the caller's memory: it is read array by array and set again. Also checkpoints
// that functions write and read.
#include "lib/train/state/open_state.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/checkpoint/checkpoint_file.h"
#include "tests/train/trainee.h"

namespace entrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The content of a file in another library's format: whole arrays by name, part, layer and rank.
class Arrays {
 public:
  // Takes the arrays that a checkpoint would take from this rank. `all`: takes all its arrays.
  void Take(const OpenState& state, bool all = false) {
    for (size_t i = 0; i < state.entries().size(); ++i) {
      const StateEntry& entry = state.entries()[i];
      if (!entry.saves && !all) {
        continue;
      }
      std::vector<std::byte> bytes(static_cast<size_t>(entry.array.bytes()));
      ASSERT_EQ(state.Get(i, bytes.data(), entry.array.count, entry.array.dtype), absl::OkStatus());
      const std::lock_guard<std::mutex> lock(mutex_);
      std::vector<std::byte>& whole = whole_[KeyOf(entry)];
      whole.resize(static_cast<size_t>(entry.whole * SizeOf(entry.array.dtype)));
      std::copy(bytes.begin(), bytes.end(),
                whole.begin() + entry.array.first * SizeOf(entry.array.dtype));
    }
  }
  absl::Status Give(OpenState* state) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < state->entries().size(); ++i) {
      const StateEntry& entry = state->entries()[i];
      const auto whole = whole_.find(KeyOf(entry));
      if (whole == whole_.end()) {
        return absl::NotFoundError(Describe(entry.array));
      }
      const absl::Status status =
          state->Set(i, whole->second.data() + entry.array.first * SizeOf(entry.array.dtype),
                     entry.array.count, entry.array.dtype);
      if (!status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }
  size_t size() const { return whole_.size(); }

 private:
  using Key = std::tuple<std::string, int, int, int>;
  static Key KeyOf(const StateEntry& entry) {
    return {entry.array.name, entry.array.part, entry.array.layer, entry.array.rank};
  }
  std::mutex mutex_;
  std::map<Key, std::vector<std::byte>> whole_;
};

absl::Status SetAll(Replica& r, CheckpointKind kind, Arrays* arrays) {
  auto state = r.edit().state().Open(kind);
  if (!state.ok()) {
    return state.status();
  }
  absl::Status status = arrays->Give(state->get());
  status.Update((*state)->Commit(0));
  return status;
}

// ---- The same bits -----------------------------------------------------------------------------

struct Method {
  const char* name;
  EditOptions options;
};

std::vector<Method> Methods() {
  EditOptions judged = Judged();
  judged.local_sgd_sync_interval = 3;
  EditOptions plain = Plain();
  plain.local_sgd_sync_interval = 3;
  EditOptions packed = judged;
  packed.reducer = ReducerKind::kGta;
  packed.wire_format = WireFormat::kInt8;
  packed.error_feedback = true;
  EditOptions behind;
  behind.outer_optimizer = OuterKind::kSgd;
  behind.local_sgd_sync_interval = behind.overlap_steps = 3;
  behind.fragments = 2;
  behind.staleness_penalty = true;
  return {{"judged", judged}, {"plain", plain}, {"packed", packed}, {"behind", behind}};
}

// Ends the exchange that runs behind further steps. All replicas meet.
void End(Replica& r) {
  EXPECT_EQ(r.edit().RequestSync(), absl::OkStatus());
  EXPECT_TRUE(r.Forward());
}

class ExactState : public ::testing::TestWithParam<std::tuple<Grid, int>> {};

TEST_P(ExactState, GoesOnBitEqual) {
  const auto& [grid, index] = GetParam();
  const EditOptions options = Methods()[static_cast<size_t>(index)].options;
  constexpr int kSave = 6, kSteps = 14;
  Arrays arrays;
  All straight, resumed;
  RunReplicas(grid, Layers(), [&](Replica& r) {
    Trainee trainee(r, options);
    for (int step = 0; step < kSteps; ++step) {
      trainee.Step([&] {
        if (step == kSave) {
          const auto state = r.edit().state().Open(CheckpointKind::kExact);
          ASSERT_TRUE(state.ok()) << state.status();
          arrays.Take(**state);
        }
      });
    }
    End(r);
    straight.Put(r, Look(r, trainee));
  });
  ASSERT_GT(arrays.size(), 8u);
  RunReplicas(grid, Layers(), [&](Replica& r) {
    Trainee trainee(r, options);
    ASSERT_EQ(SetAll(r, CheckpointKind::kExact, &arrays), absl::OkStatus());
    EXPECT_EQ(r.edit().info().steps, kSave);
    for (int step = kSave; step < kSteps; ++step) {
      trainee.Step();
    }
    End(r);
    resumed.Put(r, Look(r, trainee));
  });
  EXPECT_EQ(resumed.seen(), straight.seen());
}

std::string NameOfExact(const ::testing::TestParamInfo<std::tuple<Grid, int>>& test) {
  const auto& [grid, index] = test.param;
  return absl::StrCat("m", grid.shards, "_n", grid.replicas, "_",
                      Methods()[static_cast<size_t>(index)].name);
}

INSTANTIATE_TEST_SUITE_P(Meshes, ExactState,
                         ::testing::Combine(::testing::Values(Grid{1, 1}, Grid{2, 2}, Grid{3, 2}),
                                            ::testing::Values(0, 1, 2, 3)),
                         NameOfExact);

// A run continues with the weight that a newcomer had. In its c-th exchange the newcomer has
// c / (k + 1) of the weight of another replica.
TEST(ExactState, KeepsHowFarTheWeightOfANewcomerHasGrown) {
  EditOptions options = Averaging();
  options.on_loss = OnLoss::kFinish;
  options.admit = Admit::kExchange;
  options.newcomer_warmup = 3;
  Arrays arrays;
  const auto expect_weight = [](Replica& r, double grown) {
    for (const int layer : r.shards().slab().training()) {
      EXPECT_DOUBLE_EQ(r.edit().Report(layer)->weights[1], grown / (1 + grown));
    }
  };
  RunReplicas({1, 2}, Layers(), [&](Replica& r) {
    Trainee trainee(r, options);
    trainee.Step();
    trainee.Step();
    expect_weight(r, 1);
    r.Forward();
    {
      const auto state = r.edit().state().Open(CheckpointKind::kExact);
      ASSERT_TRUE(state.ok()) << state.status();
      arrays.Take(**state);
      r.MeetAll();
      ASSERT_EQ(arrays.Give(state->get()), absl::OkStatus());
      const std::vector<int64_t> counted(kLayers.size(), r.replica() == 1 ? 0 : 3);
      const auto place = (*state)->Find("newcomer/counted", -1);
      ASSERT_TRUE(place.ok()) << place.status();
      ASSERT_EQ(
          (*state)->Set(*place, counted.data(), static_cast<int64_t>(counted.size()), DType::kI64),
          absl::OkStatus());
      ASSERT_EQ((*state)->Commit(0), absl::OkStatus());
    }
    for (const double grown : {0.25, 0.5}) {
      trainee.Step();
      r.Forward();
      expect_weight(r, grown);
    }
    const auto state = r.edit().state().Open(CheckpointKind::kExact);
    ASSERT_TRUE(state.ok()) << state.status();
    arrays.Take(**state);
  });
  RunReplicas({1, 2}, Layers(), [&](Replica& r) {
    Trainee trainee(r, options);
    ASSERT_EQ(SetAll(r, CheckpointKind::kExact, &arrays), absl::OkStatus());
    for (const double grown : {0.75, 1.0, 1.0}) {
      trainee.Step();
      r.Forward();
      expect_weight(r, grown);
    }
  });
}

// Returns the content of a checkpoint in one file, by array.
std::map<std::string, std::string> Contents(const std::string& path) {
  std::map<std::string, std::string> contents;
  const auto reader = CheckpointReader::Open(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  if (reader.ok()) {
    for (const SavedArray& array : (*reader)->manifest().arrays) {
      contents[Describe(array)] = ToHex(array.digest);
    }
  }
  return contents;
}

// Includes layers of tensors, which have several pieces on a rank.
TEST(PortableState, GoesOnWithAnyNumberOfReplicasAndRanks) {
  ShardConfig segments;
  segments.layer_counts = {26, 3, 24};
  segments.layer_segments = {{{15, 5}, {7, 7}, {4, 2}}, {{3, 3}}, {{24, 4}}};
  for (const ShardConfig& config : {Layers(), segments}) {
    EditOptions options = Judged();
    const Directory directory;
    Arrays arrays;
    RunReplicas({2, 2}, config, [&](Replica& r) {
      r.Edit(options);
      for (int step = 0; step < 4; ++step) {
        r.Forward();
        r.DriftFromAnchor([&](int l, int64_t i) { return Noise(l, i, r.replica(), step); });
        r.EndStep();
      }
      EXPECT_TRUE(r.Forward());
      EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kPortable, kOneFile, "before")),
                absl::OkStatus());
      const auto state = r.edit().state().Open(CheckpointKind::kPortable);
      ASSERT_TRUE(state.ok()) << state.status();
      arrays.Take(**state);
    });
    for (const Grid& grid : {Grid{1, 1}, Grid{1, 3}, Grid{3, 1}, Grid{4, 2}}) {
      RunReplicas(grid, config, [&](Replica& r) {
        r.Edit(options);
        ASSERT_EQ(SetAll(r, CheckpointKind::kPortable, &arrays), absl::OkStatus());
        EXPECT_EQ(r.params(), r.Anchor());
        EXPECT_EQ(
            r.edit().state().Save(To(directory, CheckpointKind::kPortable, kOneFile, "after")),
            absl::OkStatus());
      });
      EXPECT_EQ(Contents(directory.File("after.ckpt")), Contents(directory.File("before.ckpt")));
    }
  }
}

// ---- All or nothing ----------------------------------------------------------------------------

TEST(SettingState, RefusesWhatIsNotWholeOrNotAlikeAndChangesNothing) {
  Arrays arrays;
  RunReplicas({2, 2}, Layers(), [&](Replica& r) {
    Trainee trainee(r, Judged());
    for (int step = 0; step < 3; ++step) {
      trainee.Step();
    }
    const auto before = Look(r, trainee);
    auto early = r.edit().state().Open(CheckpointKind::kExact);
    ASSERT_TRUE(early.ok()) << early.status();
    int64_t steps = 0;
    const auto place = (*early)->Find("steps", -1);
    ASSERT_TRUE(place.ok());
    EXPECT_THAT(std::string((*early)->Get(*place, &steps, 1, DType::kI64).message()),
                HasSubstr("step 3 has had no exchange"));
    r.Forward();
    EXPECT_THAT(std::string((*early)->Get(*place, &steps, 1, DType::kI64).message()),
                HasSubstr("the run has gone on since the state was opened"));
    auto state = r.edit().state().Open(CheckpointKind::kExact);
    ASSERT_TRUE(state.ok()) << state.status();
    arrays.Take(**state, /*all=*/true);
    r.MeetAll();

    // Names, numbers and types that are wrong.
    EXPECT_THAT(std::string((*state)->Find("anchors", 0).status().message()),
                HasSubstr("the exact state has no \"anchors\" of layer 0"));
    EXPECT_THAT(std::string((*state)->Find("anchor", -1).status().message()),
                HasSubstr("has no \"anchor\" without a layer"));
    const auto anchor = (*state)->Find("anchor", 0);
    ASSERT_TRUE(anchor.ok());
    const int64_t count = (*state)->entries()[*anchor].array.count;
    std::vector<double> room(64);
    EXPECT_THAT(std::string((*state)->Set(*anchor, room.data(), count + 1, DType::kF32).message()),
                AllOf(HasSubstr(absl::StrCat("count: ", count + 1)), HasSubstr("\"anchor\"")));
    EXPECT_THAT(std::string((*state)->Set(*anchor, room.data(), count, DType::kF64).message()),
                HasSubstr("dtype: f64 was given"));
    EXPECT_THAT(std::string((*state)->Get(*anchor, room.data(), count, DType::kBF16).message()),
                HasSubstr("dtype: bf16 was given"));
    EXPECT_THAT(std::string((*state)->Set(9999, room.data(), 1, DType::kI64).message()),
                HasSubstr("index 9999: there are"));

    // Sets nothing, then half of the arrays, then all arrays except on one rank.
    EXPECT_THAT(std::string((*state)->Commit(0).message()),
                AllOf(HasSubstr("edit: commit: rank 0: "), HasSubstr("arrays have not been set")));
    const bool last = r.replica() == 1 && r.slot() == 1;
    if (!last) {
      ASSERT_EQ(arrays.Give(state->get()), absl::OkStatus());
    }
    EXPECT_THAT(std::string((*state)->Commit(0).message()),
                AllOf(HasSubstr("rank 3: "), HasSubstr("arrays have not been set")));
    if (last) {
      ASSERT_EQ(arrays.Give(state->get()), absl::OkStatus());
    }
    const auto set = [&](absl::string_view name, int64_t value) {
      EXPECT_EQ((*state)->Set(*(*state)->Find(name, -1), &value, 1, DType::kI64), absl::OkStatus());
    };
    // Values that must be equal on ranks, and differ: of a replica, and of a layer.
    set("syncs", last ? 8 : 7);
    EXPECT_THAT(std::string((*state)->Commit(0).message()),
                AllOf(HasSubstr("\"syncs\""), HasSubstr("another rank, and must be the same")));
    set("syncs", 3);
    set("rejections", last ? 8 : 7);
    EXPECT_THAT(
        std::string((*state)->Commit(0).message()),
        AllOf(HasSubstr("rank 2: "), HasSubstr("\"rejections\""), HasSubstr("another rank")));
    set("rejections", 0);
    std::vector<float> values(static_cast<size_t>(count), static_cast<float>(r.replica()));
    ASSERT_EQ((*state)->Set(*anchor, values.data(), count, DType::kF32), absl::OkStatus());
    EXPECT_THAT(std::string((*state)->Commit(0).message()),
                AllOf(HasSubstr("\"anchor\" of layer 0"), HasSubstr("another replica")));
    ASSERT_EQ(arrays.Give(state->get()), absl::OkStatus());
    set("last_sync_step", 2);
    EXPECT_THAT(std::string((*state)->Commit(0).message()), HasSubstr("are of no rendezvous"));
    EXPECT_EQ(Look(r, trainee).steps, before.steps);
    EXPECT_EQ(r.edit().info().syncs, 3);

    set("last_sync_step", 3);
    EXPECT_EQ((*state)->Commit(0), absl::OkStatus());
    EXPECT_THAT(std::string((*state)->Commit(0).message()), HasSubstr("committed already"));
    EXPECT_THAT(std::string((*state)->Set(*anchor, values.data(), count, DType::kF32).message()),
                HasSubstr("has been committed; open it anew"));
    EXPECT_THAT(std::string((*state)->Get(*anchor, values.data(), count, DType::kF32).message()),
                HasSubstr("the run has gone on"));
    r.MeetAll();
  });
}

// ---- Functions ---------------------------------------------------------------------------------

// A checkpoint in memory, with functions that may fail.
struct Memory {
  std::string bytes = {};
  int finished = 0, calls = 0, fail_at = -1;
  int64_t next = 128;  // required begin of the next write
  bool in_order = true;

  CheckpointFunctions functions() {
    return {.user = this,
            .write_at = Write,
            .finish = Finish,
            .read_at = Read,
            .bytes = static_cast<int64_t>(bytes.size())};
  }
  static int32_t Write(void* user, int64_t offset, const void* data, size_t count) {
    auto& it = *static_cast<Memory*>(user);
    if (it.calls++ == it.fail_at) {
      return 5;
    }
    it.in_order = it.in_order && (offset == it.next || (offset == 0 && count == 128));
    it.next = offset + static_cast<int64_t>(count);
    it.bytes.resize(std::max(it.bytes.size(), static_cast<size_t>(it.next)), '?');
    it.bytes.replace(static_cast<size_t>(offset), count, static_cast<const char*>(data), count);
    return 0;
  }
  static int32_t Finish(void* user) {
    auto& it = *static_cast<Memory*>(user);
    ++it.finished;
    return it.fail_at == -2 ? -7 : 0;
  }
  static int32_t Read(void* user, int64_t offset, void* data, size_t count) {
    auto& it = *static_cast<Memory*>(user);
    if (it.calls++ == it.fail_at) {
      return 3;
    }
    it.in_order = it.in_order && static_cast<size_t>(offset) + count <= it.bytes.size();
    it.bytes.copy(static_cast<char*>(data), count, static_cast<size_t>(offset));
    return 0;
  }
};

CheckpointOptions Through(CheckpointKind kind, Memory* memory) {
  CheckpointOptions options;
  options.directory = options.name = "unused";
  options.kind = kind;
  options.functions = memory == nullptr ? CheckpointFunctions() : memory->functions();
  return options;
}

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Functions, WriteAndReadTheBytesOfTheFile) {
  for (const CheckpointKind kind : {CheckpointKind::kExact, CheckpointKind::kPortable}) {
    const Directory directory;
    Memory memory;
    RunReplicas({2, 2}, Layers(), [&](Replica& r) {
      const bool first = r.replica() == 0 && r.slot() == 0;
      Trainee trainee(r, Judged());
      for (int step = 0; step < 3; ++step) {
        trainee.Step();
      }
      r.Forward();
      EXPECT_EQ(r.edit().state().Save(To(directory, kind)), absl::OkStatus());
      EXPECT_EQ(r.edit().state().Save(Through(kind, first ? &memory : nullptr)), absl::OkStatus());
    });
    EXPECT_EQ(memory.bytes, Bytes(directory.File("run.ckpt")));
    EXPECT_TRUE(memory.in_order);
    EXPECT_EQ(memory.finished, 1);
    for (const bool rank0_only : {true, false}) {
      RunReplicas({2, 2}, Layers(), [&](Replica& r) {
        const bool first = r.replica() == 0 && r.slot() == 0;
        Memory own = memory;
        Trainee trainee(r, Judged());
        CheckpointOptions from = Through(kind, first || !rank0_only ? &own : nullptr);
        from.rank0_only = rank0_only;
        ASSERT_EQ(r.edit().state().Load(from), absl::OkStatus());
        EXPECT_EQ(r.edit().info().steps, 3);
        EXPECT_TRUE(own.in_order);
        EXPECT_EQ(r.edit().state().Save(To(directory, kind, kOneFile, "again")), absl::OkStatus());
      });
      EXPECT_EQ(Bytes(directory.File("again.ckpt")), memory.bytes);
    }
  }
}

TEST(Functions, ThatFailFailTheCallOnAllRanks) {
  const Directory directory;
  Memory whole;
  RunReplicas({2, 2}, Layers(), [&](Replica& r) {
    const bool first = r.replica() == 0 && r.slot() == 0;
    const CheckpointKind kind = CheckpointKind::kPortable;
    Trainee trainee(r, Judged());
    for (int step = 0; step < 3; ++step) {
      trainee.Step();
    }
    r.Forward();
    const auto save = [&](Memory memory, const std::string& says) {
      const absl::Status status = r.edit().state().Save(Through(kind, first ? &memory : nullptr));
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(says));
      return memory.finished;
    };
    EXPECT_EQ(save({.fail_at = 0},
                   "rank 0: the checkpoint of the caller's functions: write_at "
                   "returned 5 at byte 128"),
              0);
    EXPECT_EQ(save({.fail_at = 7}, "write_at returned 5 at byte "), 0);
    EXPECT_EQ(save({.fail_at = -2}, "finish returned -7"), first ? 1 : 0);
    // The very last write is that of the header.
    const absl::Status saved = r.edit().state().Save(Through(kind, first ? &whole : nullptr));
    ASSERT_EQ(saved, absl::OkStatus());
    r.MeetAll();
    EXPECT_EQ(save({.fail_at = whole.calls - 1}, "returned 5 at byte 0"), 0);

    // Several files; missing functions; functions on some ranks only.
    CheckpointOptions wrong = Through(kind, first ? &whole : nullptr);
    wrong.full = false;
    EXPECT_THAT(std::string(r.edit().state().Save(wrong).message()),
                HasSubstr("full_state_dict: is 0"));
    wrong = Through(kind, nullptr);
    EXPECT_THAT(std::string(r.edit().state().Save(wrong).message()),
                HasSubstr("rank 0: functions: write_at is NULL"));
    wrong.functions->write_at = Memory::Write;
    EXPECT_THAT(std::string(r.edit().state().Save(wrong).message()),
                HasSubstr("rank 0: functions: finish is NULL"));
    EXPECT_THAT(std::string(r.edit().state().Load(wrong).message()),
                HasSubstr("rank 0: functions: read_at is NULL"));
    wrong.functions->read_at = Memory::Read;
    wrong.functions->bytes = -1;
    EXPECT_THAT(std::string(r.edit().state().Load(wrong).message()),
                HasSubstr("bytes: -1 is negative"));
    wrong = first ? Through(kind, &whole) : To(directory, kind);
    EXPECT_THAT(std::string(r.edit().state().Save(wrong).message()),
                HasSubstr("functions: 0 here, and 1 on rank 0"));

    // Loading fails for functions that fail, for damaged bytes, and for another length.
    const auto load = [&](Memory memory, absl::StatusCode code, const std::string& says) {
      const absl::Status status = r.edit().state().Load(Through(kind, first ? &memory : nullptr));
      EXPECT_EQ(status.code(), code) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(says));
    };
    Memory failing{.bytes = whole.bytes, .fail_at = 4};
    load(failing, absl::StatusCode::kFailedPrecondition, "read_at returned 3 at byte ");
    Memory damaged{.bytes = whole.bytes};
    damaged.bytes[130] ^= 1;
    load(damaged, absl::StatusCode::kInvalidArgument, "is damaged: the SHA-256");
    load({.bytes = whole.bytes.substr(0, whole.bytes.size() - 1)},
         absl::StatusCode::kInvalidArgument, "is cut off");
    load({.bytes = whole.bytes + " "}, absl::StatusCode::kInvalidArgument,
         "has something appended");
    load({}, absl::StatusCode::kInvalidArgument, "is not a checkpoint");
    EXPECT_EQ(r.edit().state().Save(To(directory, kind, {false, true}, "many")), absl::OkStatus());
    r.MeetAll();
    load({.bytes = Bytes(directory.File("many.ckpt"))}, absl::StatusCode::kFailedPrecondition,
         "refers to");
    load({.bytes = whole.bytes}, absl::StatusCode::kOk, "");
  });
}

}  // namespace
}  // namespace entrain
