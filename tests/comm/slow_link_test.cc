// A link that is too slow for the deadline. All ranks are alive and in the call, so the error must
// not blame a rank.
#include <cstring>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/comm/communicator.h"
#include "lib/comm/create/runtime.h"
#include "lib/store/store.h"
#include "tests/support/namespaces.h"

namespace entrain {
namespace {

using testing::HasSubstr;

struct Report {
  int code = 0, guilty = 0;
  char text[512] = {};
};

absl::Status AllReduce(Communicator& comm, std::vector<float>& data, int64_t timeout_ns) {
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = DType::kF32;
  call.count = static_cast<int64_t>(data.size());
  call.in = call.out = {data.data(), call.count * 4};
  call.options.timeout_ns = timeout_ns;
  return comm.Run(call);
}

absl::Status RunRank(const std::string& directory, int rank) {
  auto store = OpenStore("file:" + directory, "", {Deadline::After(10 * kSecond)});
  RuntimeOptions runtime_options;
  runtime_options.transports = "tcp";
  runtime_options.interface_filter = TwoHosts::AddressOf(rank) + "/32";
  setenv("ENTRAIN_INSECURE", "1", 1);
  auto runtime = Runtime::Create(runtime_options);
  if (!store.ok() || !runtime.ok()) {
    return store.ok() ? runtime.status() : store.status();
  }
  CommOptions options;
  options.runtime = *runtime;
  options.store = *store;
  options.rank = rank;
  options.size = 2;
  options.timeout_ns = 20 * kSecond;
  auto comm = Communicator::Create(options);
  if (!comm.ok()) {
    return comm.status();
  }
  std::vector<float> small(10), large(4 << 20);
  const absl::Status warm = AllReduce(**comm, small, 20 * kSecond);
  // 16 MiB each way at 1 MB/s.
  return warm.ok() ? AllReduce(**comm, large, 2 * kSecond) : warm;
}

TEST(SlowLink, IsNoRanksFault) {
  const TwoHosts hosts;
  if (!hosts.made() || !hosts.Slow("8mbit")) {
    GTEST_SKIP() << "no network namespaces or no tc here";
  }
  auto* const reports = static_cast<Report*>(
      mmap(nullptr, 2 * sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::string directory = "/tmp/entrain-slow-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  pid_t children[2];
  for (int rank = 0; rank < 2; ++rank) {
    children[rank] = fork();
    ASSERT_GE(children[rank], 0);
    if (children[rank] == 0) {
      const absl::Status status =
          hosts.Enter(rank) ? RunRank(directory, rank) : absl::InternalError("setns");
      reports[rank].code = static_cast<int>(status.code());
      reports[rank].guilty = BlameOf(status).rank;
      std::strncpy(reports[rank].text, std::string(status.message()).c_str(),
                   sizeof(reports[rank].text) - 1);
      _exit(0);
    }
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(waitpid(children[rank], nullptr, 0), children[rank]);
    EXPECT_EQ(reports[rank].code, static_cast<int>(absl::StatusCode::kDeadlineExceeded));
    EXPECT_THAT(reports[rank].text, HasSubstr("the data did not arrive in time"));
    EXPECT_EQ(reports[rank].guilty, -1) << reports[rank].text;
  }
  munmap(reports, 2 * sizeof(Report));
  EXPECT_EQ(std::system(("rm -rf " + directory).c_str()), 0);
}

}  // namespace
}  // namespace entrain
