// The program entrain-perf, tested from outside: every collective with every transport, its output,
// the calls that it refuses, and the files that it leaves.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "nlohmann/json.hpp"
#include "tests/support/wait.h"

namespace entrain {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

struct Ended {
  int code = -1;  // exit code, or 1000 + signal
  std::string out, err;
};

// One run of the program. Its output is collected in files.
class Call {
 public:
  explicit Call(std::vector<std::string> arguments) : out_(std::tmpfile()), err_(std::tmpfile()) {
    std::vector<char*> pointers;
    for (std::string& argument : arguments) {
      pointers.push_back(argument.data());
    }
    pointers.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(fileno(out_), 1);
      dup2(fileno(err_), 2);
      execv(pointers[0], pointers.data());
      _exit(126);
    }
  }
  ~Call() {
    std::fclose(out_);
    std::fclose(err_);
  }
  pid_t pid() const { return pid_; }
  std::string out() const { return Read(out_); }
  Ended Wait() const {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), Read(out_),
            Read(err_)};
  }

 private:
  static std::string Read(std::FILE* file) {
    std::string text;
    char buffer[4096];
    ssize_t got = 0;
    while ((got = pread(fileno(file), buffer, sizeof(buffer), static_cast<off_t>(text.size()))) >
           0) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }
  std::FILE *out_, *err_;
  pid_t pid_;
};

Ended Perf(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), ENTRAIN_PERF);
  return Call(std::move(arguments)).Wait();
}

// A file name. The file is removed when the test ends.
class JsonFile {
 public:
  JsonFile() {
    char name[] = "/tmp/entrain_perf_test.XXXXXX";
    close(mkstemp(name));
    path_ = name;
  }
  ~JsonFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }
  std::vector<json> Lines() const {
    std::ifstream file(path_);
    std::vector<json> lines;
    for (std::string line; std::getline(file, line);) {
      lines.push_back(json::parse(line));
    }
    return lines;
  }

 private:
  std::string path_;
};

std::vector<pid_t> Children(pid_t parent) {
  std::ifstream file(absl::StrCat("/proc/", parent, "/task/", parent, "/children"));
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) {
    children.push_back(child);
  }
  return children;
}

class EveryCollective : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(EveryCollective, IsRightOnTwoRanks) {
  const auto [collective, transport] = GetParam();
  const JsonFile file;
  const Ended ended =
      Perf({collective, "-n", "2", "--transport", transport, "--min-bytes", "4", "--max-bytes",
            "300K", "--factor", "32", "--budget", "0.001", "--json", file.path()});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.err, "");
  const std::vector<json> lines = file.Lines();
  ASSERT_THAT(lines, SizeIs(std::string(collective) == "barrier" ? 1 : 5));
  for (const json& line : lines) {
    EXPECT_EQ(line.at("collective"), collective);
    EXPECT_EQ(line.at("transport"), transport);
    EXPECT_EQ(line.at("ranks"), 2);
    EXPECT_EQ(line.at("wrong"), 0);
    EXPECT_NE(line.at("algorithm"), "");
    EXPECT_GT(line.at("median_us"), 0);
    EXPECT_LE(line.at("min_us"), line.at("median_us"));
    EXPECT_LE(line.at("median_us"), line.at("p95_us"));
    EXPECT_GT(line.at("loop_us"), 0);
    EXPECT_TRUE(line.at("meet_us").is_null() || line.at("meet_us") > 0) << line;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, EveryCollective,
    ::testing::Combine(::testing::Values("all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                         "reduce", "gather", "scatter", "all_to_all", "scan",
                                         "exclusive_scan", "barrier", "send_recv"),
                       ::testing::Values("inproc", "shm", "tcp")),
    [](const auto& of) { return absl::StrCat(std::get<0>(of.param), "_", std::get<1>(of.param)); });

class EveryType : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(EveryType, IsReducedRightlyOnThreeRanks) {
  const auto [dtype, op] = GetParam();
  const Ended ended =
      Perf({"all_reduce", "-n", "3", "--transport", "inproc", "--dtype", dtype, "--op", op,
            "--min-bytes", "40", "--max-bytes", "100K", "--factor", "64", "--budget", "0"});
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
}

INSTANTIATE_TEST_SUITE_P(
    All, EveryType,
    ::testing::Combine(::testing::Values("f32", "f64", "bf16", "f16", "f8_e4m3", "f8_e5m2", "i8",
                                         "u8", "i16", "u16", "i32", "u32", "i64", "u64"),
                       ::testing::Values("sum", "prod", "min", "max", "avg", "land", "lor",
                                         "lxor")),
    [](const auto& of) { return absl::StrCat(std::get<0>(of.param), "_", std::get<1>(of.param)); });

INSTANTIATE_TEST_SUITE_P(Bits, EveryType,
                         ::testing::Combine(::testing::Values("i8", "u64"),
                                            ::testing::Values("band", "bor", "bxor")),
                         [](const auto& of) {
                           return absl::StrCat(std::get<0>(of.param), "_", std::get<1>(of.param));
                         });

INSTANTIATE_TEST_SUITE_P(
    Pairs, EveryType,
    ::testing::Combine(::testing::Values("f32_i32", "f64_i64", "i32_i32", "i64_i64"),
                       ::testing::Values("minloc", "maxloc")),
    [](const auto& of) { return absl::StrCat(std::get<0>(of.param), "_", std::get<1>(of.param)); });

TEST(EntrainPerf, SeveralTransportsAndAlgorithmsGiveOneLineEach) {
  const JsonFile file;
  const Ended ended =
      Perf({"all_reduce", "-n", "2", "--transport", "inproc,shm", "--algorithm", "ring,direct",
            "--min-bytes", "1K", "--max-bytes", "1K", "--budget", "0", "--json", file.path()});
  ASSERT_EQ(ended.code, 0) << ended.err;
  std::vector<std::string> seen;
  for (const json& line : file.Lines()) {
    seen.push_back(absl::StrCat(line.at("transport").get<std::string>(), " ",
                                line.at("algorithm").get<std::string>()));
    EXPECT_EQ(line.at("bytes"), 1024);
    EXPECT_EQ(line.at("count"), 256);
  }
  EXPECT_THAT(seen,
              ::testing::ElementsAre("inproc ring", "inproc direct", "shm ring", "shm direct"));
}

TEST(EntrainPerf, MeasuresOnMemoryThatThePeersMap) {
  for (const char* kind : {"private", "shared", "huge", "registered"}) {
    const Ended ended =
        Perf({"all_reduce", "-n", "2", "--transport", "inproc,shm,tcp", "--memory", kind,
              "--min-bytes", "100K", "--max-bytes", "400K", "--budget", "0.001"});
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(ended.out.find("buffers of entrain_mem_") != std::string::npos,
              kind != std::string("private"));
  }
}

#ifdef FAKE_CUDA_LIBRARY
// The host checks other memory than the memory that the calls get.
TEST(EntrainPerf, MeasuresAndChecksDeviceMemory) {
  setenv("ENTRAIN_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);  // NOLINT(concurrency-mt-unsafe)
  for (const char* collective : {"all_reduce", "all_gather", "send_recv", "broadcast", "barrier"}) {
    const Ended ended = Perf({collective, "-n", "2", "--memory", "device", "--min-bytes", "4K",
                              "--max-bytes", "1M", "--factor", "256", "--budget", "0.001"});
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_THAT(ended.out, ::testing::HasSubstr("buffers in device memory"));
  }
  setenv("ENTRAIN_CUDA_LIBRARY", "/nowhere/libcuda.so", 1);  // NOLINT(concurrency-mt-unsafe)
  const Ended without = Perf({"all_reduce", "-n", "2", "--memory", "device"});
  EXPECT_NE(without.code, 0);
  EXPECT_THAT(without.err, ::testing::HasSubstr("/nowhere/libcuda.so"));
  unsetenv("ENTRAIN_CUDA_LIBRARY");  // NOLINT(concurrency-mt-unsafe)
}
#endif

TEST(EntrainPerf, JsonIsReplacedUnlessAppended) {
  const JsonFile file;
  for (const auto& [flag, lines] : {std::pair("", 1), std::pair("", 1), std::pair("--append", 2)}) {
    std::vector<std::string> arguments{"barrier", "-n",     "2",        "--budget",
                                       "0",       "--json", file.path()};
    if (*flag != '\0') {
      arguments.emplace_back(flag);
    }
    EXPECT_EQ(Perf(arguments).code, 0);
    EXPECT_THAT(file.Lines(), SizeIs(lines));
  }
}

TEST(EntrainPerf, RunsUnderALauncher) {
  const Ended ended = Call({ENTRAIN_RUN, "-n", "2", "--no-label", "--", ENTRAIN_PERF, "all_gather",
                            "--max-bytes", "64", "--budget", "0", "--explain"})
                          .Wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("2 ranks"), HasSubstr("a shared page"), HasSubstr("algorithm")));
}

TEST(EntrainPerf, ExplainsChoicesAndEstimates) {
  const Ended ended = Perf({"all_gather", "-n", "2", "--transport", "shm", "--max-bytes", "64",
                            "--budget", "0", "--explain"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("# estimates for shm ranks 2 "),
                               HasSubstr("from the library's own values"), HasSubstr("# shm, "),
                               HasSubstr(": eager to "), HasSubstr("; estimates in us: "),
                               HasSubstr(" ring ")));
}

TEST(EntrainPerf, TheEnvironmentOverridesTheChoice) {
  for (const char* const algorithm : {"ring", "recursive_doubling"}) {
    setenv("ENTRAIN_ALGORITHMS", absl::StrCat("all_reduce:", algorithm).c_str(), 1);
    const JsonFile file;
    const Ended ended =
        Perf({"all_reduce", "-n", "2", "--transport", "shm", "--min-bytes", "64", "--max-bytes",
              "1M", "--factor", "1024", "--budget", "0", "--explain", "--json", file.path()});
    unsetenv("ENTRAIN_ALGORITHMS");
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_THAT(file.Lines(), SizeIs(3));
    for (const json& line : file.Lines()) {
      EXPECT_EQ(line.at("algorithm"), algorithm) << line.at("bytes");
    }
  }
}

TEST(EntrainPerf, TunesAFileThatIsThenChosenBy) {
  const JsonFile file;
  std::filesystem::remove(file.path());
  for (const char* ranks : {"2", "3", "3"}) {
    const Ended ended = Perf({"--tune", file.path(), "-n", ranks, "--transport", "inproc",
                              "--max-bytes", "4K", "--factor", "64", "--budget", "0"});
    ASSERT_EQ(ended.code, 0) << ended.err;
    EXPECT_THAT(ended.out,
                AllOf(HasSubstr("all_to_all"), HasSubstr("ranges go against the estimates")));
  }
  std::ifstream text(file.path());
  const std::string written((std::istreambuf_iterator<char>(text)), {});
  EXPECT_THAT(written, AllOf(HasSubstr("link inproc ranks 2 "), HasSubstr("link inproc ranks 3 "),
                             HasSubstr("link tcp_across ")));
  EXPECT_EQ(written.find("link inproc ranks 3 "), written.rfind("link inproc ranks 3 "));
  setenv("ENTRAIN_TUNING", file.path().c_str(), 1);
  const Ended explained = Perf({"broadcast", "-n", "2", "--transport", "inproc", "--max-bytes",
                                "64", "--budget", "0", "--explain"});
  unsetenv("ENTRAIN_TUNING");
  EXPECT_EQ(explained.code, 0) << explained.err;
  EXPECT_THAT(explained.out, HasSubstr("from " + file.path()));
}

// Sets ENTRAIN_FAULT for one test.
class Fault {
 public:
  explicit Fault(const char* value) { setenv("ENTRAIN_FAULT", value, 1); }
  ~Fault() { unsetenv("ENTRAIN_FAULT"); }
};

TEST(EntrainPerf, SeesTheRateAndLatencyOfAnEmulatedLink) {
  const Fault fault("rate=20MB/s,latency=2ms");
  const JsonFile file;
  const Ended ended =
      Perf({"all_reduce", "-n", "2", "--transport", "inproc,shm,tcp", "--algorithm", "ring",
            "--min-bytes", "1M", "--max-bytes", "1M", "--budget", "0", "--json", file.path()});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("# ENTRAIN_FAULT=rate=20MB/s,latency=2ms"));
  EXPECT_THAT(ended.err, HasSubstr("rank 1 sends as ENTRAIN_FAULT="));
  ASSERT_THAT(file.Lines(), SizeIs(3));
  for (const json& line : file.Lines()) {
    EXPECT_EQ(line.at("wrong"), 0);
    // Each rank sends 1 MiB, and each round waits for the one before. The clocks start when the
    // ranks have met.
    EXPECT_GE(line.at("min_us"), 0.9 * ((1 << 20) / 20.0 + 2 * 2000)) << line;
    EXPECT_LE(line.at("min_us"), 10 * ((1 << 20) / 20.0 + 2 * 2000)) << line;
  }
}

TEST(EntrainPerf, RefusesAnEmulatedLinkThatItDoesNotUnderstand) {
  const Fault fault("rate=20MB/s,latency=fast");
  const Ended ended = Perf({"barrier", "-n", "2", "--transport", "inproc", "--budget", "0"});
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.err,
              HasSubstr("ENTRAIN_FAULT: \"rate=20MB/s,latency=fast\": latency: \"fast\""));
}

TEST(EntrainPerf, ListsTransportsAndAlgorithms) {
  const Ended ended = Perf({"--list"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("transport inproc"), HasSubstr("transport shm"),
                               HasSubstr("transport tcp"), HasSubstr("algorithm all_reduce:ring")));
}

TEST(EntrainPerf, TellsItsVersion) {
  const Ended ended = Perf({"--version"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, testing::MatchesRegex("entrain-perf [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(EntrainPerf, EndsTheOthersWhenARankIsKilled) {
  const Call call({ENTRAIN_PERF, "barrier", "-n", "3", "--transport", "shm", "--budget", "3600"});
  ASSERT_TRUE(Becomes([&] { return call.out().find("busbw") != std::string::npos; }));
  const std::vector<pid_t> ranks = Children(call.pid());
  ASSERT_THAT(ranks, SizeIs(3));
  const auto killed = steady_clock::now();
  kill(ranks[1], SIGKILL);
  const Ended ended = call.Wait();
  EXPECT_LT(std::chrono::duration<double>(steady_clock::now() - killed).count(), 10);
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("rank 1"));
  for (const pid_t rank : ranks) {
    EXPECT_EQ(kill(rank, 0), -1) << "rank " << rank << " still runs";
  }
}

TEST(EntrainPerf, PassesOnSigterm) {
  const Call call({ENTRAIN_PERF, "barrier", "-n", "2", "--transport", "tcp", "--budget", "3600"});
  ASSERT_TRUE(Becomes([&] { return call.out().find("busbw") != std::string::npos; }));
  const std::vector<pid_t> ranks = Children(call.pid());
  kill(call.pid(), SIGTERM);
  EXPECT_EQ(call.Wait().code, 128 + SIGTERM);
  for (const pid_t rank : ranks) {
    EXPECT_EQ(kill(rank, 0), -1) << "rank " << rank << " still runs";
  }
}

struct BadCall {
  std::vector<std::string> arguments;
  const char* says;
};

class Refused : public ::testing::TestWithParam<BadCall> {};

TEST_P(Refused, WithOneLine) {
  const Ended ended = Perf(GetParam().arguments);
  EXPECT_THAT(ended.code, ::testing::AnyOf(1, 2));
  EXPECT_THAT(ended.err, HasSubstr(GetParam().says));
  const std::vector<std::string> lines = absl::StrSplit(ended.err, '\n', absl::SkipEmpty());
  EXPECT_THAT(lines, SizeIs(1));
}

INSTANTIATE_TEST_SUITE_P(
    All, Refused,
    ::testing::Values(
        BadCall{{}, "no COLLECTIVE"}, BadCall{{"allreduce"}, "\"allreduce\""},
        BadCall{{"all_reduce", "--dtype", "f33"}, "\"f33\""},
        BadCall{{"all_reduce", "--op", "xor"}, "\"xor\""},
        BadCall{{"all_reduce", "--min-bytes", "4Q"}, "\"4Q\""},
        BadCall{{"all_reduce", "--min-bytes", "2K", "--max-bytes", "1K"}, "2K"},
        BadCall{{"all_reduce", "--transport", "pigeon"}, "\"pigeon\""},
        BadCall{{"all_reduce", "--algorithm", "quick"}, "quick"},
        BadCall{{"all_reduce", "--dtype", "f16", "--op", "bor"},
                "op bor reduces integers only, not dtype f16"},
        BadCall{{"all_reduce", "--dtype", "i32_i32"}, "not op sum"},
        BadCall{{"all_reduce", "--memory", "2"},
                "--memory: \"2\" is not one of private, shared, huge, registered, device"},
        BadCall{{"all_reduce", "-n", "0"}, "--ranks"}, BadCall{{"all_reduce", "--pin"}, "-n"},
        BadCall{{"all_reduce", "-n", "2", "--json", "/no/such/file"}, "/no/such"},
        BadCall{{"all_reduce", "--bogus"}, "--bogus"},
        BadCall{{"all_reduce", "--tune", "/tmp/x"}, "COLLECTIVE: not with --tune"},
        BadCall{{"--tune", "/tmp/x", "-n", "1"}, "at least 2 ranks"},
        BadCall{{"--tune", "/no/such/file", "-n", "2", "--transport", "inproc", "--budget",
                 "3600"},  // the error comes before any measurement
                "/no/such/file"},
        BadCall{{"broadcast", "-n", "2", "--root", "2"}, "--root"},
        BadCall{{"send_recv", "-n", "1"}, "at least 2"},
        BadCall{{"all_reduce", "-n", "2", "--algorithm", "composed"}, "composed"}));

}  // namespace
}  // namespace entrain
