#include "lib/comm/launch/launcher.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Env = std::map<std::string, std::string>;

absl::StatusOr<Launch> Detect(const Env& env) {
  return DetectLaunch(
      [&](const char* name) -> std::optional<std::string> {
        const auto found = env.find(name);
        return found == env.end() ? std::nullopt : std::optional<std::string>(found->second);
      },
      [](const std::string& rank_variable) -> absl::StatusOr<std::string> {
        return "started-" + rank_variable;
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
// A pod of an Indexed Job. The Job sets the index; its manifest sets the rest.
Env Kubernetes() {
  return {{"JOB_COMPLETION_INDEX", "3"},
          {"WORLD_SIZE", "8"},
          {"ENTRAIN_STORE", "etcd://etcd:2379/9be2"}};
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

// An agent counts only the restarts that it has begun itself. When a host joins or leaves, the
// agents of the other hosts restart their ranks without counting.
TEST(Launcher, TorchrunsCountOfRestartsIsNotTrustedAcrossAgents) {
  EXPECT_EQ(Detect(With(Torch(), {{"GROUP_WORLD_SIZE", "1"}}))->incarnation, "job7.2");
  for (const char* count : {"0", "2"}) {
    EXPECT_EQ(
        Detect(With(Torch(), {{"GROUP_WORLD_SIZE", "2"}, {"TORCHELASTIC_RESTART_COUNT", count}}))
            ->incarnation,
        "job7");
  }
}

int PortOf(const std::string& url) {
  return std::stoi(url.substr(url.rfind(':') + 1));
}

TEST(Launcher, TorchrunsRank0ServesOnAPortThatFollowsFromMasters) {
  const auto other = Detect(Torch());
  EXPECT_THAT(other->store_url, testing::StartsWith("tcp://10.0.0.9:"));
  EXPECT_FALSE(other->serve);
  const auto first = Detect(With(Torch(), {{"RANK", "0"}, {"LOCAL_RANK", "0"}}));
  EXPECT_EQ(first->store_url, other->store_url);
  EXPECT_EQ(first->other_urls, other->other_urls);
  EXPECT_TRUE(first->serve);
}

// Users give neighbouring MASTER_PORTs to their next jobs: a store must not take them.
TEST(Launcher, TheStoreIsFarFromTheMastersOfOtherJobs) {
  std::vector<int> ports;
  for (int master = 29500; master < 29516; ++master) {
    const auto launch = Detect(With(Torch(), {{"MASTER_PORT", std::to_string(master)}}));
    EXPECT_EQ(launch->other_urls.size(), 7u);
    EXPECT_THAT(launch->job, HasSubstr("MASTER_PORT " + std::to_string(master)));
    ports.push_back(PortOf(launch->store_url));
    EXPECT_THAT(ports.back(), testing::AllOf(testing::Ge(10000), testing::Le(28999)));
  }
  std::sort(ports.begin(), ports.end());
  for (size_t i = 1; i < ports.size(); ++i) {
    EXPECT_GT(ports[i] - ports[i - 1], 8);
  }
  EXPECT_THAT(Detect(With(Torch(), {{"ENTRAIN_STORE", "mem:x"}}))->other_urls, testing::IsEmpty());
}

TEST(Launcher, TheStoreIsInTheRangeThatTheUserGives) {
  const auto launch =
      Detect(With(Torch(), {{"ENTRAIN_PORTS", "29500-29502"}, {"MASTER_PORT", "29500"}}));
  std::vector<std::string> urls = launch->other_urls;
  urls.push_back(launch->store_url);
  EXPECT_THAT(urls, testing::UnorderedElementsAre("tcp://10.0.0.9:29501", "tcp://10.0.0.9:29502"));
  EXPECT_THAT(Error(With(Torch(), {{"ENTRAIN_PORTS", "29500"}})),
              HasSubstr("no port besides MASTER_PORT"));
  EXPECT_THAT(Error(With(Torch(), {{"ENTRAIN_PORTS", "many"}})), HasSubstr("ENTRAIN_PORTS"));
}

TEST(Launcher, TheRunIdTellsJobsApart) {
  const auto one = Detect(With(Torch(), {{"ENTRAIN_RUN_ID", "one"}}));
  const auto two = Detect(With(Torch(), {{"ENTRAIN_RUN_ID", "two"}}));
  EXPECT_NE(one->job, two->job);
  EXPECT_NE(one->incarnation, two->incarnation);
}

// A process that joins others may have no rank, and never serves the store.
TEST(Launcher, AProcessThatJoinsNeedsOnlyThePlace) {
  const auto look_up = [](const std::map<std::string, std::string>& env) {
    return [env](const char* name) {
      const auto found = env.find(name);
      return found == env.end() ? std::nullopt : std::optional(found->second);
    };
  };
  const auto master = DetectStore(look_up({{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "4000"}}));
  ASSERT_TRUE(master.ok()) << master.status();
  EXPECT_THAT(master->store_url, testing::StartsWith("tcp://n1:"));
  EXPECT_EQ(master->job, DetectStore(look_up(With(Torch(), {{"MASTER_PORT", "4000"}})))->job);
  EXPECT_FALSE(DetectStore(look_up(With(Torch(), {{"RANK", "0"}, {"LOCAL_RANK", "0"}})))->serve);
  const auto store =
      DetectStore(look_up({{"ENTRAIN_STORE", "tcp://n1:7"}, {"ENTRAIN_RUN_ID", "one"}}));
  EXPECT_EQ(store->store_url, "tcp://n1:7");
  EXPECT_EQ(store->incarnation, "one");
  EXPECT_THAT(std::string(DetectStore(look_up({})).status().message()),
              HasSubstr("no launcher is recognised"));
}

TEST(Launcher, TorchrunMasterMayBeIPv6) {
  for (const char* const address : {"fd00::1", "[fd00::1]"}) {
    EXPECT_THAT(Detect(With(Torch(), {{"MASTER_ADDR", address}}))->store_url,
                testing::StartsWith("tcp://[fd00::1]:"));
  }
}

TEST(Launcher, TorchrunWithoutMasterNamesWhatIsMissing) {
  EXPECT_THAT(Error(Without(Torch(), "MASTER_PORT")), HasSubstr("MASTER_PORT"));
  EXPECT_THAT(Error(Without(Torch(), "MASTER_ADDR")), HasSubstr("MASTER_ADDR"));
  EXPECT_THAT(Error(With(Torch(), {{"MASTER_PORT", "65536"}})), HasSubstr("MASTER_PORT=\"65536\""));
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
  // MASTER_ADDR is not needed then.
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
  // A job of one task has no other ranks to wait for.
  EXPECT_TRUE(Detect(With(batch, {{"SLURM_NTASKS", "1"}})).ok());
}

TEST(Launcher, Kubernetes) {
  const auto launch = Detect(Kubernetes());
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->launcher, "Kubernetes");
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->size, 8);
  EXPECT_EQ(launch->local_rank, -1);
  EXPECT_EQ(launch->local_size, 0);
  EXPECT_EQ(launch->store_url, "etcd://etcd:2379/9be2");
  EXPECT_EQ(launch->incarnation, "");
  // The Job's first pod can serve instead.
  const auto master = Detect(With(Without(Kubernetes(), "ENTRAIN_STORE"),
                                  {{"MASTER_ADDR", "train-0.train"}, {"MASTER_PORT", "4000"}}));
  EXPECT_THAT(master->store_url, testing::StartsWith("tcp://train-0.train:"));
  EXPECT_FALSE(master->serve);
}

TEST(Launcher, KubernetesNeedsItsSizeAndAPlaceToMeet) {
  EXPECT_THAT(Error(Without(Kubernetes(), "WORLD_SIZE")),
              AllOf(HasSubstr("JOB_COMPLETION_INDEX=3"), HasSubstr("WORLD_SIZE is not")));
  EXPECT_THAT(Error(With(Kubernetes(), {{"WORLD_SIZE", "3"}})),
              HasSubstr("JOB_COMPLETION_INDEX=3 is not below WORLD_SIZE=3"));
  EXPECT_THAT(Error(Without(Kubernetes(), "ENTRAIN_STORE")),
              AllOf(HasSubstr("Kubernetes"), HasSubstr("MASTER_ADDR"), HasSubstr("ENTRAIN_STORE")));
}

TEST(Launcher, PodOfKubernetesMayRunAnotherLauncher) {
  for (const Env& env : {Torch(), OpenMpi()}) {
    const auto launch = Detect(With(Kubernetes(), env));
    ASSERT_TRUE(launch.ok()) << launch.status();
    EXPECT_NE(launch->launcher, "Kubernetes");
    EXPECT_EQ(launch->rank, 3);
    EXPECT_TRUE(Detect(With(env, {{"JOB_COMPLETION_INDEX", "0"}})).ok()) << "the pod's number";
  }
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
  // torchrun runs as four Slurm tasks, with two ranks per host.
  const auto nested =
      Detect(With(With(Torch(), Slurm()), {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "1"}}));
  ASSERT_TRUE(nested.ok()) << nested.status();
  EXPECT_EQ(nested->launcher, "torchrun");
  EXPECT_EQ(nested->rank, 3);
  EXPECT_EQ(nested->size, 8);
  // mpirun runs inside a batch script. Slurm started no task, so its variables describe none.
  const auto batch =
      Detect(With(With(OpenMpi(), Without(Slurm(), "SLURM_STEP_ID")), {{"SLURM_PROCID", "0"}}));
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->rank, 3);
}

TEST(Launcher, NothingRecognisedListsWhatWasLookedFor) {
  const auto launch = Detect({{"ENTRAIN_STORE", "tcp://h:1"}});
  EXPECT_EQ(launch.status().code(), absl::StatusCode::kFailedPrecondition);
  for (const char* name :
       {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"}) {
    EXPECT_THAT(std::string(launch.status().message()), HasSubstr(name));
  }
}

// Two ranks, both on this host.
Env OnOneHost(Env env) {
  for (const char* size :
       {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"}) {
    if (env.count(size) > 0) {
      env[size] = "4";
    }
  }
  return Without(env, "ENTRAIN_STORE");
}

TEST(Launcher, OnOneHostRankZeroServesForTheProcessesOfOneLauncher) {
  const std::pair<Env, const char*> kinds[] = {{OnOneHost(OpenMpi()), "OMPI_COMM_WORLD_RANK"},
                                               {OnOneHost(Mpich()), "PMI_RANK"}};
  for (const auto& [env, rank] : kinds) {
    const auto other = Detect(env);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_EQ(other->store_url, std::string("local:started-") + rank);
    EXPECT_FALSE(other->serve);
    const auto first = Detect(With(env, {{rank, "0"}}));
    EXPECT_EQ(first->store_url, other->store_url);
    EXPECT_TRUE(first->serve);
  }
}

TEST(Launcher, WithoutAProcessInCommonThatIsSaid) {
  const Env env = OnOneHost(OpenMpi());
  const auto launch = DetectLaunch(
      [&](const char* name) -> std::optional<std::string> {
        const auto found = env.find(name);
        return found == env.end() ? std::nullopt : std::optional<std::string>(found->second);
      },
      [](const std::string&) -> absl::StatusOr<std::string> {
        return absl::FailedPreconditionError("no process above");
      });
  EXPECT_EQ(launch.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(launch.status().message()), HasSubstr("no process above"));
  EXPECT_THAT(std::string(launch.status().message()), HasSubstr("ENTRAIN_STORE"));
}

TEST(Launcher, MasterMayBeSetUnderAnyLauncher) {
  for (const Env& env : {OpenMpi(), Mpich(), Slurm()}) {
    const auto launch = Detect(
        With(Without(env, "ENTRAIN_STORE"), {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "4000"}}));
    ASSERT_TRUE(launch.ok()) << launch.status();
    EXPECT_THAT(launch->store_url, testing::StartsWith("tcp://node1:"));
  }
}

TEST(Launcher, AWorldOfOneNeedsNobody) {
  for (Env env : {OpenMpi(), Mpich(), Slurm()}) {
    for (auto& [name, value] : env) {
      if (name.find("SIZE") != std::string::npos || name == "SLURM_NTASKS" ||
          name == "MPI_LOCALNRANKS") {
        value = "1";
      } else if (name.find("RANK") != std::string::npos || name == "SLURM_PROCID") {
        value = "0";
      }
    }
    const auto launch = Detect(Without(env, "ENTRAIN_STORE"));
    ASSERT_TRUE(launch.ok()) << launch.status();
    EXPECT_THAT(launch->store_url, testing::StartsWith("mem:"));
    EXPECT_FALSE(launch->serve);
  }
}

TEST(Launcher, SeveralHostsWithoutAnAddressAreToldWhatToSet) {
  for (const Env& env : {OpenMpi(), Mpich()}) {
    const auto launch = Detect(Without(env, "ENTRAIN_STORE"));
    EXPECT_EQ(launch.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(launch.status().message()),
                AllOf(HasSubstr("of which 2 on this host"), HasSubstr("MASTER_ADDR"),
                      HasSubstr("ENTRAIN_STORE=tcp://")));
  }
}

// Rank 3 of 8 on the second of the nodes n07 and n08, as srun starts it.
Env SlurmNodes() {
  return With(Without(Slurm(), "ENTRAIN_STORE"),
              {{"SLURM_NODEID", "1"}, {"SLURM_STEP_NODELIST", "n[07-08]"}});
}

TEST(Launcher, TheFirstTaskOfASlurmStepsFirstNodeServes) {
  const auto other = Detect(SlurmNodes());
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_THAT(other->store_url, testing::MatchesRegex("tcp://n07:2[0-9][0-9][0-9][0-9]"));
  EXPECT_FALSE(other->serve);
  EXPECT_THAT(other->store_origin, HasSubstr("SLURM_STEP_NODELIST"));
  // Rank 3, which Slurm has placed first on this node.
  const auto first = Detect(With(SlurmNodes(), {{"SLURM_NODEID", "0"}, {"SLURM_LOCALID", "0"}}));
  EXPECT_EQ(first->store_url, other->store_url);
  EXPECT_TRUE(first->serve);
  // Without the node's number, rank 0 serves.
  const Env unknown = Without(SlurmNodes(), "SLURM_NODEID");
  EXPECT_FALSE(Detect(unknown)->serve);
  EXPECT_TRUE(Detect(With(unknown, {{"SLURM_PROCID", "0"}}))->serve);
}

TEST(Launcher, SlurmsPortIsTheStepsOrAReservedOne) {
  const std::string url = Detect(SlurmNodes())->store_url;
  EXPECT_NE(Detect(With(SlurmNodes(), {{"SLURM_STEP_ID", "1"}}))->store_url, url);
  EXPECT_NE(Detect(With(SlurmNodes(), {{"SLURM_JOB_ID", "78"}}))->store_url, url);
  const Env reserved = With(SlurmNodes(), {{"SLURM_STEP_RESV_PORTS", "12000-12003,13000"}});
  EXPECT_EQ(Detect(reserved)->store_url, "tcp://n07:12000");
  EXPECT_THAT(Error(With(SlurmNodes(), {{"SLURM_STEP_RESV_PORTS", "many"}})),
              HasSubstr("SLURM_STEP_RESV_PORTS=\"many\""));
}

TEST(Launcher, ASlurmStepOfOneNodeNeedsNoPort) {
  const auto launch = Detect(With(SlurmNodes(), {{"SLURM_STEP_NODELIST", "n[07]"}}));
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->store_url, "local:started-SLURM_PROCID");
  EXPECT_FALSE(launch->serve);
}

TEST(Launcher, SlurmsListOfNodesIsTheStepsElseTheJobs) {
  const Env job = With(SlurmNodes(), {{"SLURM_JOB_NODELIST", "m1,m2"}});
  EXPECT_THAT(Detect(job)->store_url, testing::StartsWith("tcp://n07:"));
  EXPECT_THAT(Detect(Without(job, "SLURM_STEP_NODELIST"))->store_url,
              testing::StartsWith("tcp://m1:"));
  EXPECT_THAT(Error(Without(SlurmNodes(), "SLURM_STEP_NODELIST")),
              AllOf(HasSubstr("SLURM_STEP_NODELIST"), HasSubstr("ENTRAIN_STORE")));
  EXPECT_THAT(Error(With(SlurmNodes(), {{"SLURM_STEP_NODELIST", "n[07-"}})),
              AllOf(HasSubstr("SLURM_STEP_NODELIST"), HasSubstr("\"n[07-\"")));
}

TEST(Launcher, TasksOfSlurmsWithPmiVariablesMeetAsSlurmSays) {
  Env env = With(SlurmNodes(), {{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}});  // srun --mpi=pmi2
  const auto launch = Detect(env);
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->launcher, "MPICH");
  EXPECT_THAT(launch->store_url, testing::StartsWith("tcp://n07:"));
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

TEST(Launcher, MoreRanksOfThisHostThanRanksAreNamed) {
  EXPECT_THAT(Error(With(Torch(), {{"LOCAL_WORLD_SIZE", "9"}})),
              HasSubstr("LOCAL_WORLD_SIZE=9 is above WORLD_SIZE=8"));
  EXPECT_THAT(Error(With(OpenMpi(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "9"}})),
              HasSubstr("OMPI_COMM_WORLD_LOCAL_SIZE=9 is above OMPI_COMM_WORLD_SIZE=8"));
}

TEST(Launcher, MissingSizeIsNamed) {
  EXPECT_THAT(Error(Without(Torch(), "WORLD_SIZE")), HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(Error(Without(Slurm(), "SLURM_NTASKS")),
              HasSubstr("SLURM_STEP_NUM_TASKS or SLURM_NTASKS"));
}

}  // namespace
}  // namespace entrain
