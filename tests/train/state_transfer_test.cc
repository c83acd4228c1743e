// Parts of the admission of newcomers: numbers, ranges, hashes, and the transfer of the state.
#include "lib/train/elastic/state_transfer.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/elastic/admission_meeting.h"
#include "tests/support/ranks.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr int64_t kLimitNs = 20 * kSecond;

TEST(PlacesOf, GivesNewcomersTheLowestFreeNumbers) {
  const std::vector<AdmissionCard> cards = {
      {.replica = 0, .most_replicas = 5}, {.replica = 3}, {.group = 9}, {.group = 4}};
  const auto places = PlacesOf(cards);
  ASSERT_TRUE(places.ok()) << places.status();
  EXPECT_EQ(*places, (std::vector<ReplicaPlace>{{0, 0}, {3, 0}, {1, 0}, {2, 0}}));
}

TEST(PlacesOf, BeginsAtTheFirstNumber) {
  const std::vector<AdmissionCard> cards = {
      {.replica = 1, .most_replicas = 9, .first_number = 4}, {.group = 9}, {.group = 4}};
  const auto places = PlacesOf(cards);
  ASSERT_TRUE(places.ok()) << places.status();
  EXPECT_EQ(*places, (std::vector<ReplicaPlace>{{1, 0}, {4, 0}, {5, 0}}));
}

TEST(PlacesOf, KeepsTheRanksOfAReplicaTogether) {
  const std::vector<AdmissionCard> cards = {
      {.replica = 1, .slot = 0, .slots = 2, .most_replicas = 4},
      {.replica = 1, .slot = 1, .slots = 2},
      {.slot = 1, .slots = 2, .group = 7},
      {.slot = 0, .slots = 2, .group = 8},
      {.slot = 1, .slots = 2, .group = 8},
      {.slot = 0, .slots = 2, .group = 7}};
  const auto places = PlacesOf(cards);
  ASSERT_TRUE(places.ok()) << places.status();
  EXPECT_EQ(*places, (std::vector<ReplicaPlace>{{1, 0}, {1, 1}, {0, 1}, {2, 0}, {2, 1}, {0, 0}}));
}

TEST(PlacesOf, RefusesReplicasThatAreNotWholeOrTooMany) {
  std::vector<AdmissionCard> cards = {{.replica = 0, .slot = 0, .slots = 2, .most_replicas = 1},
                                      {.replica = 0, .slot = 1, .slots = 2},
                                      {.slot = 0, .slots = 2, .group = 7}};
  EXPECT_THAT(std::string(PlacesOf(cards).status().message()),
              HasSubstr("1 of the 2 ranks of the replica of rank 2 have come"));
  cards.push_back({.slot = 1, .slots = 2, .group = 7});
  EXPECT_THAT(std::string(PlacesOf(cards).status().message()),
              HasSubstr("most_replicas: there are 1 replicas already"));
  cards.push_back({.slot = 0, .slots = 1, .group = 5});
  EXPECT_THAT(std::string(PlacesOf(cards).status().message()),
              HasSubstr("rank 4 is of a replica of 1 ranks, and the members' replicas have 2"));
}

TEST(RangeOf, CoversEachItemOnce) {
  for (const int64_t bytes : {0, 1, 4096, 4097, 100'000}) {
    std::vector<std::byte> memory(static_cast<size_t>(bytes));
    for (const int donors : {1, 2, 3, 7}) {
      for (const bool of_replica : {false, true}) {
        const TransferItem item = {"x", absl::MakeSpan(memory), of_replica};
        int64_t next = 0;
        for (int donor = 0; donor < donors; ++donor) {
          const ItemRange range = RangeOf(item, /*index=*/5, donor, donors);
          EXPECT_TRUE(range.count == 0 || range.first == next);
          EXPECT_TRUE(!of_replica || donor == 0 || range.count == 0);
          next += range.count;
        }
        EXPECT_EQ(next, bytes);
      }
    }
  }
}

// The value is fixed, because processes compare it.
TEST(StateHash, DependsOnEachBitAndOnNothingElse) {
  std::vector<std::byte> bytes(4099);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 7);
  }
  const uint64_t all = StateHash(bytes);
  EXPECT_EQ(all, 0x9f2cf6fe9a86ac2cu);
  for (const size_t at : {size_t{0}, size_t{1000}, size_t{4096}, size_t{4098}}) {
    bytes[at] ^= std::byte{1};
    EXPECT_NE(StateHash(bytes), all) << at;
    bytes[at] ^= std::byte{1};
  }
}

// Ranks 0, 1 and 3 are donors, rank 2 is a newcomer.
const TransferParties kParties = {.donors = {0, 1, 3}, .newcomers = {2}, .replicas = {4, 5, 6, 7}};

struct Model {
  std::vector<float> big = std::vector<float>(50'000), small = std::vector<float>(10);
  std::vector<double> own = std::vector<double>(1);
  explicit Model(int rank) {
    const bool donor = rank != 2;
    for (size_t i = 0; i < big.size(); ++i) {
      big[i] = donor ? static_cast<float>(i) : -1;
    }
    std::fill(small.begin(), small.end(), donor ? 3.0f : -1.0f);
    own[0] = rank;
  }
  template <typename T>
  static TransferItem Item(const char* name, std::vector<T>& values, bool of_replica = false) {
    return {
        name, {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)}, of_replica};
  }
  std::vector<TransferItem> items() {
    return {Item("big", big), Item("small", small), Item("own", own, true)};
  }
};

TEST(TransferState, GivesANewcomerWhatTheDonorsHave) {
  RunRanks(4, [](const std::shared_ptr<Communicator>& comm) {
    Model model(comm->rank());
    EXPECT_EQ(TransferState(*comm, kParties, model.items(), kLimitNs), absl::OkStatus());
    Model want(0);
    EXPECT_EQ(model.big, want.big);
    EXPECT_EQ(model.small, want.small);
    EXPECT_EQ(model.own[0], comm->rank() == 2 ? 0 : comm->rank()) << "that of the first donor";
    // Each donor has sent a third of the large item.
    const uint64_t sent = comm->stats().bytes_sent;
    EXPECT_EQ(sent > 60'000 && sent < 75'000, comm->rank() != 2) << sent;
  });
}

TEST(TransferState, NamesADonorThatDiffers) {
  RunRanks(4, [](const std::shared_ptr<Communicator>& comm) {
    Model model(comm->rank());
    if (comm->rank() == 3) {
      model.big[49'999] += 1;
    }
    const absl::Status status = TransferState(*comm, kParties, model.items(), kLimitNs);
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << "it is no fault of the newcomer";
    EXPECT_THAT(std::string(status.message()), HasSubstr("big has hash"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("on replica 4 and"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("on replica 7"));
  });
}

// On the newcomer, the memory of the first item is overwritten by the second one.
TEST(TransferState, RefusesWhatIsNotWhatWasSent) {
  RunRanks(4, [](const std::shared_ptr<Communicator>& comm) {
    Model model(comm->rank());
    std::vector<TransferItem> items = model.items();
    if (comm->rank() == 2) {
      items[1].bytes = items[0].bytes.subspan(items[0].bytes.size() - items[1].bytes.size());
    }
    const absl::Status status = TransferState(*comm, kParties, items, kLimitNs);
    if (comm->rank() == 2) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(status.message()), HasSubstr("big was received with hash"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("and replicas 4, 5, 7 have"));
    } else {
      EXPECT_EQ(status, absl::OkStatus());
    }
  });
}

// A slow network: the first part of the item shows how slow it is. The time that an item would have
// at 4 MiB/s, 0.2 s and 1.4 s here, is not enough.
TEST(TransferState, TakesTheTimeOfASlowNetwork) {
  setenv("ENTRAIN_FAULT", "rate=0.45MB/s", 1);
  RanksOptions options;
  options.transports = "tcp";
  RunRanks(2, options, [](const std::shared_ptr<Communicator>& comm) {
    std::vector<float> big(400'000, comm->rank() == 0 ? 2.0f : 0.0f);
    const std::vector<TransferItem> items = {Model::Item("big", big)};
    EXPECT_EQ(TransferState(*comm, {.donors = {0}, .newcomers = {1}, .replicas = {0, 1}}, items,
                            kSecond / 5),
              absl::OkStatus());
    EXPECT_EQ(big.back(), 2.0f);
  });
  unsetenv("ENTRAIN_FAULT");
}

// All ranks get the first error of any rank, and newcomers begin at the members' step. A MISMATCH
// of another rank is not a final error.
TEST(CompareOutcomes, GivesAllTheSameResult) {
  RunRanks(3, [](const std::shared_ptr<Communicator>& comm) {
    int64_t step = comm->rank() == 2 ? 0 : 10 + comm->rank();
    EXPECT_EQ(CompareOutcomes(*comm, /*members=*/2, absl::OkStatus(), &step), absl::OkStatus());
    EXPECT_EQ(step, 11);
    const absl::Status mine = comm->rank() == 1 ? absl::DataLossError("bad") : absl::OkStatus();
    EXPECT_EQ(CompareOutcomes(*comm, 2, mine, &step),
              comm->rank() == 1 ? absl::DataLossError("bad") : absl::AbortedError("bad"));
  });
}

}  // namespace
}  // namespace entrain
