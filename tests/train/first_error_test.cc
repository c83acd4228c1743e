#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "lib/train/edit/exchange_results.h"

namespace entrain {
namespace {

TEST(FirstError, IsTheFirstThatWasNoted) {
  FirstError error;
  EXPECT_EQ(error.status(), absl::OkStatus());
  EXPECT_EQ(error.Or(absl::AbortedError("mine")), absl::AbortedError("mine"));
  error.Note(absl::OkStatus());
  EXPECT_EQ(error.status(), absl::OkStatus());
  error.Note(absl::InternalError("first"));
  error.Note(absl::AbortedError("second"));
  error.Note(absl::OkStatus());
  EXPECT_EQ(error.status(), absl::InternalError("first"));
  EXPECT_EQ(error.Or(absl::AbortedError("mine")), absl::InternalError("first"));
  EXPECT_EQ(error.Or(absl::OkStatus()), absl::InternalError("first"));
}

TEST(FirstError, AllThreadsSeeTheSame) {
  FirstError error;
  std::vector<absl::Status> seen(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < seen.size(); ++i) {
    threads.emplace_back([&error, &seen, i] {
      error.Note(absl::InternalError(absl::StrCat("of thread ", i)));
      seen[i] = error.status();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const absl::Status& one : seen) {
    EXPECT_FALSE(one.ok());
    EXPECT_EQ(one, error.status());
  }
}

}  // namespace
}  // namespace entrain
