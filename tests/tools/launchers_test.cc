// entrain-perf and entrain-train as launchers start them: plain programs under the mpirun of each
// available MPI, and under the variables of srun and torchrun. All traffic stays on loopback.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/trainer/shell.h"

namespace entrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLimit[] = "timeout 60 ";

// Removes all variables of launchers. Allows more ranks than cores, and running as root.
void CleanEnvironment() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    for (const char* start : {"ENTRAIN_", "RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "OMPI_",
                              "PMI", "MPI_", "SLURM_", "TORCHELASTIC_"}) {
      if (absl::StartsWith(*entry, start)) {
        names.emplace_back(*entry, std::string(*entry).find('='));
        break;
      }
    }
  }
  for (const std::string& name : names) {
    unsetenv(name.c_str());
  }
  for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                           "OMPI_MCA_rmaps_base_oversubscribe"}) {
    setenv(name, "1", 1);
  }
}

// Returns a port that was free together with the one before it.
int FreePort() {
  for (;;) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    close(fd);
    if (ntohs(address.sin_port) > 1024) {
      return ntohs(address.sin_port);
    }
  }
}

class Launchers : public testing::Test {
 protected:
  Launchers() {
    CleanEnvironment();
    directory_ = testing::TempDir() + "entrain_launchers_XXXXXX";
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    std::ofstream text(directory_ + "/text");
    for (int i = 0; i < 3000; ++i) {
      text << (i % 3 == 0 ? "sync " : i % 7 == 0 ? "drift " : "again\n");
    }
  }
  ~Launchers() override { std::filesystem::remove_all(directory_); }

  static std::string Perf() {
    return ENTRAIN_PERF " all_reduce --min-bytes 1K --max-bytes 1K --budget 0.01";
  }
  // Returns a command that trains two replicas of two ranks, which exchange twice.
  std::string Train() const {
    return absl::StrCat(ENTRAIN_TRAIN, " --data ", directory_,
                        "/text --method edit --shard-size 2 --steps 4 --local-sgd-warmup-steps 0 "
                        "--local-sgd-sync-interval 2 --hidden-size 16 --layers 1 --heads 2 "
                        "--seq-length 16 --batch-size 2 --val-batches 1 --summary ",
                        directory_, "/summary");
  }
  static void ExpectFourMeasured(const Outcome& ended) {
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_THAT(ended.output, AllOf(HasSubstr("all_reduce"), HasSubstr("4 ranks")));
  }
  void ExpectFourTrained(const Outcome& ended) const {
    EXPECT_EQ(ended.code, 0) << ended.output;
    std::ifstream file(directory_ + "/summary");
    const std::string summary{std::istreambuf_iterator<char>(file), {}};
    EXPECT_THAT(summary, HasSubstr("\"ranks\": 4"));
  }

  std::string directory_;
};

// ---- mpirun

class Mpirun : public Launchers, public testing::WithParamInterface<const char*> {
 protected:
  // Returns the start of a command that runs a program on `ranks` ranks. Open MPI 4 gets a directory of its own: its mpiruns
  // share one by host and user, and the second of two that make it at the same time ends with an error.
  std::string OnRanks(int ranks) {
    return absl::StrCat("env OMPI_MCA_orte_tmpdir_base=", directory_, "/openmpi", started_++, " ",
                        kLimit, GetParam(), " -n ", ranks, " ");
  }

 private:
  int started_ = 0;
};

TEST_P(Mpirun, EntrainPerfNeedsNothingElse) {
  ExpectFourMeasured(Shell(absl::StrCat(OnRanks(4), Perf())));
}

TEST_P(Mpirun, NorDoesTheTrainer) {
  ExpectFourTrained(Shell(absl::StrCat(OnRanks(4), Train())));
}

TEST_P(Mpirun, WrappersMayStandBetween) {
  ExpectFourMeasured(Shell(absl::StrCat(OnRanks(4), "sh -c '", Perf(), " && true'")));
}

TEST_P(Mpirun, JobsAtTheSameTimeDoNotMeet) {
  const Outcome ended = Shell(
      absl::StrCat(OnRanks(2), Perf(), " & ", OnRanks(2), Perf(), "; a=$?; wait $! && exit $a"));
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("2 ranks"), Not(HasSubstr("4 ranks"))));
}

TEST_P(Mpirun, OneRankIsAWorldOfOne) {
  const Outcome ended = Shell(absl::StrCat(OnRanks(1), Perf()));
  EXPECT_EQ(ended.code, 0) << ended.output;
}

const std::vector<const char*> kMpiruns = {ENTRAIN_MPIRUNS};
INSTANTIATE_TEST_SUITE_P(Every, Mpirun, testing::ValuesIn(kMpiruns),
                         [](const auto& of) { return absl::StrCat("mpi", of.index); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Mpirun);

// ---- srun and torchrun: their variables

using Ranks = std::vector<std::vector<std::string>>;  // NAME=VALUE, by rank

// Runs the command on all ranks at the same time. The code is that of the last failed rank.
Outcome Start(const Ranks& ranks, const std::string& command) {
  std::string script;
  for (const auto& variables : ranks) {
    absl::StrAppend(&script, "env ", absl::StrJoin(variables, " "), " ", kLimit, command,
                    " & all=\"$all $!\"; ");
  }
  return Shell(
      absl::StrCat(script, "code=0; for one in $all; do wait $one || code=$?; done; exit $code"));
}

// Returns two tasks per node. `port`: the store's port, if one is needed.
Ranks Srun(const std::string& nodes, int count, int port) {
  Ranks ranks;
  const int per_node = 4 / count;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back({absl::StrCat("SLURM_PROCID=", rank), "SLURM_NTASKS=4",
                     "SLURM_STEP_NUM_TASKS=4", absl::StrCat("SLURM_LOCALID=", rank % per_node),
                     absl::StrCat("SLURM_NODEID=", rank / per_node), "SLURM_JOB_ID=77",
                     "SLURM_STEP_ID=0", absl::StrCat("SLURM_STEP_NODELIST=", nodes),
                     absl::StrCat("SLURM_STEP_RESV_PORTS=", port, "-", port + 3),
                     absl::StrCat("ENTRAIN_HOST_ID=node", rank / per_node)});
  }
  return ranks;
}

Ranks Torchrun(int port) {
  Ranks ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back({absl::StrCat("RANK=", rank), "WORLD_SIZE=4", absl::StrCat("LOCAL_RANK=", rank),
                     "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=127.0.0.1",
                     absl::StrCat("MASTER_PORT=", port - 1), "TORCHELASTIC_RUN_ID=job",
                     "TORCHELASTIC_RESTART_COUNT=0"});
  }
  return ranks;
}

TEST_F(Launchers, SrunOverTwoNodes) {
  ExpectFourMeasured(Start(Srun("127.0.0.[1-2]", 2, FreePort()), Perf()));
  ExpectFourTrained(Start(Srun("127.0.0.[1-2]", 2, FreePort()), Train()));
}

TEST_F(Launchers, SrunOnOneNode) {
  ExpectFourMeasured(Start(Srun("nobody[042]", 1, 1), Perf()));
  ExpectFourTrained(Start(Srun("nobody[042]", 1, 1), Train()));
}

TEST_F(Launchers, Torchrun) {
  ExpectFourMeasured(Start(Torchrun(FreePort()), Perf()));
  ExpectFourTrained(Start(Torchrun(FreePort()), Train()));
}

TEST_F(Launchers, ABatchScriptWithoutSrunIsToldSo) {
  for (const std::string& command : {Perf(), Train()}) {
    const Outcome ended =
        Start({{"SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_LOCALID=0", "SLURM_NODEID=0",
                "SLURM_JOB_ID=77", "SLURM_JOB_NODELIST=n[1-2]"}},
              command);
    EXPECT_NE(ended.code, 0);
    EXPECT_THAT(ended.output, AllOf(HasSubstr("this is the batch script itself"),
                                    HasSubstr("start the ranks with srun")));
  }
}

TEST_F(Launchers, AMalformedListOfNodesIsNamedWithItsVariable) {
  const Outcome ended = Start(Srun("'n[1-'", 2, 1), Perf());
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.output, HasSubstr("SLURM_STEP_NODELIST: node list \"n[1-\", at character 5"));
}

}  // namespace
}  // namespace entrain
