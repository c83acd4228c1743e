#include "lib/comm/create/bootstrap.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "lib/base/status.h"
#include "lib/base/text.h"

namespace entrain {
namespace {

constexpr uint32_t kCardVersion = 7;
// The time limit of the query to the store in NameAbsent.
constexpr int64_t kAskNs = 200 * kMillisecond;
constexpr size_t kFixedParts = 4;  // parts of a card before its addresses

// Returns the error of this rank after its time limit has passed. The error names the ranks that
// have not come.
absl::Status NameAbsent(StoreMeeting& meeting, const absl::Status& why) {
  const auto absent = meeting.Absent({Deadline::After(kAskNs)});
  Blame blame;
  blame.phase = Phase::kBootstrap;
  blame.operation = "create";
  blame.rank = absent.ok() && !absent->empty() ? (*absent)[0] : -1;
  const std::string who =
      !absent.ok()      ? absl::StrCat("the store does not answer: ", absent.status().message())
      : absent->empty() ? std::string("all ranks came, but they did not finish in time")
                        : absl::StrCat("these ranks did not come: ", absl::StrJoin(*absent, ", "));
  return WithBlame(absl::Status(why.code(), absl::StrCat("creating the communicator: ", who, " (",
                                                         why.message(), ")")),
                   blame);
}

absl::Status BlameRank(absl::Status status, int rank, Phase phase) {
  Blame blame;
  blame.rank = rank;
  blame.phase = phase;
  blame.operation = "create";
  return WithBlame(std::move(status), blame);
}

absl::Status Agreement(const Card& mine, const Card& other) {
  if (mine.settings != other.settings) {
    const auto text = [](const Card& card) {
      return absl::StrCat("rank ", card.rank, " has \"", card.settings, "\" (", card.tuning, ")");
    };
    return absl::DataLossError(absl::StrCat(
        "creating the communicator: settings differ: ", text(mine), ", ", text(other)));
  }
  if (mine.id == other.id && mine.rank != other.rank) {
    return absl::FailedPreconditionError(
        absl::StrCat("creating the communicator: ranks ", mine.rank, " and ", other.rank,
                     " use one runtime; ranks of one process need a runtime each"));
  }
  return absl::OkStatus();
}

std::string AddressOf(const Card& card, absl::string_view transport) {
  for (const auto& [name, address] : card.addresses) {
    if (name == transport) {
      return address;
    }
  }
  return {};
}

// Returns the index of the first transport of this rank that reaches the peer. The peer must have
// this transport too.
std::optional<size_t> ChooseTransport(const Engine& engine, const Card& peer) {
  for (size_t t = 0; t < engine.transports().size(); ++t) {
    const Transport& transport = *engine.transports()[t];
    const std::string address = AddressOf(peer, transport.traits().name);
    if (!address.empty() && transport.Reaches(address)) {
      return t;
    }
  }
  return std::nullopt;
}

}  // namespace

Parts Card::ToParts() const {
  Writer own, shared;
  own.Put(kCardVersion).Put(rank).PutRaw(id.data(), id.size()).Put(context);
  own.Put(answers);
  shared.PutText(cpus.set.bits());
  shared.Put(cpus.quota.device).Put(cpus.quota.inode).Put(cpus.quota.millicores);
  Parts parts = {own.Take(), Writer().PutText(settings).PutText(tuning).Take(), host_id,
                 shared.Take()};
  for (const auto& [transport, address] : addresses) {
    parts.push_back(transport);
    parts.push_back(address);
  }
  return parts;
}

absl::StatusOr<Card> Card::FromParts(const Parts& parts) {
  Card card;
  Reader own(parts.empty() ? absl::string_view() : parts[0]);
  const auto version = own.Get<uint32_t>();
  if (version != kCardVersion) {
    return absl::DataLossError(absl::StrCat("creating the communicator: a rank speaks version ",
                                            version, " of the bootstrap, this one ", kCardVersion));
  }
  card.rank = own.Get<int32_t>();
  const absl::string_view id = own.GetRaw(card.id.size());
  std::copy(id.begin(), id.end(), card.id.begin());
  card.context = own.Get<Context>();
  card.answers = own.Get<uint8_t>() != 0;
  const bool whole = parts.size() >= kFixedParts && parts.size() % 2 == kFixedParts % 2;
  Reader texts(whole ? absl::string_view(parts[1]) : ""),
      cpus(whole ? absl::string_view(parts[3]) : "");
  card.settings = CleanText(texts.GetText());
  card.tuning = CleanText(texts.GetText());
  card.cpus.set = CpuSet::FromBits(cpus.GetText(CpuSet::kMostBytes));
  card.cpus.quota.device = cpus.Get<uint64_t>();
  card.cpus.quota.inode = cpus.Get<uint64_t>();
  card.cpus.quota.millicores = cpus.Get<uint32_t>();
  if (!whole || !own.Finished() || !texts.Finished() || !cpus.Finished()) {
    return absl::DataLossError("creating the communicator: a rank's card is malformed");
  }
  card.host_id = parts[2];
  for (size_t i = kFixedParts; i < parts.size(); i += 2) {
    card.addresses.emplace_back(CleanText(parts[i]), CleanText(parts[i + 1]));
  }
  return card;
}

absl::StatusOr<std::vector<Card>> ExchangeCards(StoreMeeting& meeting, const Stop& stop) {
  const auto table = meeting.Wait(stop);
  if (!table.ok()) {
    return absl::IsDeadlineExceeded(table.status()) && !HasBlame(table.status())
               ? NameAbsent(meeting, table.status())
               : table.status();
  }
  std::vector<Card> cards;
  cards.reserve(table->size());
  for (size_t r = 0; r < table->size(); ++r) {
    absl::StatusOr<Card> card = Card::FromParts((*table)[r]);
    if (card.ok() && card->rank != static_cast<int>(r)) {
      card = absl::DataLossError(absl::StrCat("creating the communicator: in the place of rank ", r,
                                              " is a card of rank ", card->rank));
    }
    // Every rank compares the cards in rank order with the card of rank 0. So all ranks find the
    // same error.
    const absl::Status fine = !card.ok()      ? card.status()
                              : cards.empty() ? absl::OkStatus()
                                              : Agreement(cards[0], *card);
    if (!fine.ok()) {
      return BlameRank(fine, static_cast<int>(r), Phase::kBootstrap);
    }
    cards.push_back(*std::move(card));
  }
  return cards;
}

absl::Status ForOthers(const absl::Status& why, int rank, int members, bool hurries) {
  // If all ranks have the error, or if the error blames a rank, the error is passed on unchanged.
  // But if a newcomer's error does not blame another newcomer, the newcomer itself is blamed. There
  // is one exception: a newcomer may blame a member that has not come, because the store tells all
  // ranks of the meeting which ranks have not come.
  const Blame blame = BlameOf(why);
  const bool late = absl::IsDeadlineExceeded(why) && blame.phase == Phase::kBootstrap;
  const bool absent = late && blame.rank >= 0 && !hurries;
  if (members > 0 && rank >= members && blame.rank < members && !absent) {
    return BlameRank(
        absl::Status(late ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kAborted,
                     absl::StrCat("creating the communicator: newcomer rank ", rank,
                                  " gave up: ", why.message())),
        rank, Phase::kBootstrap);
  }
  if (absl::IsDataLoss(why) || absl::IsDeadlineExceeded(why) || blame.rank >= 0) {
    return why;
  }
  return BlameRank(absl::AbortedError(absl::StrCat("creating the communicator: rank ", rank,
                                                   " gave up: ", why.message())),
                   rank, Phase::kBootstrap);
}

absl::StatusOr<std::vector<Member>> MembersFromCards(Runtime& runtime,
                                                     const std::vector<Card>& cards, int rank) {
  Engine& engine = runtime.engine();
  std::vector<Member> members;
  for (const Card& card : cards) {
    Member member;
    member.id = card.id;
    member.host_id = card.host_id;
    member.context = card.context;
    member.world_rank = card.rank;
    member.answers = card.answers;
    member.cpus = card.cpus;
    if (card.rank != rank) {
      const std::optional<size_t> transport = ChooseTransport(engine, card);
      if (!transport) {
        std::vector<std::string> theirs;
        for (const auto& [name, address] : card.addresses) {
          theirs.push_back(absl::StrCat(name, " ", address));
        }
        return BlameRank(
            absl::UnavailableError(absl::StrCat("creating the communicator: rank ", rank,
                                                " has no transport that reaches rank ", card.rank,
                                                ", which offers: ", absl::StrJoin(theirs, ", "))),
            card.rank, Phase::kConnect);
      }
      member.transport = *transport;
      member.address = AddressOf(card, engine.transports()[*transport]->traits().name);
    }
    members.push_back(std::move(member));
  }
  absl::Status status;
  engine.seat().RunInDriver([&] {
    for (size_t r = 0; r < members.size() && status.ok(); ++r) {
      if (static_cast<int>(r) != rank) {
        auto endpoint = engine.Connect(members[r].id, members[r].transport, members[r].address);
        status = endpoint.status();
        members[r].endpoint = endpoint.ok() ? *endpoint : nullptr;
      }
    }
  });
  ENTRAIN_RETURN_IF_ERROR(status);
  return members;
}

}  // namespace entrain
