// Calls over connections that a third party alters, and the creation of communicators over hosts
// with and without a key.
#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/comm/communicator.h"
#include "lib/comm/create/runtime.h"
#include "lib/store/store.h"
#include "tests/support/namespaces.h"
#include "tests/support/passing_store.h"
#include "tests/support/processes.h"
#include "tests/support/slow_way.h"

namespace entrain {
namespace {

using testing::HasSubstr;

std::string KeyFileIn(const TempDirectory& directory) {
  std::string key = directory.path() + "/key";
  std::ofstream(key) << "a key of thirty-two random bytes";
  EXPECT_EQ(chmod(key.c_str(), 0600), 0);
  return key;
}

absl::Status AllReduce(Communicator& comm, const std::vector<float>& in, std::vector<float>* out) {
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = DType::kF32;
  call.count = static_cast<int64_t>(in.size());
  call.in = {const_cast<float*>(in.data()), call.count * 4};
  call.out = {out->data(), call.count * 4};
  call.options.timeout_ns = 20 * kSecond;
  return comm.Run(call);
}

absl::StatusOr<std::shared_ptr<Communicator>> CreateComm(const RuntimeOptions& runtime_options,
                                                         std::shared_ptr<Store> store, int rank) {
  ENTRAIN_ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(runtime_options));
  CommOptions options;
  options.runtime = runtime;
  options.store = std::move(store);
  options.rank = rank;
  options.size = 2;
  options.timeout_ns = 20 * kSecond;
  return Communicator::Create(options);
}

// A store that publishes the tcp address of a proxy in place of this rank's address.
class Between final : public PassingStore {
 public:
  using PassingStore::PassingStore;
  absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(absl::string_view key, int rank, int size,
                                                     const absl::StatusOr<Parts>& mine,
                                                     const Stop& stop) override {
    absl::StatusOr<Parts> changed = mine;
    for (std::string& part : *changed) {
      const size_t mark = part.find('#');
      const auto address = Address::Parse(part.substr(0, mark));
      if (mark != std::string::npos && address.ok()) {
        proxy_.emplace(*address, 0);
        part = proxy_->address().ToString() + part.substr(mark);
      }
    }
    return PassingStore::Join(key, rank, size, changed, stop);
  }
  SlowWay* proxy() { return proxy_.has_value() ? &*proxy_ : nullptr; }

 private:
  std::optional<SlowWay> proxy_;
};

// Each trial alters another byte. The call then fails on both ranks: they name each other, the
// operation and the phase. No rank gets a wrong sum.
TEST(SecureLink, AnAlteredByteFailsTheCallAndNoSumIsWrong) {
  const TempDirectory directory;
  setenv("ENTRAIN_TLS", "all", 1);
  for (int trial = 0; trial < 5; ++trial) {
    std::array<std::shared_ptr<Between>, 2> stores;
    std::array<std::shared_ptr<Communicator>, 2> comms;
    const auto base = *OpenStore(absl::StrCat("mem:secure", trial), "", {});
    RuntimeOptions options;
    options.transports = "tcp";
    options.interface_filter = "127.0.0.1";
    options.security.key_file = KeyFileIn(directory);
    const auto each_rank = [&](auto run) {
      auto other = std::async(std::launch::async, [&] { return run(1); });
      const absl::Status mine = run(0);
      return std::pair(mine, other.get());
    };
    const auto created = each_rank([&](int rank) {
      const auto at = static_cast<size_t>(rank);
      stores[at] = std::make_shared<Between>(base);
      auto comm = CreateComm(options, stores[at], rank);
      comms[at] = comm.ok() ? *comm : nullptr;
      return comm.status();
    });
    ASSERT_TRUE(created.first.ok() && created.second.ok()) << created.first << created.second;
    ASSERT_NE(stores[0]->proxy(), nullptr);
    const std::vector<float> in(4 << 20, 1);
    std::vector<float> out[2] = {in, in};
    const auto sum = [&](int rank) {
      return AllReduce(*comms[static_cast<size_t>(rank)], in, &out[rank]);
    };
    const auto good = each_rank(sum);
    ASSERT_TRUE(good.first.ok() && good.second.ok()) << good.first << good.second;
    EXPECT_EQ(out[0], std::vector<float>(in.size(), 2));
    std::thread altering([&] {
      // In the middle of the call, which takes a hundredth of a second.
      std::this_thread::sleep_for(std::chrono::milliseconds(2 * trial));
      stores[0]->proxy()->AlterOnce();
      stores[1]->proxy()->AlterOnce();
    });
    std::pair<absl::Status, absl::Status> ended = {absl::OkStatus(), absl::OkStatus()};
    for (int call = 0; call < 1000 && ended.first.ok() && ended.second.ok(); ++call) {
      ended = each_rank(sum);
      for (const int rank : {0, 1}) {
        if ((rank == 0 ? ended.first : ended.second).ok()) {
          EXPECT_EQ(out[rank], std::vector<float>(in.size(), 2));
        }
      }
    }
    altering.join();
    std::string texts;
    for (const int rank : {0, 1}) {
      const absl::Status& status = rank == 0 ? ended.first : ended.second;
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_EQ(BlameOf(status).rank, 1 - rank) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("all_reduce"));
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("rank ", 1 - rank)));
      texts += std::string(status.message());
    }
    EXPECT_THAT(texts, HasSubstr("altered on the way"));
  }
  unsetenv("ENTRAIN_TLS");
}

struct Report {
  int code = -1;
  char text[1024] = {};
};

class BetweenHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.made()) {
      GTEST_SKIP() << "no network namespaces here";
    }
  }
  // Runs a rank on each host.
  void OnBoth(const std::function<absl::Status(int rank)>& run) {
    std::vector<pid_t> children;
    for (const int rank : {0, 1}) {
      children.push_back(StartProcess([&] {
        const absl::Status status =
            hosts_.Enter(rank) ? run(rank) : absl::InternalError("no such host");
        reports_[rank].code = static_cast<int>(status.code());
        std::strncpy(reports_[rank].text, std::string(status.message()).c_str(),
                     sizeof(reports_[rank].text) - 1);
      }));
    }
    for (const pid_t child : children) {
      EXPECT_EQ(EndOf(child), 0);
    }
  }
  // Rank 0 serves the store. Both create a communicator over tcp and add.
  absl::Status Meet(int rank, const std::string& key_file) {
    ENTRAIN_ASSIGN_OR_RETURN(const Security security, LoadSecurity({key_file, {}}));
    const std::string url = absl::StrCat("tcp://", TwoHosts::AddressOf(0), ":29400");
    auto store = rank == 0 ? ServeStore(url, security)
                           : OpenStore(url, security, {Deadline::After(5 * kSecond)});
    ENTRAIN_RETURN_IF_ERROR(store.status());
    RuntimeOptions options;
    options.transports = "tcp";
    options.security.key_file = key_file;
    options.interface_filter = TwoHosts::AddressOf(rank);
    ENTRAIN_ASSIGN_OR_RETURN(const auto comm, CreateComm(options, *store, rank));
    const std::vector<float> in(1 << 20, 1);
    std::vector<float> out(in.size());
    ENTRAIN_RETURN_IF_ERROR(AllReduce(*comm, in, &out));
    return out == std::vector<float>(in.size(), 2) ? absl::OkStatus()
                                                   : absl::DataLossError("a wrong sum");
  }

  const TwoHosts hosts_;
  const TempDirectory directory_;
  const SharedWithChildren<std::array<Report, 2>> shared_;
  std::array<Report, 2>& reports_ = *shared_;
};

TEST_F(BetweenHosts, AKeyIsEnough) {
  const std::string key = KeyFileIn(directory_);
  OnBoth([&](int rank) { return Meet(rank, key); });
  EXPECT_EQ(reports_[0].code, 0) << reports_[0].text;
  EXPECT_EQ(reports_[1].code, 0) << reports_[1].text;
}

TEST_F(BetweenHosts, PlainTrafficIsPermittedByASetting) {
  OnBoth([&](int rank) {
    setenv("ENTRAIN_INSECURE", "1", 1);
    return Meet(rank, "");
  });
  EXPECT_EQ(reports_[0].code, 0) << reports_[0].text;
  EXPECT_EQ(reports_[1].code, 0) << reports_[1].text;
}

TEST_F(BetweenHosts, AStoreElsewhereIsRefusedWithoutAKey) {
  OnBoth([&](int rank) -> absl::Status {
    const std::string url = absl::StrCat("tcp://", TwoHosts::AddressOf(0), ":29400");
    if (rank == 0) {
      const auto store = ServeStore(url, "");
      while (static_cast<volatile Report&>(reports_[1]).code < 0 && store.ok()) {
        usleep(1000);
      }
      return store.status();
    }
    return OpenStore(url, "", {Deadline::After(20 * kSecond)}).status();
  });
  EXPECT_EQ(reports_[0].code, 0) << reports_[0].text;
  EXPECT_EQ(reports_[1].code, static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(reports_[1].text), HasSubstr("refuses plain traffic between hosts"));
  EXPECT_THAT(std::string(reports_[1].text), HasSubstr("openssl rand -hex 32"));
}

TEST_F(BetweenHosts, RanksElsewhereAreRefusedWithoutAKey) {
  OnBoth([&](int rank) -> absl::Status {
    auto store = OpenStore("file:" + directory_.path(), "", {Deadline::After(5 * kSecond)});
    ENTRAIN_RETURN_IF_ERROR(store.status());
    RuntimeOptions options;
    options.transports = "tcp";
    options.interface_filter = TwoHosts::AddressOf(rank);
    return CreateComm(options, *store, rank).status();
  });
  for (const int rank : {0, 1}) {
    const std::string text = reports_[rank].text;
    EXPECT_NE(reports_[rank].code, 0);
    EXPECT_THAT(text, HasSubstr("refuses plain traffic between hosts"));
    EXPECT_THAT(text, HasSubstr("openssl rand -hex 32"));
    EXPECT_THAT(text, HasSubstr("ENTRAIN_INSECURE=1"));
  }
}

}  // namespace
}  // namespace entrain
