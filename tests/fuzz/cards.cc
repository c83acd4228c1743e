// The table of cards that a rank gets at a meeting: lib/comm/create/bootstrap takes it apart and compares
// the ranks. Also the addresses in the cards, by which transports decide whether they reach a peer.
#include "lib/base/status.h"
#include "lib/comm/create/bootstrap.h"
#include "lib/comm/plan/topology.h"
#include "lib/store/gathering.h"
#include "tests/fuzz/target.h"
#include "transports/tcp/tcp_address.h"
#if ENTRAIN_HAVE_UCX
#include "transports/ucx/ucx_address.h"
#endif

namespace entrain::fuzz {
namespace {

// A meeting that is complete.
class Meeting final : public StoreMeeting {
 public:
  explicit Meeting(std::vector<Parts> table) : table_(std::move(table)) {}
  absl::StatusOr<std::vector<Parts>> Wait(const Stop&) override { return table_; }
  absl::Status Check() override { return absl::OkStatus(); }
  void Fail(const absl::Status&) override {}
  void Finish() override {}
  absl::StatusOr<std::vector<int>> Absent(const Stop&) override { return std::vector<int>(); }

 private:
  const std::vector<Parts> table_;
};

void CheckAddress(absl::string_view transport, absl::string_view address) {
  if (transport == "tcp") {
    if (const auto parsed = TcpAddress::Parse(address); parsed.ok()) {
      const auto again = TcpAddress::Parse(parsed->ToString());
      FUZZ_CHECK(again.ok() && again->ToString() == parsed->ToString());
      FUZZ_CHECK(parsed->Reaches(*again) == again->Reaches(*parsed));
    }
  }
#if ENTRAIN_HAVE_UCX
  if (transport == "ucx") {
    if (const auto parsed = ucx::UcxAddress::Parse(address); parsed.ok()) {
      const auto again = ucx::UcxAddress::Parse(parsed->ToString());
      FUZZ_CHECK(again.ok() && again->ToString() == parsed->ToString());
      FUZZ_CHECK(parsed->Reaches(*again) == again->Reaches(*parsed));
    }
  }
#endif
}

Card CardOf(int rank) {
  Card card;
  card.rank = rank;
  card.id.fill(static_cast<uint8_t>(rank + 1));
  card.host_id = "boot/net/ipc";
  card.context = static_cast<Context>(rank + 3);
  card.settings = "all_reduce:ring";
  card.tuning = "the library's own values";
  card.addresses = {{"shm", "12/0/entrain-01/boot"},
                    {"tcp", rank == 0 ? "127.0.0.1:4711#mark" : "[fe80::1%eth0]:80"},
                    {"ucx", "1.13/12@node/boot-ns/net/AAAA/host"}};
  card.cpus.set = CpuSet::First(4);
  card.cpus.quota = {1, 2, 1500};
  return card;
}

}  // namespace

void FuzzOne(absl::string_view input) {
  auto news = DecodeNews(input);
  if (!news.ok() || news->kind != NewsKind::kTable) {
    return;
  }
  for (const Parts& parts : news->table) {
    for (size_t i = 4; i + 1 < parts.size(); i += 2) {
      CheckAddress(parts[i], parts[i + 1]);
    }
  }
  Meeting meeting(std::move(news->table));
  const auto cards = ExchangeCards(meeting, Stop());
  if (!cards.ok()) {
    FUZZ_CHECK(HasBlame(cards.status()));
    FUZZ_CHECK(!ForOthers(cards.status(), 0).ok());
    return;
  }
  std::vector<std::string> hosts;
  for (const Card& card : *cards) {
    const auto again = Card::FromParts(card.ToParts());
    FUZZ_CHECK(again.ok() && again->ToParts() == card.ToParts());
    FUZZ_CHECK(card.cpus.set.Count() <= static_cast<int>(CpuSet::kMostBytes) * 8);
    hosts.push_back(card.host_id);
  }
  const Topology topology = Topology::FromHostIds(hosts);
  FUZZ_CHECK(topology.host_of.size() == hosts.size());
}

std::vector<std::string> FuzzSeeds() {
  Card other_settings = CardOf(1);
  other_settings.settings = "all_reduce:tree";
  const Parts zero = CardOf(0).ToParts();
  return {EncodeTable({zero}), EncodeTable({zero, CardOf(1).ToParts()}),
          EncodeTable({zero, other_settings.ToParts()}), EncodeTable({zero, zero}),
          EncodeTable({zero, {"", "", "", ""}})};
}

}  // namespace entrain::fuzz
