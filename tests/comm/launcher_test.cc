#include "lib/comm/launcher.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;
using Env = std::map<std::string, std::string>;

absl::StatusOr<Launch> Detect(const Env& env) {
  return DetectLaunch([&](const char* name) -> std::optional<std::string> {
    const auto found = env.find(name);
    return found == env.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}
std::string Error(const Env& env) {
  const auto launch = Detect(env);
  return launch.ok() ? "(no error)" : std::string(launch.status().message());
}

Env Torch() {
  return {{"RANK", "3"},
          {"WORLD_SIZE", "8"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "10.0.0.9"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RUN_ID", "job7"},
          {"TORCHELASTIC_RESTART_COUNT", "2"}};
}
Env OpenMpi() {
  return {{"OMPI_COMM_WORLD_RANK", "3"},
          {"OMPI_COMM_WORLD_SIZE", "8"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"PMIX_NAMESPACE", "prterun-host-812@1"},
          {"ENTRAIN_STORE", "tcp://10.0.0.9:4711"}};
}
Env Mpich() {
  return {{"PMI_RANK", "3"},
          {"PMI_SIZE", "8"},
          {"MPI_LOCALRANKID", "1"},
          {"MPI_LOCALNRANKS", "2"},
          {"ENTRAIN_STORE", "tcp://10.0.0.9:4711"}};
}
Env Slurm() {
  return {{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "8"},  {"SLURM_LOCALID", "1"},
          {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}, {"ENTRAIN_STORE", "file:/shared/x"}};
}
Env Without(Env env, const char* name) {
  env.erase(name);
  return env;
}
Env With(Env env, const Env& more) {
  for (const auto& [name, value] : more) {
    env[name] = value;
  }
  return env;
}

TEST(Launcher, Torchrun) {
  const auto launch = Detect(Torch());
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->launcher, "torchrun");
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->size, 8);
  EXPECT_EQ(launch->local_rank, 1);
  EXPECT_EQ(launch->local_size, 2);
  EXPECT_EQ(launch->incarnation, "job7.2");
}

TEST(Launcher, TorchrunServesOnThePortAfterMasters) {
  const auto other = Detect(Torch());
  EXPECT_EQ(other->store_url, "tcp://10.0.0.9:29501");
  EXPECT_FALSE(other->serve);
  const auto first = Detect(With(Torch(), {{"RANK", "0"}, {"LOCAL_RANK", "0"}}));
  EXPECT_EQ(first->store_url, "tcp://10.0.0.9:29501");
  EXPECT_TRUE(first->serve);
}

TEST(Launcher, TorchrunMasterMayBeIPv6) {
  EXPECT_EQ(Detect(With(Torch(), {{"MASTER_ADDR", "fd00::1"}}))->store_url,
            "tcp://[fd00::1]:29501");
  EXPECT_EQ(Detect(With(Torch(), {{"MASTER_ADDR", "[fd00::1]"}}))->store_url,
            "tcp://[fd00::1]:29501");
}

TEST(Launcher, TorchrunWithoutMasterNamesWhatIsMissing) {
  EXPECT_THAT(Error(Without(Torch(), "MASTER_PORT")), HasSubstr("MASTER_PORT"));
  EXPECT_THAT(Error(Without(Torch(), "MASTER_ADDR")), HasSubstr("MASTER_ADDR"));
  EXPECT_THAT(Error(With(Torch(), {{"MASTER_PORT", "65535"}})), HasSubstr("MASTER_PORT=\"65535\""));
}

TEST(Launcher, TorchrunVariablesWithoutLocalRankAreNotTrusted) {
  const auto launch = Detect(Without(Torch(), "LOCAL_RANK"));
  EXPECT_EQ(launch.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(launch.status().message()), HasSubstr("LOCAL_RANK is not"));
  EXPECT_THAT(std::string(launch.status().message()), HasSubstr("hosts"));
}

TEST(Launcher, EntrainStoreWins) {
  const auto launch =
      Detect(With(Torch(), {{"ENTRAIN_STORE", "tcp://h:1"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}}));
  EXPECT_EQ(launch->store_url, "tcp://h:1");
  EXPECT_FALSE(launch->serve);
  // And then master is not needed.
  EXPECT_TRUE(Detect(With(Without(Torch(), "MASTER_ADDR"), {{"ENTRAIN_STORE", "tcp://h:1"}})).ok());
}

TEST(Launcher, OpenMpi) {
  const auto launch = Detect(OpenMpi());
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->launcher, "Open MPI");
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->size, 8);
  EXPECT_EQ(launch->local_rank, 1);
  EXPECT_EQ(launch->local_size, 2);
  EXPECT_EQ(launch->store_url, "tcp://10.0.0.9:4711");
  EXPECT_FALSE(launch->serve);
  EXPECT_EQ(launch->incarnation, "prterun-host-812@1");
}

TEST(Launcher, Mpich) {
  const auto launch = Detect(Mpich());
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->launcher, "MPICH");
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->size, 8);
  EXPECT_EQ(launch->local_rank, 1);
  EXPECT_EQ(launch->local_size, 2);
  EXPECT_EQ(launch->incarnation, "");
  const auto bare = Detect(Without(Without(Mpich(), "MPI_LOCALRANKID"), "MPI_LOCALNRANKS"));
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_EQ(bare->local_rank, -1);
  EXPECT_EQ(bare->local_size, 0);
}

TEST(Launcher, Slurm) {
  const auto launch = Detect(Slurm());
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->launcher, "Slurm");
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->size, 8);
  EXPECT_EQ(launch->local_rank, 1);
  EXPECT_EQ(launch->incarnation, "77.0");
}

TEST(Launcher, SlurmPrefersTheStepsSize) {
  EXPECT_EQ(Detect(With(Slurm(), {{"SLURM_STEP_NUM_TASKS", "4"}}))->size, 4);
  EXPECT_EQ(Detect(With(Without(Slurm(), "SLURM_NTASKS"), {{"SLURM_STEP_NUM_TASKS", "4"}}))->size,
            4);
}

TEST(Launcher, SlurmBatchScriptWithoutStepIsExplained) {
  const Env batch = With(Without(Slurm(), "SLURM_STEP_ID"), {{"SLURM_PROCID", "0"}});
  EXPECT_EQ(Detect(batch).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Error(batch), HasSubstr("srun"));
  // Of one task there is nobody to wait for.
  EXPECT_TRUE(Detect(With(batch, {{"SLURM_NTASKS", "1"}})).ok());
}

TEST(Launcher, LaunchersThatAgreeAreFine) {
  const auto launch = Detect(With(With(Torch(), OpenMpi()), With(Mpich(), Slurm())));
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->launcher, "torchrun");
}

TEST(Launcher, LaunchersThatDisagreeAreBothListed) {
  const auto ranks = Detect(With(With(Torch(), OpenMpi()), {{"OMPI_COMM_WORLD_RANK", "5"}}));
  EXPECT_EQ(ranks.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(ranks.status().message()), HasSubstr("torchrun says rank 3 of 8"));
  EXPECT_THAT(std::string(ranks.status().message()), HasSubstr("Open MPI says rank 5 of 8"));
  const std::string sizes = Error(With(With(Mpich(), Slurm()), {{"PMI_SIZE", "4"}}));
  EXPECT_THAT(sizes, HasSubstr("MPICH says rank 3 of 4"));
  EXPECT_THAT(sizes, HasSubstr("Slurm says rank 3 of 8"));
  EXPECT_THAT(Error(With(With(Torch(), Slurm()), {{"SLURM_NTASKS", "5"}})), HasSubstr("disagree"));
}

TEST(Launcher, SlurmMayHaveStartedOneLauncherAHost) {
  // torchrun, two ranks a host, as four Slurm tasks.
  const auto nested =
      Detect(With(With(Torch(), Slurm()), {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "1"}}));
  ASSERT_TRUE(nested.ok()) << nested.status();
  EXPECT_EQ(nested->launcher, "torchrun");
  EXPECT_EQ(nested->rank, 3);
  EXPECT_EQ(nested->size, 8);
  // mpirun inside a batch script: Slurm started no task, so what it says is about none.
  const auto batch =
      Detect(With(With(OpenMpi(), Without(Slurm(), "SLURM_STEP_ID")), {{"SLURM_PROCID", "0"}}));
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->rank, 3);
}

TEST(Launcher, NothingRecognisedListsWhatWasLookedFor) {
  const auto launch = Detect({{"ENTRAIN_STORE", "tcp://h:1"}});
  EXPECT_EQ(launch.status().code(), absl::StatusCode::kFailedPrecondition);
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    EXPECT_THAT(std::string(launch.status().message()), HasSubstr(name));
  }
}

TEST(Launcher, StoreIsRequiredElsewhere) {
  for (const Env& env : {OpenMpi(), Mpich(), Slurm()}) {
    const auto launch = Detect(Without(env, "ENTRAIN_STORE"));
    EXPECT_EQ(launch.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(launch.status().message()), HasSubstr("ENTRAIN_STORE=tcp://"));
  }
}

TEST(Launcher, MalformedNumbersAreNamedWithTheirValue) {
  EXPECT_THAT(Error(With(Torch(), {{"RANK", "three"}})), HasSubstr("RANK=\"three\""));
  EXPECT_THAT(Error(With(Torch(), {{"RANK", "-1"}})), HasSubstr("RANK=\"-1\""));
  EXPECT_THAT(Error(With(Torch(), {{"WORLD_SIZE", "0"}})), HasSubstr("WORLD_SIZE=\"0\""));
  EXPECT_THAT(Error(With(Slurm(), {{"SLURM_NTASKS", "2(x3)"}})),
              HasSubstr("SLURM_NTASKS=\"2(x3)\""));
  EXPECT_THAT(Error(With(Torch(), {{"RANK", "99999999999"}})), HasSubstr("99999999999"));
}

TEST(Launcher, RankBeyondSizeIsNamed) {
  EXPECT_THAT(Error(With(Torch(), {{"RANK", "8"}})), HasSubstr("RANK=8 is not below WORLD_SIZE=8"));
  EXPECT_THAT(Error(With(Torch(), {{"LOCAL_RANK", "2"}})),
              HasSubstr("LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2"));
}

TEST(Launcher, MissingSizeIsNamed) {
  EXPECT_THAT(Error(Without(Torch(), "WORLD_SIZE")), HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(Error(Without(Slurm(), "SLURM_NTASKS")),
              HasSubstr("SLURM_STEP_NUM_TASKS or SLURM_NTASKS"));
}

}  // namespace
}  // namespace entrain
