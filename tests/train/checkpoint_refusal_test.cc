// Checkpoints that fail. The earlier state stays, on the disk and in memory.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/checkpoint/checkpoint_file.h"
#include "tests/train/trainee.h"

namespace entrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- Replacing a checkpoint --------------------------------------------------------------------

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Replacing, LeavesOneCheckpoint) {
  const Directory directory;
  RunReplicas({2, 2}, Layers(), [&](Replica& r) {
    Trainee trainee(r, Judged());
    for (int step = 0; step < 4; ++step) {
      trainee.Step([&] {
        const Way way = {step == 3, false};
        EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kExact, way)),
                  absl::OkStatus());
        EXPECT_EQ(r.edit().state().Load(To(directory, CheckpointKind::kExact, way)),
                  absl::OkStatus());
        EXPECT_FALSE(r.Forward());  // the step begins again; its exchange is done
        r.MeetAll();
        if (r.replica() == 0 && r.slot() == 0) {
          EXPECT_EQ(directory.Files().size(), step == 3 ? 1u : 4u);
        }
        r.MeetAll();
      });
    }
  });
  EXPECT_THAT(directory.Files(), ::testing::ElementsAre("run.ckpt"));
}

// A launcher may start a run again, which begins anew at step 0 and saves under the old names.
TEST(Replacing, NeverUndoesALaterRun) {
  const Directory directory;
  const CheckpointOptions options = To(directory, CheckpointKind::kPortable, {true, true});
  RunReplicas({2, 1}, Layers(), [&](Replica& r) {
    Trainee trainee(r, Judged());
    trainee.Step();
    trainee.Step();
    trainee.Step([&] { EXPECT_EQ(r.edit().state().Save(options), absl::OkStatus()); });
  });
  const std::string later = Bytes(directory.File("run.ckpt"));
  RunReplicas({2, 1}, Layers(), [&](Replica& r) {
    Trainee trainee(r, Judged());
    trainee.Step();
    trainee.Step([&] {
      const absl::Status refused = r.edit().state().Save(options);
      EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(
          std::string(refused.message()),
          AllOf(HasSubstr("run.ckpt is of step 2, and this run, which has begun anew, is at "
                          "step 1"),
                HasSubstr("set overwrite")));
      r.MeetAll();
      EXPECT_EQ(Bytes(directory.File("run.ckpt")), later);
      r.MeetAll();
      CheckpointOptions wanted = options;
      wanted.overwrite = true;
      EXPECT_EQ(r.edit().state().Save(wanted), absl::OkStatus());
      EXPECT_NE(Bytes(directory.File("run.ckpt")), later);
    });
  });
  // A run that has gone back to an earlier checkpoint by itself goes on from there.
  std::filesystem::copy(directory.File("run.ckpt"), directory.File("earlier.ckpt"));
  std::ofstream(directory.File("run.ckpt"), std::ios::binary) << later;
  RunReplicas({2, 1}, Layers(), [&](Replica& r) {
    Trainee trainee(r, Judged());
    CheckpointOptions earlier = options;
    earlier.name = "earlier";
    EXPECT_EQ(r.edit().state().Load(earlier), absl::OkStatus());
    EXPECT_FALSE(r.Forward());
    EXPECT_EQ(r.edit().state().Save(options), absl::OkStatus());
    r.MeetAll();
    EXPECT_NE(Bytes(directory.File("run.ckpt")), later);
  });
}

// Makes files as if a process had been killed while it saved step-1, in files of its ranks.
void LeaveHalfASave(const Directory& directory) {
  std::ofstream(directory.File("step-1.ckpt.tmp"), std::ios::binary) << std::string(
      "\x89"
      "ENTR\0\0\0"
      "\x2a\0\0\0",
      12);
  std::ofstream(directory.File("step-1_0003_0000002a.ckpt")) << "a rank's";
}

TEST(Replacing, ClearsWhatKilledSavesHaveLeft) {
  const Directory directory;
  RunReplicas({2, 2}, Layers(), [&](Replica& r) {
    const bool first = r.replica() == 0 && r.slot() == 0;
    Trainee trainee(r, Judged());
    trainee.Step();
    trainee.Step([&] {
      const auto options = To(directory, CheckpointKind::kExact, {true, true});
      if (first) {
        LeaveHalfASave(directory);
      }
      r.MeetAll();
      EXPECT_EQ(r.edit().state().Save(options), absl::OkStatus());
      if (first) {
        EXPECT_THAT(directory.Files(), ::testing::ElementsAre("run.ckpt"));
        LeaveHalfASave(directory);  // later than the loaded one
      }
      EXPECT_EQ(r.edit().state().Load(options), absl::OkStatus());
      if (first) {
        EXPECT_EQ(directory.Files().size(), 3u);
        std::filesystem::rename(directory.File("run.ckpt"), directory.File("run2.ckpt"));
        std::filesystem::rename(directory.File("run2.ckpt"), directory.File("run.ckpt"));
      }
      r.MeetAll();
      EXPECT_EQ(r.edit().state().Load(options), absl::OkStatus());
      if (first) {
        EXPECT_THAT(directory.Files(), ::testing::ElementsAre("run.ckpt"));
      }
      EXPECT_FALSE(r.Forward());  // the step begins again; its exchange is done
      r.MeetAll();
    });
  });
}

// The current checkpoint needs the files of its ranks, also while a failing save finds a copy of
// its head.
TEST(Replacing, LosesNothingToACopyOfTheHead) {
  const Directory directory;
  std::signal(SIGXFSZ, SIG_IGN);
  RunReplicas({2, 2}, Layers(), [&](Replica& r) {
    Trainee trainee(r, Judged());
    trainee.Step();
    trainee.Step([&] {
      const auto options = To(directory, CheckpointKind::kExact, {false, false});
      EXPECT_EQ(r.edit().state().Save(options), absl::OkStatus());
      rlimit limit{};
      if (r.replica() == 0 && r.slot() == 0) {
        std::filesystem::copy_file(directory.File("run.ckpt"), directory.File("run.ckpt.tmp"));
        EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
        const rlimit small{600, limit.rlim_max};
        EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
      }
      r.MeetAll();
      EXPECT_FALSE(r.edit().state().Save(options).ok());
      r.MeetAll();
      if (r.replica() == 0 && r.slot() == 0) {
        EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
      }
      r.MeetAll();
      EXPECT_EQ(r.edit().state().Load(options), absl::OkStatus());
      EXPECT_FALSE(r.Forward());  // the step begins again; its exchange is done
      r.MeetAll();
    });
  });
}

TEST(Replacing, DoesNotHappenWhenTheDiskIsFull) {
  const Directory directory;
  std::signal(SIGXFSZ, SIG_IGN);
  std::string old;
  for (const Way way : {Way{true, true}, Way{false, false}}) {
    RunReplicas({2, 2}, Layers(), [&](Replica& r) {
      Trainee trainee(r, Judged());
      trainee.Step();
      trainee.Step([&] {
        const bool first = r.replica() == 0 && r.slot() == 0;
        EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kExact)), absl::OkStatus());
        rlimit limit{};
        if (first) {
          old = Bytes(directory.File("run.ckpt"));
          EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
          const rlimit small{600, limit.rlim_max};
          EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
        }
        r.MeetAll();
        const absl::Status status =
            r.edit().state().Save(To(directory, CheckpointKind::kExact, way));
        EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
        EXPECT_THAT(std::string(status.message()),
                    AllOf(HasSubstr("edit: save: rank "), HasSubstr("File too large")));
        r.MeetAll();
        if (first) {
          EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
          EXPECT_THAT(directory.Files(), ::testing::ElementsAre("run.ckpt"));
          EXPECT_EQ(Bytes(directory.File("run.ckpt")), old);
        }
        r.MeetAll();
        EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kExact, way, "later")),
                  absl::OkStatus());  // a refused call ends no communicator
      });
    });
    std::filesystem::remove(directory.File("later.ckpt"));
    for (const std::string& file : directory.Files()) {
      if (file.find("later") == 0) {
        std::filesystem::remove(directory.File(file));
      }
    }
  }
}

// ---- Refused checkpoints -----------------------------------------------------------------------

// Saves a small run, lets `spoil` change the files, and returns the error of loading. The error
// must be the same on all ranks, and loading must change nothing.
struct Refusal {
  Way way = {true, true};
  CheckpointKind saved = CheckpointKind::kExact, asked = CheckpointKind::kExact;
  Grid from = {2, 2}, to = {2, 2};
  EditOptions options = Judged(), other = Judged();
  ShardConfig layers = Layers();

  std::string Of(const std::function<void(const Directory&)>& spoil) const {
    const Directory directory;
    RunReplicas(from, Layers(), [&](Replica& r) {
      Trainee trainee(r, options);
      trainee.Step();
      trainee.Step(
          [&] { EXPECT_EQ(r.edit().state().Save(To(directory, saved, way)), absl::OkStatus()); });
    });
    spoil(directory);
    std::mutex mutex;
    std::vector<std::string> messages;
    RunReplicas(to, layers, [&](Replica& r) {
      Trainee trainee(r, other);
      const Seen before = Look(r, trainee);
      const absl::Status status = r.edit().state().Load(To(directory, asked, way));
      EXPECT_FALSE(status.ok());
      EXPECT_EQ(Look(r, trainee), before);
      EXPECT_FALSE(trainee.Step());  // makes the anchors, as in a new run
      EXPECT_TRUE(trainee.Step());
      const Seen running = Look(r, trainee);
      EXPECT_FALSE(r.edit().state().Load(To(directory, asked, way)).ok());
      EXPECT_EQ(Look(r, trainee), running);
      const std::lock_guard<std::mutex> lock(mutex);
      messages.push_back(std::string(status.message()));
    });
    for (const std::string& message : messages) {
      EXPECT_EQ(message, messages[0]);
    }
    return messages.empty() ? "" : messages[0];
  }
  std::string Unspoilt() const {
    return Of([](const Directory&) {});
  }
};

void Flip(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 0x10));
}

TEST(Loading, RefusesWhatIsDamaged) {
  for (const Way way : kWays) {
    const Refusal refusal{.way = way};
    EXPECT_THAT(refusal.Of([](const Directory& d) { Flip(d.File("run.ckpt"), 130); }),
                AllOf(HasSubstr("edit: load: rank "), HasSubstr("run.ckpt: \"anchor\" of layer 0"),
                      HasSubstr("is damaged: the SHA-256")));
    EXPECT_THAT(refusal.Of([](const Directory& d) {
      std::filesystem::resize_file(d.File("run.ckpt"), 1000);
    }),
                AllOf(HasSubstr("edit: load: rank 0: "), HasSubstr("is cut off: it has 1000")));
    EXPECT_THAT(refusal.Of([](const Directory& d) {
      std::ofstream(d.File("run.ckpt")) << "something else altogether";
    }),
                HasSubstr("is not a checkpoint"));
    EXPECT_THAT(refusal.Of([](const Directory& d) { std::filesystem::remove(d.File("run.ckpt")); }),
                HasSubstr("run.ckpt: cannot open it: No such file or directory"));
    EXPECT_THAT(refusal.Of([](const Directory& d) { Flip(d.File("run.ckpt"), 8); }),
                HasSubstr("has format version 17; this library reads up to 1"));
  }
}

// Returns the file of rank 3, whatever its name is.
std::string ShardOf3(const Directory& directory) {
  for (const std::string& file : directory.Files()) {
    if (file.find("run_0003_") == 0) {
      return directory.File(file);
    }
  }
  ADD_FAILURE() << "rank 3 has written no file";
  return "";
}

TEST(Loading, RefusesWhenOneOfManyFilesIsWrong) {
  for (const bool rank0_only : {false, true}) {
    const Refusal refusal{.way = {false, rank0_only}};
    EXPECT_THAT(refusal.Of([](const Directory& d) { Flip(ShardOf3(d), 130); }),
                AllOf(HasSubstr("run_0003_"), HasSubstr("rank 3's is damaged")));
    EXPECT_THAT(refusal.Of([](const Directory& d) { std::filesystem::remove(ShardOf3(d)); }),
                AllOf(HasSubstr("run_0003_"), HasSubstr("cannot open it")));
    EXPECT_THAT(refusal.Of([](const Directory& d) {
      const std::string path = ShardOf3(d);
      auto writer = CheckpointWriter::Create(path);
      ASSERT_TRUE(writer.ok());
      ASSERT_EQ((*writer)->Finish({}), absl::OkStatus());
      ASSERT_EQ((*writer)->Commit(), absl::OkStatus());
    }),
                HasSubstr("is of another checkpoint: the SHA-256 of its manifest is"));
  }
}

TEST(Loading, RefusesWhatDoesNotFit) {
  const Refusal elsewhere{.to = {1, 2}};
  EXPECT_THAT(elsewhere.Unspoilt(), HasSubstr("was saved on a mesh of 1 x 1 x 1 x 2 x 2 ranks"));
  const Refusal less{.saved = CheckpointKind::kPortable};
  EXPECT_THAT(less.Unspoilt(), HasSubstr("is portable, and an exact one was asked for"));
  Refusal other{.saved = CheckpointKind::kPortable, .asked = CheckpointKind::kPortable};
  other.layers.layer_counts[3] = 51;
  EXPECT_THAT(other.Unspoilt(), HasSubstr("its layer 3 has 50 elements, this model's 51"));
  other.layers = Layers();
  other.layers.layer_frozen[0] = 1;
  EXPECT_THAT(other.Unspoilt(), HasSubstr("its layer 0 is not frozen, this model's is"));
  other.layers = Layers();
  other.other.outer_momentum = 0;
  other.other.outer_nesterov = false;
  EXPECT_THAT(other.Unspoilt(),
              HasSubstr("has \"outer/0\" of layer 0, elements from 0, for which this run has no "
                        "place"));
  std::swap(other.options, other.other);
  EXPECT_THAT(other.Unspoilt(),
              HasSubstr("has no \"outer/0\" of layer 0, which this run's options ask for"));
  other.options = other.other = Judged();
  other.other.local_sgd_warmup_steps = 5;
  const Directory directory;
  RunReplicas({1, 1}, Layers(), [&](Replica& r) {
    Trainee trainee(r, Judged());
    r.Forward();
    EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kExact)), absl::OkStatus());
  });
  RunReplicas({1, 1}, Layers(), [&](Replica& r) {
    Trainee trainee(r, other.other);
    EXPECT_THAT(std::string(r.edit().state().Load(To(directory, CheckpointKind::kExact)).message()),
                HasSubstr("local_sgd_warmup_steps is 5"));
    CheckpointOptions wrong = To(directory, CheckpointKind::kExact);
    wrong.name = "../run";
    EXPECT_THAT(std::string(r.edit().state().Load(wrong).message()),
                HasSubstr("ckpt_name: \"../run\""));
    wrong.name = "run";
    wrong.directory = "";
    EXPECT_THAT(std::string(r.edit().state().Load(wrong).message()),
                HasSubstr("save_dir: is empty"));
  });
}

// Earlier versions kept the state of the published detector.
TEST(Loading, RefusesTheDetectorsOfAnEarlierVersion) {
  for (const CheckpointKind kind : {CheckpointKind::kExact, CheckpointKind::kPortable}) {
    Refusal older{.saved = kind, .asked = kind};
    older.options.ewma_as_published = true;
    EXPECT_THAT(older.Unspoilt(), HasSubstr("has no \"detector/0/weight\""));
  }
}

TEST(Saving, RefusesWhatRanksGiveDifferently) {
  const Directory directory;
  RunReplicas({2, 2}, Layers(), [&](Replica& r) {
    Trainee trainee(r, Judged());
    r.Forward();
    const bool odd = r.replica() == 1 && r.slot() == 0;
    CheckpointOptions to = To(directory, CheckpointKind::kExact, {!odd, true});
    EXPECT_THAT(std::string(r.edit().state().Save(to).message()),
                HasSubstr("rank 2: full_state_dict: 0 here, and 1 on rank 0"));
    to = To(directory, odd ? CheckpointKind::kExact : CheckpointKind::kPortable);
    EXPECT_THAT(std::string(r.edit().state().Load(to).message()),
                HasSubstr("rank 2: kind: exact here, and portable on rank 0"));
    to.kind = CheckpointKind::kExact;
    to.name = odd ? "other" : "run";
    EXPECT_THAT(std::string(r.edit().state().Save(to).message()),
                HasSubstr("rank 2: ckpt_name: other here, and run on rank 0"));
    to.name = "run";
    EXPECT_EQ(r.edit().state().Save(to), absl::OkStatus());
  });
}

TEST(Checkpoints, AreRefusedDuringAnExchangeWhichGoesOn) {
  const Directory directory;
  const CheckpointOptions exact = To(directory, CheckpointKind::kExact);
  RunReplicas({2, 2}, Layers(), [&](Replica& r) {
    r.Edit(Judged());
    r.Forward();
    for (int round = 1; round <= 20; ++round) {
      r.DriftFromAnchor([&](int l, int64_t i) { return Noise(r.replica(), round, l, i); });
      r.EndStep();
      ASSERT_TRUE(*r.edit().BeginForward(true, true));
      for (const absl::Status& status :
           {r.edit().state().Save(exact), r.edit().state().Load(exact)}) {
        EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr("is under way; wait for all layers first"));
      }
      for (int l = 0; l < static_cast<int>(kLayers.size()); ++l) {
        ASSERT_EQ(r.edit().WaitLayer(l), absl::OkStatus());
      }
      EXPECT_EQ(r.edit().info().syncs, round);
      ASSERT_EQ(r.params(), r.Anchor());
    }
    EXPECT_EQ(r.edit().state().Save(exact), absl::OkStatus());
  });
}

TEST(Loading, RefusesTheCallersArrayOfAnotherSize) {
  const Directory directory;
  const auto with = [&](int64_t count, DType dtype, bool save) {
    std::string message;
    RunReplicas({1, 1}, Layers(), [&](Replica& r) {
      std::vector<double> mine(8);
      LayerSync& edit = r.Edit(Judged());
      EXPECT_EQ(edit.state().AddState("mine", Holder::kRank, dtype, mine.data(), count),
                absl::OkStatus());
      EXPECT_THAT(
          std::string(edit.state().AddState("mine", Holder::kAll, dtype, mine.data(), 1).message()),
          HasSubstr("there is an array \"mine\" already"));
      EXPECT_THAT(
          std::string(edit.state().AddState("a b", Holder::kAll, dtype, nullptr, 0).message()),
          HasSubstr("edit: name: \"a b\" is not"));
      r.Forward();
      const CheckpointOptions at = To(directory, CheckpointKind::kExact);
      message = std::string((save ? edit.state().Save(at) : edit.state().Load(at)).message());
    });
    return message;
  };
  EXPECT_EQ(with(6, DType::kF32, true), "");
  EXPECT_EQ(with(6, DType::kF32, false), "");
  EXPECT_THAT(with(7, DType::kF32, false),
              HasSubstr("\"caller/mine\", rank 0's has 6 elements, here it has 7"));
  EXPECT_THAT(with(6, DType::kF64, false), HasSubstr("is of f32, here it is f64"));
}

}  // namespace
}  // namespace entrain
