// entrain_comm_create_from_env in processes. If the environment is wrong: the text of the error
// line, its status, and the time that it takes. Also the choice of the store's key.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain_test {
namespace {

using std::chrono::steady_clock;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

using Variables = std::vector<std::string>;  // NAME=VALUE

struct Ended {
  int code = -1;
  std::string err;
  double seconds = 0;
};

// One run of the program from_env, with these variables and no variable of a launcher.
class Program {
 public:
  explicit Program(Variables variables, const std::string& key_file = "")
      : start_(steady_clock::now()), err_(std::tmpfile()) {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      if (!IsLaunchers(*entry)) {
        variables.emplace_back(*entry);
      }
    }
    std::vector<std::string> arguments = {ENTRAIN_FROM_ENV};
    if (!key_file.empty()) {
      arguments.push_back(key_file);
    }
    std::vector<char*> argv = Pointers(arguments), envp = Pointers(variables);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(fileno(err_), 2);
      execve(argv[0], argv.data(), envp.data());
      _exit(126);
    }
  }
  ~Program() { std::fclose(err_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Ended Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    Ended ended;
    ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    ended.seconds = std::chrono::duration<double>(steady_clock::now() - start_).count();
    char buffer[4096];
    const ssize_t got = pread(fileno(err_), buffer, sizeof(buffer), 0);
    ended.err.assign(buffer, static_cast<size_t>(got > 0 ? got : 0));
    return ended;
  }

 private:
  static bool IsLaunchers(const std::string& entry) {
    for (const char* prefix : {"ENTRAIN_", "RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "OMPI_",
                               "PMI", "SLURM_", "TORCHELASTIC_"}) {
      if (entry.rfind(prefix, 0) == 0) {
        return true;
      }
    }
    return false;
  }
  static std::vector<char*> Pointers(std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    for (std::string& text : texts) {
      pointers.push_back(text.data());
    }
    pointers.push_back(nullptr);
    return pointers;
  }

  const steady_clock::time_point start_;
  std::FILE* const err_;
  pid_t pid_ = -1;
};

// Expects that creation failed, with one line that has the status, the function and these words. A
// rank that serves the store may have told before, in one line, that it has refused another rank.
void ExpectRefused(const Ended& ended, const std::string& status, const std::string& says) {
  EXPECT_EQ(ended.code, 3) << ended.err;
  const size_t told = ended.err.find(": refused 127.0.0.1:");
  const std::string line =
      ended.err.substr(told == std::string::npos ? 0 : ended.err.find('\n') + 1);
  EXPECT_THAT(line,
              AllOf(StartsWith(status + ": entrain_comm_create_from_env: "), HasSubstr(says)));
  EXPECT_EQ(line.find('\n') + 1, line.size()) << "more than one line: " << ended.err;
}

// A port of loopback with a listener that never sends anything, until it is closed.
class Occupied {
 public:
  // Nobody else has one of the seven ports behind it: a store would wait 10 s for each that is silent.
  Occupied() {
    do {
      Close();
      fd_ = Bind(0);
      EXPECT_EQ(listen(fd_, 16), 0);
      sockaddr_in address{};
      socklen_t length = sizeof(address);
      EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length), 0);
      port_ = ntohs(address.sin_port);
    } while (!RestIsFree());
  }
  ~Occupied() { Close(); }
  void Close() {
    if (fd_ >= 0) {
      close(fd_);
      fd_ = -1;
    }
  }
  int port() const { return port_; }

 private:
  // Returns a socket bound to a port, 0: to any; -1: somebody has the port.
  static int Bind(int port) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
      return fd;
    }
    close(fd);
    return -1;
  }
  bool RestIsFree() const {
    for (int next = 1; next < 8; ++next) {
      const int fd = Bind(port_ + next);
      if (fd < 0) {
        return false;
      }
      close(fd);
    }
    return true;
  }

  int fd_ = -1, port_ = 0;
};

// Returns the variables that torchrun sets for a rank of two. The first choice for its store is `port`.
Variables Torchrun(int rank, int port, Variables more = {}) {
  more.insert(more.end(),
              {"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "LOCAL_RANK=" + std::to_string(rank),
               "MASTER_ADDR=127.0.0.1", "MASTER_PORT=9000",
               "ENTRAIN_PORTS=" + std::to_string(port) + "-" + std::to_string(port + 7)});
  return more;
}

TEST(FromEnv, AWrongEnvironmentIsOneLineWithItsStatus) {
  struct Case {
    const char* status;
    const char* says;
    Variables variables;
  };
  const Case cases[] = {
      {"ENTRAIN_FAILED_PRECONDITION",
       "torchrun says rank 1 of 2, Open MPI says rank 0 of 2",
       {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "OMPI_COMM_WORLD_RANK=0",
        "OMPI_COMM_WORLD_SIZE=2", "ENTRAIN_STORE=mem:x"}},
      {"ENTRAIN_FAILED_PRECONDITION",
       "nothing says where to meet",
       {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2"}},
      {"ENTRAIN_INVALID_ARGUMENT",
       "RANK=2 is not below WORLD_SIZE=2",
       {"RANK=2", "WORLD_SIZE=2", "LOCAL_RANK=0"}},
      {"ENTRAIN_FAILED_PRECONDITION", "no launcher", {"ENTRAIN_STORE=mem:x"}},
      {"ENTRAIN_TIMED_OUT",
       "did not come: 1",
       {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "ENTRAIN_STORE=mem:x", "ENTRAIN_TIMEOUT=300ms"}},
      {"ENTRAIN_PEER_LOST",
       "127.0.0.1:1",
       {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "ENTRAIN_STORE=tcp://127.0.0.1:1",
        "ENTRAIN_TIMEOUT=300ms"}},
  };
  for (const Case& c : cases) {
    const Ended ended = Program(c.variables).Wait();
    ExpectRefused(ended, c.status, c.says);
    EXPECT_LT(ended.seconds, 20) << c.says;
  }
}

// The variables of a launcher that is not known, or half of those of a known one: the process runs
// alone, and says that it does.
TEST(FromEnv, AWorldOfOneBesideAnUnknownLauncherIsAWarning) {
  for (const std::string variable : {"PMIX_RANK=1", "FLUX_TASK_RANK=0", "MASTER_ADDR=10.0.0.1"}) {
    const Ended ended = Program({variable}).Wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(variable + " is set, but no variables that say the rank"));
  }
}

// Somebody has the port: then the store is on a later one. This one accepts connections and says
// nothing.
TEST(FromEnv, APortThatAnotherProgramHasIsPassedOver) {
  const Occupied occupied;
  Program first(Torchrun(0, occupied.port()));
  Program second(Torchrun(1, occupied.port()));
  for (Program* program : {&first, &second}) {
    const Ended ended = program->Wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_LT(ended.seconds, 20);
  }
}

// Here a job of this library has the port, and waits for its second rank. It must not meet one of this
// job.
TEST(FromEnv, JobsWithTheSamePortsDoNotMeet) {
  Occupied occupied;
  const int port = occupied.port();
  occupied.Close();
  Variables neighbour = Torchrun(0, port);
  Variables here = Torchrun(0, port), there = Torchrun(1, port);
  neighbour.push_back("ENTRAIN_RUN_ID=the neighbour's");
  Program waits(neighbour);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until it serves
  Program first(here), second(there);
  for (Program* program : {&first, &second}) {
    const Ended ended = program->Wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_LT(ended.seconds, 20);
  }
  // Nothing has happened to the neighbour.
  Variables late = Torchrun(1, port);
  late.push_back("ENTRAIN_RUN_ID=the neighbour's");
  Program comes(late);
  for (Program* program : {&waits, &comes}) {
    const Ended ended = program->Wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
  }
}

// Two jobs that cannot be told apart: the second is refused at once, and learns what tells them apart.
TEST(FromEnv, AJobThatIsStartedTwiceIsRefused) {
  Occupied occupied;
  const int port = occupied.port();
  occupied.Close();
  Program waits(Torchrun(0, port));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until it serves
  const Ended refused = Program(Torchrun(0, port)).Wait();
  ExpectRefused(refused, "ENTRAIN_FAILED_PRECONDITION", "the port is in use by another job with");
  EXPECT_THAT(refused.err, HasSubstr("ENTRAIN_RUN_ID"));
  EXPECT_LT(refused.seconds, 5);
  Program comes(Torchrun(1, port));
  for (Program* program : {&waits, &comes}) {
    const Ended ended = program->Wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
  }
}

// Two jobs share a directory by mistake.
TEST(FromEnv, JobsWithDifferentIdsDoNotMeetInOneStore) {
  char directory[] = "/tmp/entrain-shared-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const auto rank = [&](int number, const std::string& id) {
    return Program({"RANK=" + std::to_string(number), "WORLD_SIZE=2",
                    "LOCAL_RANK=" + std::to_string(number), "ENTRAIN_RUN_ID=" + id,
                    std::string("ENTRAIN_STORE=file:") + directory});
  };
  Program first = rank(0, "one"), other = rank(0, "two"), second = rank(1, "two"),
          last = rank(1, "one");
  for (Program* program : {&first, &other, &second, &last}) {
    const Ended ended = program->Wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
  }
  std::filesystem::remove_all(directory);
}

TEST(FromEnv, AStoreThatNobodyServesIsGivenUpLongBeforeTheDeadlineOfOperations) {
  Occupied occupied;
  occupied.Close();  // now the port has no listener
  const Ended ended = Program(Torchrun(1, occupied.port())).Wait();
  ExpectRefused(ended, "ENTRAIN_PEER_LOST", "127.0.0.1:" + std::to_string(occupied.port()));
  EXPECT_THAT(ended.err, HasSubstr("rank 0 serves it at MASTER_ADDR, on the first free port of "));
  EXPECT_GT(ended.seconds, 25);
  EXPECT_LT(ended.seconds, 40);
}

// Two key files with different keys.
class Keys : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(directory_), nullptr);
    right_ = Write("the right key of the job");
    wrong_ = Write("a wrong key of this job");
    Occupied occupied;
    port_ = occupied.port();
  }
  void TearDown() override {
    unlink(right_.c_str());
    unlink(wrong_.c_str());
    rmdir(directory_);
  }
  std::string Write(const char* key) {
    const std::string path = std::string(directory_) + "/" + key;
    std::FILE* const file = std::fopen(path.c_str(), "w");
    EXPECT_NE(file, nullptr);
    std::fputs(key, file);
    std::fclose(file);
    EXPECT_EQ(chmod(path.c_str(), 0600), 0);
    return path;
  }

  char directory_[32] = "/tmp/entrain-keys-XXXXXX";
  std::string right_, wrong_;
  int port_ = 0;
};

TEST_F(Keys, TheRuntimesKeyFileIsTheStoresOnBothSides) {
  Program serving(Torchrun(0, port_), right_);
  // The config takes precedence.
  Program opening(Torchrun(1, port_, {"ENTRAIN_KEY_FILE=" + wrong_}), right_);
  for (Program* program : {&serving, &opening}) {
    const Ended ended = program->Wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
  }
}

TEST_F(Keys, TheConfigsKeyIsTheOneOfTheEnvironment) {
  Program serving(Torchrun(0, port_, {"ENTRAIN_KEY_FILE=" + right_}));
  Program opening(Torchrun(1, port_), right_);
  for (Program* program : {&serving, &opening}) {
    const Ended ended = program->Wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
  }
}

// A rank whose key file is refused does not come to the meeting. A store that needs no proof of it
// tells the others.
TEST_F(Keys, TheOthersLearnSoonThatAKeyFileIsRefused) {
  ASSERT_EQ(chmod(wrong_.c_str(), 0644), 0);
  const std::string store = std::string("ENTRAIN_STORE=file:") + directory_ + "/store";
  const auto variables = [&](int rank, const std::string& key) {
    return Variables{"RANK=" + std::to_string(rank), "WORLD_SIZE=3", "LOCAL_RANK=0", store,
                     "ENTRAIN_KEY_FILE=" + key};
  };
  Program first(variables(0, right_)), second(variables(1, wrong_)), third(variables(2, right_));
  ExpectRefused(second.Wait(), "ENTRAIN_FAILED_PRECONDITION", "others may");
  for (Program* program : {&first, &third}) {
    const Ended ended = program->Wait();
    ExpectRefused(ended, "ENTRAIN_ABORTED", "rank 1 gave up: key file");
    EXPECT_THAT(ended.err, HasSubstr("others may"));
    EXPECT_LT(ended.seconds, 10);
  }
  std::filesystem::remove_all(std::string(directory_) + "/store");
}

// The reason is another setting, so the rank can prove to a tcp store that it belongs to the job.
TEST_F(Keys, TheOthersLearnSoonThatASettingIsRefused) {
  Program first(Torchrun(0, port_), right_);
  Program second(Torchrun(1, port_, {"ENTRAIN_KEY_FILE=" + right_, "ENTRAIN_TRANSPORTS=none"}));
  ExpectRefused(second.Wait(), "ENTRAIN_INVALID_ARGUMENT", "none");
  const Ended ended = first.Wait();
  ExpectRefused(ended, "ENTRAIN_ABORTED", "rank 1 gave up: transports \"none\"");
  EXPECT_LT(ended.seconds, 10);
}

// A process that does not hold the key must not be able to end the job.
TEST_F(Keys, AStoreThatNeedsAProofDoesNotBelieveARankWhoseKeyIsRefused) {
  Program first(Torchrun(0, port_, {"ENTRAIN_TIMEOUT=2s"}), right_);
  ASSERT_EQ(chmod(wrong_.c_str(), 0644), 0);
  Program second(Torchrun(1, port_, {"ENTRAIN_KEY_FILE=" + wrong_}));
  ExpectRefused(second.Wait(), "ENTRAIN_FAILED_PRECONDITION", "others may");
  ExpectRefused(first.Wait(), "ENTRAIN_TIMED_OUT", "did not come: 1");
}

TEST_F(Keys, AStoreServedWithAKeyRefusesRanksWithoutIt) {
  Program serving(Torchrun(0, port_, {"ENTRAIN_TIMEOUT=3s"}), right_);
  Program without(Torchrun(1, port_, {"ENTRAIN_TIMEOUT=3s"}));
  const Ended refused = without.Wait();
  ExpectRefused(refused, "ENTRAIN_FAILED_PRECONDITION", "127.0.0.1:" + std::to_string(port_));
  const Ended served = serving.Wait();
  ExpectRefused(served, "ENTRAIN_TIMED_OUT", "did not come: 1");
  EXPECT_THAT(served.err, HasSubstr("this side uses a key, the other has none (told once)"));
}

}  // namespace
// The refused rank is the one that can be corrected, so its own error names the key.
TEST_F(Keys, ARankWithAnotherKeyThanTheStoreIsToldSo) {
  Program serving(Torchrun(0, port_, {"ENTRAIN_TIMEOUT=6s"}), right_);
  Program opening(Torchrun(1, port_, {"ENTRAIN_TIMEOUT=3s"}), wrong_);
  const Ended refused = opening.Wait();
  ExpectRefused(refused, "ENTRAIN_FAILED_PRECONDITION",
                "ENTRAIN_KEY_FILE must name the same key on all ranks");
  EXPECT_THAT(refused.err, Not(HasSubstr("has not come")));
  ExpectRefused(serving.Wait(), "ENTRAIN_TIMED_OUT", "did not come: 1");
}

}  // namespace entrain_test
