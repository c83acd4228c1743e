#include "lib/base/status.h"

#include <cerrno>
#include <random>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

constexpr entrain_status_t kCodes[] = {ENTRAIN_OK,
                                       ENTRAIN_INVALID_ARGUMENT,
                                       ENTRAIN_FAILED_PRECONDITION,
                                       ENTRAIN_UNIMPLEMENTED,
                                       ENTRAIN_RESOURCE_EXHAUSTED,
                                       ENTRAIN_PEER_LOST,
                                       ENTRAIN_MISMATCH,
                                       ENTRAIN_STALE_GENERATION,
                                       ENTRAIN_TIMED_OUT,
                                       ENTRAIN_ABORTED,
                                       ENTRAIN_INTERNAL};

Blame FullBlame() {
  Blame blame;
  blame.rank = 3;
  blame.world_rank = 7;
  for (uint8_t i = 0; i < 16; ++i) {
    blame.peer_id[i] = static_cast<uint8_t>(200 + i);
  }
  blame.address = "tcp 127.0.0.1:4711";
  blame.operation = "all_reduce";
  blame.tag = 17;
  blame.sequence = 1234567890123;
  blame.generation = 5;
  blame.phase = Phase::kTransfer;
  blame.sys_errno = ECONNRESET;
  blame.elapsed_ns = 1'000'000'007;
  blame.deadline_ns = 30'000'000'000;
  blame.bytes_done = 4096;
  return blame;
}

void ExpectSameBlame(const Blame& a, const Blame& b) {
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.world_rank, b.world_rank);
  EXPECT_EQ(a.peer_id, b.peer_id);
  EXPECT_EQ(a.address, b.address);
  EXPECT_EQ(a.operation, b.operation);
  EXPECT_EQ(a.tag, b.tag);
  EXPECT_EQ(a.sequence, b.sequence);
  EXPECT_EQ(a.generation, b.generation);
  EXPECT_EQ(a.phase, b.phase);
  EXPECT_EQ(a.sys_errno, b.sys_errno);
  EXPECT_EQ(a.elapsed_ns, b.elapsed_ns);
  EXPECT_EQ(a.deadline_ns, b.deadline_ns);
  EXPECT_EQ(a.bytes_done, b.bytes_done);
}

TEST(StatusCodes, GoThereAndBack) {
  std::set<std::string> names;
  for (const entrain_status_t code : kCodes) {
    EXPECT_EQ(ToCode(absl::Status(FromCode(code), "why")), code);
    names.insert(CodeName(code));
  }
  EXPECT_EQ(names.size(), std::size(kCodes)) << "two codes share a name";
  EXPECT_STREQ(CodeName(ENTRAIN_PEER_LOST), "ENTRAIN_PEER_LOST");
  EXPECT_STREQ(CodeName(ENTRAIN_IN_PROGRESS), "ENTRAIN_IN_PROGRESS");
}

TEST(StatusCodes, APeersEndIsAProofThatStaysWithTheStatus) {
  const absl::Status lost = absl::UnavailableError("lost");
  EXPECT_FALSE(IsPeerEnded(lost));
  EXPECT_TRUE(IsPeerEnded(Annotate(AsPeerEnded(lost), "tcp")));
  EXPECT_EQ(AsPeerEnded(lost).code(), lost.code());
}

TEST(StatusCodes, UnknownOnesAreInternal) {
  EXPECT_EQ(ToCode(absl::CancelledError("x")), ENTRAIN_INTERNAL);
  EXPECT_EQ(ToCode(absl::NotFoundError("x")), ENTRAIN_INTERNAL);
  EXPECT_EQ(FromCode(-999), absl::StatusCode::kInternal);
  EXPECT_STREQ(CodeName(-999), "ENTRAIN_?");
}

TEST(StatusBlame, TravelsWithTheStatus) {
  const absl::Status status = WithBlame(absl::UnavailableError("rank 3 is gone"), FullBlame());
  EXPECT_TRUE(HasBlame(status));
  EXPECT_EQ(status.message(), "rank 3 is gone");
  ExpectSameBlame(BlameOf(status), FullBlame());
}

// If the list is cut, the number of late ranks still counts all.
TEST(StatusBlame, CountsAllLateRanks) {
  Blame blame = FullBlame();
  for (int32_t rank = 0; rank < 300; ++rank) {
    blame.late.push_back(rank);
  }
  blame.late_ranks = 300;
  const Blame got = BlameOf(WithBlame(absl::DeadlineExceededError("x"), blame));
  EXPECT_EQ(got.late_ranks, 300);
  ASSERT_EQ(got.late.size(), Blame::kMaxLate);
  EXPECT_EQ(got.late.back(), 127);
}

TEST(StatusBlame, IsEmptyWhereThereIsNone) {
  EXPECT_FALSE(HasBlame(absl::InternalError("x")));
  EXPECT_FALSE(HasBlame(WithBlame(absl::OkStatus(), FullBlame())));
  ExpectSameBlame(BlameOf(absl::InternalError("x")), Blame());
}

TEST(StatusBlame, KeepsTheStartOfTextsThatAreTooLong) {
  Blame blame = FullBlame();
  blame.address = std::string(1000, 'a');
  blame.operation = std::string(1000, 'o');
  const Blame got = BlameOf(WithBlame(absl::AbortedError("x"), blame));
  EXPECT_EQ(got.rank, 3);
  EXPECT_EQ(got.address, std::string(256, 'a'));
  EXPECT_EQ(got.operation, std::string(64, 'o'));
}

TEST(StatusAnnotate, PrefixesTheMessageAndKeepsTheRest) {
  const absl::Status status = WithBlame(absl::DeadlineExceededError("too late"), FullBlame());
  const absl::Status annotated = Annotate(status, "rank 2");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(annotated.message(), "rank 2: too late");
  ExpectSameBlame(BlameOf(annotated), FullBlame());
  EXPECT_TRUE(Annotate(absl::OkStatus(), "rank 2").ok());
}

TEST(StatusErrno, IsSortedByWhatCanBeDoneAboutIt) {
  EXPECT_EQ(ErrnoStatus(ECONNREFUSED, "x").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrnoStatus(EPIPE, "x").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrnoStatus(EMFILE, "x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(ENOMEM, "x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(EBADF, "x").code(), absl::StatusCode::kInternal);
  const absl::Status status = ErrnoStatus(ECONNREFUSED, "connecting to 127.0.0.1:1");
  EXPECT_EQ(status.message(), "connecting to 127.0.0.1:1: Connection refused");
  EXPECT_EQ(BlameOf(status).sys_errno, ECONNREFUSED);
}

TEST(StatusEncoding, GoesThereAndBack) {
  for (const entrain_status_t code : kCodes) {
    for (const bool with_blame : {false, true}) {
      absl::Status status(FromCode(code), "message of some length");
      if (with_blame) {
        status = WithBlame(status, FullBlame());
      }
      const auto decoded = DecodeStatus(EncodeStatus(status));
      ASSERT_TRUE(decoded.has_value());
      EXPECT_EQ(*decoded, status);
    }
  }
}

TEST(StatusEncoding, CutsMessagesInsteadOfBeingRefused) {
  const auto decoded = DecodeStatus(EncodeStatus(absl::AbortedError(std::string(100000, 'm'))));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->message(), std::string(2048, 'm'));
}

TEST(StatusEncoding, EveryTruncationIsRefused) {
  const std::string bytes =
      EncodeStatus(WithBlame(absl::UnavailableError("rank 3 is gone"), FullBlame()));
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_EQ(DecodeStatus(absl::string_view(bytes).substr(0, length)), std::nullopt) << length;
  }
  EXPECT_EQ(DecodeStatus(bytes + "x"), std::nullopt);
}

// Decoding ends for any input. An accepted input can be encoded and decoded again.
TEST(StatusEncoding, DamageIsRefusedOrGivesAStatus) {
  const std::string good =
      EncodeStatus(WithBlame(absl::UnavailableError("rank 3 is gone"), FullBlame()));
  std::mt19937 random(7);
  int refused = 0, accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (uint32_t changes = 1 + random() % 4; changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const auto decoded = DecodeStatus(bytes);
    decoded ? ++accepted : ++refused;
    if (decoded) {
      const auto again = DecodeStatus(EncodeStatus(*decoded));
      ASSERT_TRUE(again.has_value());
      ASSERT_EQ(*again, *decoded);
    }
  }
  EXPECT_GT(refused, 100);   // lengths were hit
  EXPECT_GT(accepted, 100);  // contents were hit
}

absl::StatusOr<int> Half(int x) {
  if (x % 2 != 0) {
    return absl::InvalidArgumentError("odd");
  }
  return x / 2;
}
absl::StatusOr<int> Quarter(int x) {
  ENTRAIN_ASSIGN_OR_RETURN(const int half, Half(x));
  ENTRAIN_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}
absl::Status CheckQuarter(int x) {
  ENTRAIN_RETURN_IF_ERROR(Quarter(x).status());
  return absl::OkStatus();
}

TEST(StatusMacros, ReturnTheFirstError) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_THAT(Quarter(6).status().message(), HasSubstr("odd"));
  EXPECT_TRUE(CheckQuarter(4).ok());
  EXPECT_EQ(CheckQuarter(5).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Phases, HaveNames) {
  EXPECT_EQ(PhaseName(Phase::kTransfer), "transfer");
  EXPECT_EQ(PhaseName(static_cast<Phase>(99)), "unknown");
}

}  // namespace
}  // namespace entrain
