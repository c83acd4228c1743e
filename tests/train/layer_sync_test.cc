// EDiT end to end: when it exchanges, how much it sends, and how it fails.

#include "lib/train/edit/layer_sync.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/clock.h"
#include "tests/train/arrays.h"
#include "tests/train/rounds.h"

namespace entrain {
namespace {

using testing::HasSubstr;

// ---- Times of exchanges -------------------------------------------------------------------------

TEST(LayerSync, WarmupIsSynchronousThenLocal) {
  RunReplicas({2, 2}, FourLayers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.local_sgd_warmup_steps = 2;
    options.local_sgd_sync_interval = 3;
    r.Edit(options);
    std::vector<int> exchanged;
    for (int step = 0; step < 9; ++step) {
      const EditInfo before = r.edit().info();
      EXPECT_EQ(before.in_warmup, step < 2);
      if (*r.edit().BeginForward(true, true)) {
        exchanged.push_back(step);
      }
      EXPECT_EQ(r.shards().gradient_scope(),
                step < 2 ? GradientScope::kGlobal : GradientScope::kLocal);
      const uint64_t sent = r.shards().stats().bytes_sent_sync;
      SgdStep{.lr = 0.1f}.Run(r, step);
      EXPECT_EQ(r.shards().stats().bytes_sent_sync > sent, step < 2) << "step " << step;
      if (exchanged.empty()) {
        EXPECT_EQ(r.edit().info().bytes_sent_sync, 0u);
        EXPECT_EQ(r.edit().info().bytes_sent_shard, 0u);
      }
      EXPECT_EQ(r.edit().info().steps, step + 1);
      EXPECT_EQ(r.edit().info().last_sync_step, step < 2 ? -1 : 2 + (step - 2) / 3 * 3);
    }
    EXPECT_THAT(exchanged, testing::ElementsAre(5, 8));
    EXPECT_EQ(r.edit().info().syncs, 2);
  });
}

TEST(LayerSync, ASecondForwardAtOneStepExchangesNothing) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    r.Edit(Weighed());
    r.Forward();
    r.DriftFromAnchor([&](int, int64_t) { return 0.5f; });
    r.EndStep();
    EXPECT_TRUE(r.Forward());
    const uint64_t checksum = r.edit().info().anchor_checksum;
    EXPECT_FALSE(r.Forward());
    ASSERT_EQ(r.edit().RequestSync(), absl::OkStatus());
    EXPECT_FALSE(r.Forward());
    EXPECT_EQ(r.edit().info().anchor_checksum, checksum);
    EXPECT_EQ(r.edit().info().syncs, 1);
  });
}

TEST(LayerSync, EvaluationAndLaterMicrobatchesNeverExchange) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.gradient_accumulation_steps = 2;
    r.Edit(options);
    r.Forward();
    EXPECT_FALSE(r.Forward(true, false));
    r.EndStep();
    EXPECT_FALSE(r.Forward(false));
    EXPECT_TRUE(r.Forward());
    EXPECT_FALSE(r.Forward(true, false));
    EXPECT_THAT(std::string(r.edit().BeginForward(true, false).status().message()),
                HasSubstr("micro-batch 3 of step 1, but gradient_accumulation_steps is 2"));
    r.EndStep();
    EXPECT_FALSE(r.Forward(true, false));
    EXPECT_TRUE(r.Forward(true, true));
  });
}

TEST(LayerSync, AStepHasAsManyMicrobatchesAsTheOptionSays) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.gradient_accumulation_steps = 3;
    r.Edit(options);
    const auto expect_refused = [&r](const char* says) {
      const absl::Status status = r.edit().EndStep();
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(says));
      EXPECT_EQ(r.edit().info().steps, 0);
    };
    expect_refused("0 of the step's micro-batches, but gradient_accumulation_steps is 3");
    r.Forward();
    r.Forward(false);  // evaluation does not count
    r.Forward(true, false);
    expect_refused("end_step 0: begin_forward was called for 2 of");
    r.Forward();  // begins the step again
    expect_refused("for 1 of");
    r.Forward(true, false);
    r.Forward(true, false);
    r.EndStep();
    EXPECT_EQ(r.edit().info().steps, 1);
  });
}

TEST(LayerSync, AStepWhoseGradientsWereNotReducedIsRefused) {
  RunReplicas({2, 2}, FourLayers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.gradient_accumulation_steps = 2;
    r.Edit(options);
    const auto refused = [&r](const char* says) {
      const absl::Status status = r.edit().EndStep();
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(says));
    };
    const auto reduce = [&r](int layer) {
      ASSERT_TRUE(r.shards().Gradients(layer).ok());
      ASSERT_EQ(r.shards().ReduceGradients(layer), absl::OkStatus());
    };
    const int last = r.shards().slab().layers() - 1;
    ASSERT_EQ(last, 3);
    r.Forward();
    r.Forward(true, false);
    for (int layer = 0; layer < last; ++layer) {
      reduce(layer);
    }
    refused("end_step 0: the gradients of layer 3 were not reduced in this step");
    ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
    refused("the gradients of layer 3 were not");
    ASSERT_TRUE(r.shards().Gradients(last).ok());
    ASSERT_TRUE(r.shards().Gradients(1).ok());
    refused("the gradients of layers 1, 3 were not");
    reduce(last);
    reduce(1);
    refused("nobody has waited for the gradients of layers 1, 3: call finish_gradients");
    EXPECT_EQ(r.edit().info().steps, 0);
    ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
    r.EndStep();
    // The caller reduces the gradients itself.
    r.Forward();
    r.Forward(true, false);
    r.EndStep();
    // A step that begins again keeps nothing of its first attempt.
    r.Forward();
    reduce(0);
    r.Forward();
    r.Forward(true, false);
    r.EndStep();
    EXPECT_EQ(r.edit().info().steps, 3);
    ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
  });
}

// The step's first micro-batch was never announced, so step 0 ended without anchors. The replicas
// may differ since then.
TEST(LayerSync, AnchorsThatWouldBeMadeLateAreRefused) {
  for (const bool plain : {false, true}) {
    RunReplicas({1, 2}, FourLayers(), [plain](Replica& r) {
      EditOptions options = plain ? EditOptions() : Averaging();
      options.local_sgd_warmup_steps = 1;
      r.Edit(options);
      for (int step = 0; step < 2; ++step) {
        EXPECT_FALSE(r.Forward(true, false));
        r.EndStep();
      }
      const absl::Status late = r.edit().BeginForward(true, true).status();
      EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
      EXPECT_THAT(std::string(late.message()),
                  HasSubstr("the anchors must be made before the first step after warm-up, step 1, "
                            "and this is step 2"));
      EXPECT_EQ(r.edit().info().last_sync_step, -1);
    });
  }
}

TEST(LayerSync, RequestsExchangeBetweenIntervalsOnce) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.local_sgd_sync_interval = 100;
    options.local_sgd_warmup_steps = 1;
    r.Edit(options);
    ASSERT_EQ(r.edit().RequestSync(), absl::OkStatus());
    EXPECT_FALSE(r.Forward());  // in warm-up the request is dropped
    r.EndStep();
    EXPECT_FALSE(r.Forward());  // makes the anchors
    r.EndStep();
    EXPECT_FALSE(r.Forward());
    ASSERT_EQ(r.edit().RequestSync(), absl::OkStatus());
    EXPECT_FALSE(r.Forward(false));
    EXPECT_TRUE(r.Forward());
    r.EndStep();
    EXPECT_FALSE(r.Forward());
  });
}

TEST(LayerSync, TwoObjectsInOneProcessDoNotMix) {
  RunMesh({2, 2}, [](const std::shared_ptr<Mesh>& mesh) {
    Replica one(mesh, FourLayers()), two(mesh, FourLayers());
    one.Edit(Averaging());
    EditOptions options = Averaging();
    options.local_sgd_warmup_steps = 1;
    two.Edit(options);
    for (int step = 0; step < 6; ++step) {
      const auto first = one.edit().BeginForward(true, true);
      const auto second = two.edit().BeginForward(true, true);
      ASSERT_TRUE(first.ok() && second.ok());
      EXPECT_EQ(*first, step > 0);
      EXPECT_EQ(*second, step > 1);
      SgdStep{.lr = 0.25f}.Run(two, step);
      SgdStep{.lr = 0.5f}.Run(one, step);
    }
    one.DestroyEdit();
    EXPECT_TRUE(two.Forward());
  });
}

// ---- Traffic and overlap -----------------------------------------------------------------------

TEST(LayerSync, ExchangesCostTheirPayload) {
  RunReplicas({2, 2}, FourLayers(), [](Replica& r) {
    r.Edit(Weighed());
    r.Forward();
    r.EndStep();
    EXPECT_EQ(r.edit().info().bytes_sent_sync, 0u);
    EXPECT_TRUE(r.Forward());
    int64_t valid = 0, shared = 0;
    for (int l = 0; l < 4; ++l) {
      valid += r.shards().slab().layer(l).valid;
      shared += 1;
    }
    const EditInfo info = r.edit().info();
    // Across replicas: one record of a standing and four norms, and the deltas once.
    EXPECT_GE(info.bytes_sent_sync, 64u + 8 * 4 + 4u * static_cast<uint64_t>(valid));
    EXPECT_LE(info.bytes_sent_sync, 64u + 8 * 4 + 4u * static_cast<uint64_t>(valid) + 64);
    // Within a replica: four norms, four words of the standing and the anchors' checksum, then one
    // word for each layer's clip factor.
    EXPECT_EQ(info.bytes_sent_shard, 8u * 9 + 8u * static_cast<uint64_t>(shared));
  });
}

TEST(LayerSync, GathersAheadWaitForTheExchangeOfTheirLayer) {
  RunReplicas({2, 2}, FourLayers(3), [](Replica& r) {
    EditOptions options = Averaging();
    options.prefetch = 1;
    r.Edit(options);
    r.Forward();
    for (int round = 0; round < 20; ++round) {
      r.DriftFromAnchor([&](int, int64_t) { return static_cast<float>(2 * r.replica() + round); });
      const std::vector<float> anchor = r.Anchor();
      r.EndStep();
      ASSERT_TRUE(*r.edit().BeginForward(true, true));
      ASSERT_EQ(r.shards().BeginPass(Pass::kForward), absl::OkStatus());
      for (int l = 0; l < 4; ++l) {
        // Without WaitLayer: the gather itself waits for the exchange.
        const auto params = r.shards().Wait(l);
        ASSERT_TRUE(params.ok()) << params.status();
        const SlabLayer& shape = r.shards().slab().layer(l);
        for (int64_t i = 0; i < shape.valid; ++i) {
          ASSERT_NEAR(static_cast<const float*>(*params)[shape.first + i],
                      anchor[static_cast<size_t>(shape.offset + i)] + static_cast<float>(1 + round),
                      1e-3)
              << "round " << round << " layer " << l;
        }
        for (int64_t i = 0; i < shape.full; ++i) {
          ASSERT_TRUE(std::isfinite(static_cast<const float*>(*params)[i]));
        }
      }
      for (int l = 0; l < 4; ++l) {
        ASSERT_EQ(r.shards().Release(l), absl::OkStatus());
      }
    }
  });
}

TEST(LayerSync, TheWorkerRunsAsFarAheadAsItMay) {
  for (const int prefetch : {0, 1, 2}) {
    RunReplicas({2, 2}, FourLayers(), [&](Replica& r) {
      EditOptions options = Averaging();
      options.prefetch = prefetch;
      r.Edit(options);
      r.Forward();
      r.EndStep();
      ASSERT_TRUE(*r.edit().BeginForward(true, true));
      // The first layer that is not done, as the refusal of a state names it.
      const auto reaches = [&](int layer) {
        const std::string says = absl::StrCat("exchange of layer ", layer);
        const Deadline give_up = Deadline::After(10 * kSecond);
        while (r.edit().state().CheckSavable(CheckpointKind::kExact).message().find(says) ==
               absl::string_view::npos) {
          ASSERT_FALSE(give_up.Passed(Clock::Real().Now())) << "prefetch " << prefetch;
        }
      };
      reaches(prefetch);
      ASSERT_EQ(r.edit().WaitLayer(0), absl::OkStatus());
      reaches(prefetch + 1);
      for (int l = 0; l < 4; ++l) {
        ASSERT_EQ(r.edit().WaitLayer(l), absl::OkStatus());
      }
      EXPECT_GT(r.edit().info().sync_ns, 0u);
      EXPECT_GT(r.edit().info().exposed_ns, 0u);
    });
  }
}

// On a CPU the host computes, so it must not wait for data that its layer does not need.
// begin_forward and the gathers of all layers return before any other replica has come. A layer's
// wait is for that layer, not for the layer that is exchanged ahead. (A-EDiT's begin_forward waits
// for the other replicas, because it tells whether there is an exchange.)
TEST(Edit, NoHostSyncInsideASyncForward) {
  RunReplicas({2, 2}, FourLayers(), [](Replica& r) {
    const bool ahead = r.replica() == 0;
    EditOptions options = Judged();
    options.prefetch = ahead ? 1 : 0;
    r.Edit(options);
    r.Forward();
    r.DriftFromAnchor([&](int l, int64_t i) { return Noise(r.replica(), l, i) / 4; });
    r.EndStep();
    if (ahead) {
      ASSERT_TRUE(*r.edit().BeginForward(true, true));
      ASSERT_EQ(r.shards().BeginPass(Pass::kForward), absl::OkStatus());
      for (int l = 0; l < 4; ++l) {
        ASSERT_EQ(r.shards().Gather(l), absl::OkStatus());
      }
    }
    r.MeetAll();
    if (!ahead) {
      ASSERT_TRUE(*r.edit().BeginForward(true, true));
    }
    for (int l = 0; l < 4; ++l) {
      // Only the first replica has begun layer l + 1 before all have met.
      ASSERT_EQ(r.edit().WaitLayer(l), absl::OkStatus());
      if (ahead) {
        ASSERT_TRUE(r.shards().Wait(l).ok());
      }
      r.MeetAll();
    }
    for (int l = 0; l < 4 && ahead; ++l) {
      ASSERT_EQ(r.shards().Release(l), absl::OkStatus());
    }
    EXPECT_EQ(r.params(), r.Anchor());
  });
}

// ---- Errors ------------------------------------------------------------------------------------

TEST(LayerSync, OptionsThatDifferAreNamedOnAllRanks) {
  RunReplicas({2, 2}, FourLayers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.local_sgd_sync_interval = r.replica() == 1 ? 8 : 4;
    const absl::Status status = LayerSync::Create(r.mesh(), r.shared_shards(), options).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("edit: local_sgd_sync_interval: 4 on rank 0, 8 on rank 1 of the sync"));
  });
}

TEST(LayerSync, AnchorsThatDifferFailLoudlyWithBothChecksums) {
  RunReplicas({2, 2}, FourLayers(), [](Replica& r) {
    // No rank has broadcast: one replica begins with another value, by one bit in one shard.
    if (r.replica() == 1 && r.slot() == 0) {
      r.params()[3] = std::nextafter(r.params()[3], 9.0f);
    }
    r.Edit(Averaging());
    r.Forward();
    r.MeetAll();  // no rank may still be in Create
    absl::Status status = r.edit().EndStep();
    status.Update(r.edit().BeginForward(true, true).status());
    for (int l = 0; l < 4; ++l) {
      status.Update(r.edit().WaitLayer(l));
    }
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(
        std::string(status.message()),
        testing::ContainsRegex(
            r.slot() == 0 ? "edit: exchange 1: rendezvous: anchors differ: layer 0: checksum "
                            "[0-9a-f]{16} on replica 0, [0-9a-f]{16} on replica 1"
                          : "anchors differ: "));
    EXPECT_EQ(r.edit().EndStep().code(), status.code());
  });
}

TEST(LayerSync, MisuseIsNamedAndHarmless) {
  RunReplicas({2, 2}, FourLayers(), [](Replica& r) {
    r.Edit(Averaging());
    EXPECT_THAT(
        std::string(LayerSync::Create(r.mesh(), r.shared_shards(), Averaging()).status().message()),
        HasSubstr("another EDiT object"));
    EXPECT_TRUE(absl::IsFailedPrecondition(r.edit().CopyAnchor(r.grads().data())));
    r.Forward();
    EXPECT_THAT(std::string(r.edit().Report(0).status().message()),
                HasSubstr("no exchange of layer 0 yet"));
    EXPECT_THAT(std::string(r.edit().WaitLayer(4).message()),
                HasSubstr("layer: 4 is not in [0, 4)"));
    r.EndStep();
    ASSERT_TRUE(r.shards().Wait(2).ok());
    EXPECT_THAT(std::string(r.edit().BeginForward(true, true).status().message()),
                HasSubstr("layer 2 is gathered; release it first"));
    for (const int layer : {2, 3}) {  // also the layer that was gathered ahead
      ASSERT_EQ(r.shards().Release(layer), absl::OkStatus());
    }
    ASSERT_TRUE(*r.edit().BeginForward(true, true));
    ASSERT_EQ(r.edit().WaitLayer(1), absl::OkStatus());
    EXPECT_THAT(std::string(r.edit().EndStep().message()),
                HasSubstr("nobody has waited for the exchange of layer 0"));
    EXPECT_TRUE(absl::IsFailedPrecondition(r.edit().Report(0).status()));
    for (int l = 0; l < 4; ++l) {
      ASSERT_EQ(r.edit().WaitLayer(l), absl::OkStatus());
    }
    EXPECT_EQ(r.edit().EndStep(), absl::OkStatus());
  });
}

TEST(LayerSync, AReplicaThatNeverComesIsATimeout) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.timeout_ns = r.replica() == 0 ? 300 * kMillisecond : 0;
    r.Edit(options);
    r.Forward();
    r.EndStep();
    if (r.replica() == 0) {
      const int64_t start = Clock::Real().Now();
      ASSERT_TRUE(*r.edit().BeginForward(true, true));
      const absl::Status status = r.edit().WaitLayer(0);
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("edit: exchange 1: rendezvous: "));
      EXPECT_LT(Clock::Real().Now() - start, 5 * kSecond);
    }
    r.MeetAll();  // the mesh's own communicators still work
  });
}

TEST(LayerSync, AReplicaThatLeavesEndsTheOthersWaits) {
  RunReplicas({2, 2}, FourLayers(), [](Replica& r) {
    r.Edit(Averaging());
    r.Forward();
    r.EndStep();
    r.MeetAll();
    if (r.replica() == 1) {
      ASSERT_TRUE(*r.edit().BeginForward(true, true));
      r.DestroyEdit();  // in the middle of an exchange
      return;
    }
    ASSERT_TRUE(r.edit().BeginForward(true, true).ok());
    // The gather is held back until the layer's exchange, unless the communicator has already
    // ended.
    absl::Status status = r.shards().Gather(3);
    for (int l = 0; l < 4; ++l) {
      status.Update(r.edit().WaitLayer(l));
    }
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("edit: "));
    EXPECT_FALSE(r.shards().Wait(3).ok());
  });
}

// Keeps the calling thread, and threads that it starts meanwhile, on one core.
class OnOneCore {
 public:
  OnOneCore() {
    sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof(one), &one);
  }
  ~OnOneCore() { sched_setaffinity(0, sizeof(before_), &before_); }

 private:
  cpu_set_t before_;
};

// The other replica ends the exchange before this one comes to it.
void ComeToAnExchangeThatHasEnded(Replica& r) {
  // On one core, an idle-class thread gives way to the worker that it wakes: the exchange fails
  // before the caller continues.
  const sched_param none{};
  ASSERT_EQ(sched_setscheduler(0, SCHED_IDLE, &none), 0);
  const absl::StatusOr<bool> begun = r.edit().BeginForward(true, true);
  EXPECT_TRUE(begun.ok()) << begun.status();
  std::promise<absl::Status> waited;
  std::thread([&] { waited.set_value(r.edit().WaitLayer(3)); }).detach();
  std::future<absl::Status> status = waited.get_future();
  if (status.wait_for(std::chrono::seconds(10)) != std::future_status::ready) {
    std::fprintf(stderr, "WaitLayer has not returned after 10 s\n");
    std::abort();
  }
  EXPECT_FALSE(status.get().ok());
  EXPECT_EQ(sched_setscheduler(0, SCHED_OTHER, &none), 0);
}

TEST(LayerSync, AnExchangeThatFailsBeforeBeginForwardReturnsHoldsNobody) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    const OnOneCore pinned;
    for (int attempt = 0; attempt < 5; ++attempt) {
      r.Edit(Averaging());
      r.Forward();
      r.EndStep();
      r.Forward();  // from here on the worker's thread exists
      r.EndStep();
      r.MeetAll();
      if (r.replica() == 1) {
        ASSERT_TRUE(*r.edit().BeginForward(true, true));
        r.DestroyEdit();
      }
      r.MeetAll();
      if (r.replica() == 0) {
        ComeToAnExchangeThatHasEnded(r);
        r.DestroyEdit();
      }
    }
  });
}

// ---- Parameters in memory that the library does not see ----------------------------------------

// The parameters of a replica whose arrays are twins: they are valid only where the library may read
// them.
struct Elsewhere {
  explicit Elsewhere(Replica& r) : replica(r), params(r.params()) {}
  static int32_t Fetch(void* user) {
    auto& self = *static_cast<Elsewhere*>(user);
    self.replica.params() = self.params;
    ++self.fetches;
    return self.fails ? 5 : 0;
  }
  void Store() {
    params = replica.params();
    replica.params().assign(params.size(), std::nanf(""));
  }
  Replica& replica;
  std::vector<float> params;
  int fetches = 0;
  bool fails = false;
};

// Trains for some steps. Returns the last parameters.
std::vector<float> TrainElsewhere(Replica& r, EditOptions options, bool elsewhere, int* fetches) {
  Elsewhere other(r);
  if (elsewhere) {
    options.fetch = Elsewhere::Fetch;
    options.fetch_user = &other;
    r.params().assign(other.params.size(), std::nanf(""));
  }
  r.Edit(options);
  const auto forward = [&] {
    const int before = other.fetches;
    r.Forward();  // waits for all layers
    if (elsewhere && other.fetches > before) {
      EXPECT_EQ(other.fetches, before + 1);
      other.Store();
    }
  };
  for (int step = 0; step < 12; ++step) {
    forward();
    r.ForEach(elsewhere ? other.params : r.params(), [&](int layer, int64_t element, float& value) {
      value += 0.1f * Noise(layer, element, step,
                            step < options.local_sgd_warmup_steps ? 0 : r.replica() + 1);
    });
    r.EndStep();
  }
  *fetches = other.fetches;
  EXPECT_EQ(r.edit().RequestSync(), absl::OkStatus());
  forward();
  std::vector<float> last = elsewhere ? other.params : r.params();
  r.MeetAll();
  r.DestroyEdit();
  r.MeetAll();
  return last;
}

TEST(LayerSync, ParametersThatLieElsewhereGetTheSameBits) {
  EditOptions weighed = Weighed();
  weighed.local_sgd_warmup_steps = 2;
  weighed.local_sgd_sync_interval = 3;
  EditOptions behind = weighed;
  behind.overlap_steps = 2;
  EditOptions fragments = behind;
  fragments.fragments = 2;
  EditOptions plain;
  plain.local_sgd_sync_interval = 3;
  for (const EditOptions& options : {weighed, behind, fragments, plain}) {
    RunReplicas({2, 2}, FourLayers(), [&](Replica& r) {
      const std::vector<float> begin = r.params();
      int fetches = 0;
      const std::vector<float> here = TrainElsewhere(r, options, false, &fetches);
      EXPECT_EQ(fetches, 0);
      r.params() = begin;
      const std::vector<float> there = TrainElsewhere(r, options, true, &fetches);
      EXPECT_EQ(here, there);
      // Steps without an exchange or a merge cost nothing.
      EXPECT_GE(fetches, 3);
      EXPECT_LE(fetches, options.fragments > 1 ? 12 : options.overlap_steps > 0 ? 8 : 5);
    });
  }
}

TEST(LayerSync, ParametersThatCannotBeFetchedAreAnErrorOfAllRanks) {
  RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
    Elsewhere other(r);
    EditOptions options = Weighed();
    options.local_sgd_sync_interval = 1;
    options.fetch = Elsewhere::Fetch;
    options.fetch_user = &other;
    r.Edit(options);
    r.Forward();
    r.EndStep();
    r.MeetAll();  // both have created their objects
    other.fails = r.replica() == 1;
    absl::Status status = r.edit().BeginForward(true, true).status();
    for (int layer = 0; layer < 4 && status.ok(); ++layer) {
      status = r.edit().WaitLayer(layer);
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the function fetch returned 5"));
    r.MeetAll();
  });
}

// Ranks that make the same number of steps leave when they are ready, also with a round behind them.
TEST(LayerSync, DestroyingOneLetsTheRoundBehindEnd) {
  for (const int32_t fragments : {1, 2}) {
    for (const int overlap : {1, 2}) {
      RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
        EditOptions options = Weighed();
        options.local_sgd_sync_interval = 2;
        options.overlap_steps = overlap;
        options.fragments = fragments;
        r.Edit(options);
        for (int step = 0; step < 5; ++step) {  // a round begins at step 4
          if (step == 4 && r.replica() == 1) {  // the other one destroys its object meanwhile
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
          }
          r.Forward();
          r.EndStep();
        }
        r.DestroyEdit();
        r.MeetAll();
      });
    }
  }
}

// ---- Schedules of the caller -------------------------------------------------------------------

double RateOf(int layer, int64_t step) {
  return layer == 2 ? 0.25 : 1.0 / static_cast<double>(step);
}

double MomentumOf(int64_t step) {
  return step == 2 ? 0 : step < 3 ? 0.5 : 0.75;
}

EditOptions Scheduled() {
  EditOptions options;
  options.outer_optimizer = OuterKind::kSgd;
  options.outer_lr = 0.5;
  options.outer_momentum = 0.9;
  options.outer_nesterov = false;
  options.outer_schedule = [](void* user, int32_t layer, int64_t step, double* lr,
                              double* momentum) {
    EXPECT_EQ(*lr, 0.5);
    EXPECT_EQ(*momentum, 0.9);
    *lr = RateOf(layer, step);
    *momentum = MomentumOf(step);
    return user == nullptr ? 0 : *static_cast<int32_t*>(user);
  };
  return options;
}

TEST(LayerSync, TheOuterScheduleGivesTheRateAndTheMomentumOfEachStep) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    r.Edit(Scheduled());
    r.Forward();
    const std::vector<float> begin = r.Anchor();
    std::vector<double> momentum(4, 0), moved(4, 0);
    for (int64_t step = 1; step <= 5; ++step) {
      r.DriftFromAnchor([&](int layer, int64_t) { return static_cast<float>(layer + 1); });
      r.EndStep();
      ASSERT_TRUE(r.Forward());
      const std::vector<float> anchor = r.Anchor();
      for (size_t l = 0; l < 4; ++l) {
        momentum[l] = MomentumOf(step) * momentum[l] + static_cast<double>(l + 1);
        moved[l] += RateOf(static_cast<int>(l), step) * momentum[l];
        const SlabLayer& layer = r.shards().slab().layer(static_cast<int>(l));
        for (int64_t i = 0; i < layer.valid; ++i) {
          const auto at = static_cast<size_t>(layer.offset + i);
          ASSERT_NEAR(anchor[at], begin[at] + moved[l], 1e-4) << "step " << step << " layer " << l;
        }
      }
    }
  });
}

TEST(LayerSync, AnOuterScheduleThatGivesNoRateEndsTheExchangeOnAllRanks) {
  struct Wrong {
    const char* says;
    OuterScheduleFn schedule;
  };
  const Wrong wrongs[] = {
      {"outer_schedule: layer 0, step 1, returned 7",
       [](void*, int32_t, int64_t, double*, double*) { return 7; }},
      {"outer_schedule: layer 0, step 1: lr is -1; expected 0 or a positive number",
       [](void*, int32_t, int64_t, double* lr, double*) { return *lr = -1, 0; }},
      {"momentum is 1; expected at least 0 and less than 1",
       [](void*, int32_t, int64_t, double*, double* momentum) { return *momentum = 1, 0; }},
  };
  for (const Wrong& wrong : wrongs) {
    RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
      EditOptions options = Scheduled();
      options.outer_schedule = r.replica() == 1 ? wrong.schedule : options.outer_schedule;
      r.Edit(options);
      r.Forward();
      r.DriftFromAnchor([&](int, int64_t) { return 1.0f; });
      r.EndStep();
      r.MeetAll();
      absl::Status status = r.edit().BeginForward(true, true).status();
      for (int layer = 0; layer < 4 && status.ok(); ++layer) {
        status = r.edit().WaitLayer(layer);
      }
      if (r.replica() == 1) {
        EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.says));
      }
      r.MeetAll();
    });
  }
}

TEST(LayerSync, TheCallersIntervalsReplaceH) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.local_sgd_sync_interval = EditOptions().local_sgd_sync_interval;
    options.local_sgd_warmup_steps = 2;
    options.interval_schedule = [](void*, int64_t exchanges, int64_t steps) {
      EXPECT_EQ(steps, exchanges * (exchanges + 1) / 2);
      return exchanges < 4 ? static_cast<double>(exchanges + 1) : 0.5;
    };
    r.Edit(options);
    std::vector<int> exchanged;
    for (int step = 0; step < 13; ++step) {
      if (r.Forward()) {
        exchanged.push_back(step);
      }
      r.EndStep();
    }
    EXPECT_THAT(exchanged, testing::ElementsAre(3, 5, 8, 12));
    r.MeetAll();  // the error ends the exchange of a rank that is behind
    const absl::Status status = r.edit().BeginForward(true, true).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("interval_schedule: 0.5 steps after 4 exchanges"));
    r.MeetAll();
  });
}

TEST(LayerSync, TheCallersIntervalsAreNoShorterThanAnExchangeBehindThem) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    EditOptions options = Weighed();
    options.local_sgd_sync_interval = EditOptions().local_sgd_sync_interval;
    options.overlap_steps = 3;
    options.interval_schedule = [](void*, int64_t exchanges, int64_t) {
      return exchanges == 0 ? 4.0 : exchanges == 1 ? 3.0 : 2.0;
    };
    r.Edit(options);
    for (int step = 0; step < 8; ++step) {  // exchanges begin at steps 4 and 7
      r.Forward();
      r.EndStep();
      r.MeetAll();
    }
    const absl::Status status = r.edit().BeginForward(true, true).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("interval_schedule: 2 steps after 2 exchanges; expected an integer of at "
                          "least 3, overlap_steps"));
    r.MeetAll();
  });
}

TEST(LayerSync, IntervalsThatDifferBetweenReplicasAreRefusedByAll) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.local_sgd_sync_interval = EditOptions().local_sgd_sync_interval;
    int64_t last = r.replica() == 0 ? 3 : 4;
    options.interval_schedule_user = &last;
    options.interval_schedule = [](void* user, int64_t exchanges, int64_t) {
      return exchanges == 0 ? 2.0 : static_cast<double>(*static_cast<int64_t*>(user));
    };
    r.Edit(options);
    absl::Status status;
    for (int step = 0; step < 8 && status.ok(); ++step) {
      status = ForwardFourLayers(r.edit());
      if (status.ok()) {
        r.EndStep();
      }
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("interval_schedule: exchange 2 is after 5 steps on replica 0, after 6 "
                          "steps on replica 1"));
  });
}

TEST(LayerSync, TheCallersTimesReplaceTau) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    FakeClock clock;
    EditOptions options = Averaging();
    options.local_sgd_sync_interval = EditOptions().local_sgd_sync_interval;
    options.use_async = true;
    options.min_total_global_steps = 1;
    options.clock = &clock;
    options.interval_schedule = [](void*, int64_t exchanges, int64_t) {
      return static_cast<double>(exchanges + 1);
    };
    r.Edit(options);
    r.Forward();
    std::vector<int> exchanged;
    for (int second = 1; second <= 7; ++second) {
      r.EndStep();
      clock.Advance(kSecond);
      if (r.Forward()) {
        exchanged.push_back(second);
      }
    }
    EXPECT_THAT(exchanged, testing::ElementsAre(1, 3, 6));
    r.MeetAll();
    r.DestroyEdit();
  });
}

}  // namespace
}  // namespace entrain
