// The contents of dumps of running communicators, while calls are under way, while a driver is
// stuck, and with many threads.
#include "lib/comm/flight/flight_log.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/flight/flight_socket.h"
#include "lib/net/local_socket.h"
#include "nlohmann/json.hpp"
#include "tests/support/ranks.h"
#include "tests/support/wait.h"

namespace entrain {
namespace {

using nlohmann::json;
using Comm = std::shared_ptr<Communicator>;
using testing::HasSubstr;

absl::Status AllReduce(const Comm& comm, int64_t count = 16) {
  std::vector<float> data(static_cast<size_t>(count), 1);
  return comm->AllReduce(data.data(), data.data(), count, DType::kF32, ReduceOp::kSum);
}

json Dump() {
  return json::parse(FlightLog::Get().Dump("test"));
}

// The communicator in a dump, as this rank has it.
json Of(const json& dump, const Comm& comm) {
  for (const json& one : dump["communicators"]) {
    if (one["rank"] == comm->rank() && one["name"] == comm->name()) {
      return one;
    }
  }
  return json();
}

// The environment is set while no other thread runs.
class FlightLogTest : public testing::Test {
 protected:
  FlightLogTest() {
    std::string directory = (std::filesystem::temp_directory_path() / "entrain_XXXXXX").string();
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
  }
  ~FlightLogTest() override {
    for (const char* name :
         {"ENTRAIN_FLIGHT_DIR", "ENTRAIN_FLIGHT_CALLS", "ENTRAIN_FLIGHT_SIGNAL"}) {
      unsetenv(name);
    }
    EXPECT_EQ(FlightLog::Get().Configure(), absl::OkStatus());
    std::filesystem::remove_all(directory_);
  }
  std::vector<json> Files() const {
    std::vector<json> files;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      std::ifstream file(entry.path());
      const std::string text(std::istreambuf_iterator<char>(file), {});
      const json dump = json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (!dump.is_discarded()) {  // else it is being written
        files.push_back(dump);
      }
    }
    return files;
  }
  std::filesystem::path directory_;
};

TEST_F(FlightLogTest, WrongSettingsAreRefused) {
  const auto refused = [](const char* name, const char* value) {
    setenv(name, value, 1);
    const std::string text(FlightLog::Get().Configure().message());
    unsetenv(name);
    return text;
  };
  EXPECT_EQ(refused("ENTRAIN_FLIGHT_CALLS", "-1"), "ENTRAIN_FLIGHT_CALLS: -1 is not in [0, 65536]");
  EXPECT_THAT(refused("ENTRAIN_FLIGHT_CALLS", "many"), HasSubstr("\"many\""));
  EXPECT_EQ(refused("ENTRAIN_FLIGHT_DIR", "/no/such"),
            "ENTRAIN_FLIGHT_DIR: \"/no/such\" is not a directory");
  EXPECT_EQ(refused("ENTRAIN_FLIGHT_SIGNAL", "HUP"),
            "ENTRAIN_FLIGHT_SIGNAL: \"HUP\" is neither USR1 nor USR2");
  EXPECT_EQ(refused("ENTRAIN_FLIGHT_SIGNAL", "USR1"),
            "ENTRAIN_FLIGHT_SIGNAL: \"USR1\" needs ENTRAIN_FLIGHT_DIR for its files");
}

TEST_F(FlightLogTest, SaysWhatACallWaitsFor) {
  absl::Notification taken;
  RunRanks(2, [&](const Comm& comm) {
    ASSERT_EQ(AllReduce(comm), absl::OkStatus());
    if (comm->rank() == 0) {
      std::thread call([&] { EXPECT_EQ(AllReduce(comm, 1024), absl::OkStatus()); });
      json own;
      EXPECT_TRUE(Becomes([&] {
        own = Of(Dump(), comm);
        // The ranks are missing if the driver answers late, or if the dump is made after the state
        // has changed and before the receive is posted.
        return own["calls"].back()["state"] == "receiving" &&
               own["calls"].back()["receives_from"] == json({1});
      })) << own;
      const json& last = own["calls"].back();
      EXPECT_EQ(last["arguments"], "all_reduce sum of 1024 f32");
      EXPECT_EQ(last["bytes"], 4096);
      EXPECT_EQ(last["path"], "executor");
      EXPECT_EQ(own["driver_answers"], true);
      EXPECT_EQ(own["ended"], nullptr);
      EXPECT_EQ(own["started"][0]["collectives"], last["number"]);
      EXPECT_EQ(own["members"][1]["transport"], "inproc");
      EXPECT_EQ(own["members"][0]["transport"], "self");
      // The other rank has finished the call before, and has not begun this one.
      json other;
      const json dump = Dump();
      for (const json& one : dump["communicators"]) {
        other = one["rank"] == 1 ? one : other;
      }
      EXPECT_EQ(other["id"], own["id"]);
      EXPECT_EQ(other["started"][0]["collectives"].get<int>(), last["number"].get<int>() - 1);
      EXPECT_EQ(other["calls"].back()["state"], "done");
      taken.Notify();
      call.join();
    } else {
      taken.WaitForNotification();
      EXPECT_EQ(AllReduce(comm, 1024), absl::OkStatus());
    }
  });
}

TEST_F(FlightLogTest, AStuckDriverDoesNotKeepTheDump) {
  absl::Notification looked;
  RunRanks(2, [&](const Comm& comm) {
    if (comm->rank() == 1) {
      looked.WaitForNotification();
      EXPECT_EQ(AllReduce(comm), absl::OkStatus());
      return;
    }
    absl::Notification stuck;
    std::thread driver([&] {
      comm->runtime().engine().seat().RunInDriver([&] {
        stuck.Notify();
        looked.WaitForNotification();
      });
    });
    stuck.WaitForNotification();
    std::thread call([&] { EXPECT_EQ(AllReduce(comm), absl::OkStatus()); });
    const int64_t before = Clock::Real().Now();
    json own;
    EXPECT_TRUE(Becomes([&] {
      own = Of(Dump(), comm);
      return own["calls"].back()["state"] == "planned";
    })) << own;
    EXPECT_EQ(own["driver_answers"], false);
    // Through the socket too: the thread that answers is not the driver.
    auto connected = ConnectLocal(FlightSocketName(getpid()));
    ASSERT_TRUE(connected.ok()) << connected.status();
    const Stop stop{Deadline::After(10 * kSecond)};
    char first = 0;
    EXPECT_EQ(ReadFull(connected->get(), &first, 1, stop), absl::OkStatus());
    EXPECT_EQ(first, '{');
    EXPECT_LT(Clock::Real().Now() - before, 10 * kSecond);
    looked.Notify();
    driver.join();
    call.join();
  });
}

TEST_F(FlightLogTest, TheFailureOfACommunicatorWritesOneFile) {
  setenv("ENTRAIN_FLIGHT_DIR", directory_.c_str(), 1);
  RunRanks(2, [&](const Comm& comm) {
    if (comm->rank() == 0) {
      CallOptions options;
      options.timeout_ns = 100 * kMillisecond;
      EXPECT_EQ(comm->Barrier(options).code(), absl::StatusCode::kDeadlineExceeded);
    } else {
      EXPECT_TRUE(Becomes([&] { return !comm->status().ok(); }));
    }
  });
  // The runtimes have ended, so the files are written: one for each rank, which has a runtime.
  const std::vector<json> files = Files();
  ASSERT_EQ(files.size(), 2u);
  int waiting = 0;
  for (const json& dump : files) {
    EXPECT_EQ(dump["why"], "failure of world");
    for (const json& comm : dump["communicators"]) {
      const json& last = comm["calls"].back();
      // The call as it was when the deadline passed. The dump for the other rank's failure may find
      // this communicator while it ends. Then the ranks are missing for which the call waits.
      if (comm["rank"] == 0 && last["receives_from"] == json({1})) {
        EXPECT_EQ(last["operation"], "barrier");
        EXPECT_EQ(last["state"], "receiving");
        EXPECT_EQ(comm["ended"]["code"], "ENTRAIN_TIMED_OUT");
        EXPECT_EQ(comm["ended"]["rank"], 1);
        ++waiting;
      }
    }
  }
  EXPECT_GE(waiting, 1);
}

TEST_F(FlightLogTest, ASignalWritesAFile) {
  setenv("ENTRAIN_FLIGHT_DIR", directory_.c_str(), 1);
  setenv("ENTRAIN_FLIGHT_SIGNAL", "USR2", 1);
  RunRanks(2, [&](const Comm& comm) {
    EXPECT_EQ(AllReduce(comm), absl::OkStatus());
    if (comm->rank() == 0) {
      kill(getpid(), SIGUSR2);
      EXPECT_TRUE(Becomes([&] { return Files().size() == 1; }));
      EXPECT_EQ(Files()[0]["why"], absl::StrCat("signal ", SIGUSR2));
      EXPECT_FALSE(Of(Files()[0], comm).is_null());
    }
    EXPECT_EQ(AllReduce(comm), absl::OkStatus());
  });
  signal(SIGUSR2, SIG_DFL);
}

TEST_F(FlightLogTest, AFileIsNeverOverwrittenAndTheirNumberIsBounded) {
  const std::string file = directory_ / "one.json";
  EXPECT_EQ(FlightLog::Get().DumpTo(file, "test").value(), file);
  const absl::Status again = FlightLog::Get().DumpTo(file, "test").status();
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()), HasSubstr("exists"));
  EXPECT_EQ(FlightLog::Get().DumpTo("/no/such/file", "test").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FlightLog::Get().DumpTo("", "test").status().code(),
            absl::StatusCode::kFailedPrecondition);
  setenv("ENTRAIN_FLIGHT_DIR", directory_.c_str(), 1);
  ASSERT_EQ(FlightLog::Get().Configure(), absl::OkStatus());
  int written = 0;
  while (FlightLog::Get().DumpTo("", "test").ok()) {
    ++written;
  }
  EXPECT_LE(written, FlightLog::kMostFiles);
  EXPECT_EQ(FlightLog::Get().DumpTo("", "test").status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Files().size(), static_cast<size_t>(written) + 1);
}

TEST_F(FlightLogTest, ZeroCallsTurnTheRecorderOff) {
  setenv("ENTRAIN_FLIGHT_CALLS", "0", 1);
  RunRanks(2, [&](const Comm& comm) {
    EXPECT_EQ(AllReduce(comm), absl::OkStatus());
    EXPECT_TRUE(Dump()["communicators"].empty());
    EXPECT_FALSE(ConnectLocal(FlightSocketName(getpid())).ok());
  });
}

TEST_F(FlightLogTest, AProcessWithoutCommunicatorsHasNoThread) {
  RunRanks(1, [](const Comm&) { EXPECT_TRUE(ConnectLocal(FlightSocketName(getpid())).ok()); });
  EXPECT_FALSE(ConnectLocal(FlightSocketName(getpid())).ok());
}

// Calls of all kinds by several threads a rank, parts that come and go, and threads that dump.
TEST_F(FlightLogTest, DumpsWhileEverythingMoves) {
  std::atomic<bool> over{false};
  std::atomic<int> dumps{0};
  std::vector<std::thread> dumpers;
  for (int i = 0; i < 3; ++i) {
    dumpers.emplace_back([&] {
      while (!over.load()) {
        const json dump = Dump();
        for (const json& comm : dump["communicators"]) {
          for (const json& call : comm["calls"]) {
            if (call.value("torn", false) || !call["tag"].is_number()) {
              continue;
            }
            // Tagged calls have as many elements as their tag says.
            EXPECT_EQ(call["arguments"],
                      absl::StrCat("all_reduce sum of ", call["tag"].get<int>() + 1, " f32"));
          }
        }
        dumps.fetch_add(1);
      }
    });
  }
  RunRanks(3, [&](const Comm& comm) {
    std::vector<std::thread> callers;
    for (int tag = 0; tag < 3; ++tag) {
      callers.emplace_back([&, tag] {
        std::vector<float> data(static_cast<size_t>(tag) + 1, 1);
        CallOptions options;
        options.user_tag = tag;
        for (int i = 0; i < 200; ++i) {
          EXPECT_EQ(comm->AllReduce(data.data(), data.data(), tag + 1, DType::kF32, ReduceOp::kSum,
                                    options),
                    absl::OkStatus());
        }
      });
    }
    for (int i = 0; i < 20; ++i) {
      const auto part = comm->Split(comm->rank() % 2, 0);
      ASSERT_TRUE(part.ok()) << part.status();
      for (int j = 0; j < 20; ++j) {
        EXPECT_EQ(AllReduce(*part), absl::OkStatus());
      }
    }
    for (std::thread& caller : callers) {
      caller.join();
    }
    EXPECT_TRUE(Becomes([&] { return dumps.load() >= 3; }));
  });
  over.store(true);
  for (std::thread& dumper : dumpers) {
    dumper.join();
  }
}

}  // namespace
}  // namespace entrain
