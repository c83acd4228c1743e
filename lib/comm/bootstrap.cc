#include "lib/comm/bootstrap.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr uint32_t kCardVersion = 4;
constexpr int64_t kPoisonSliceNs = 50 * kMillisecond;

// Publishes an error that all ranks should end with, and returns it.
absl::Status Poison(Store& store, const std::string& prefix, absl::Status why, const Stop& stop) {
  store.Set(prefix + "poison", EncodeStatus(why), stop).IgnoreError();
  return why;
}

// Get, but looks for poison while it waits.
absl::StatusOr<std::string> GetUnlessPoisoned(Store& store, const std::string& prefix,
                                              const std::string& key, const Stop& stop) {
  while (true) {
    const Stop slice{std::min(stop.deadline, Deadline::After(kPoisonSliceNs)), stop.cancelled};
    absl::StatusOr<std::string> value = store.Get(prefix + key, slice);
    if (value.ok() || value.status().code() != absl::StatusCode::kDeadlineExceeded) {
      return value;
    }
    const absl::StatusOr<std::string> poison = store.TryGet(prefix + "poison", stop);
    if (poison.ok()) {
      const std::optional<absl::Status> why = DecodeStatus(*poison);
      return why && !why->ok()
                 ? *why
                 : absl::InternalError("bootstrap: unreadable error from another rank");
    }
    if (stop.deadline.Passed(Clock::Real().Now())) {
      return value;
    }
  }
}

// Which ranks have not published their card, for the error that names them.
absl::Status NameAbsent(Store& store, const std::string& prefix, int size,
                        const absl::Status& why) {
  std::vector<int> absent;
  const Stop brief{Deadline::After(kSecond)};
  for (int r = 0; r < size; ++r) {
    if (store.TryGet(absl::StrCat(prefix, "rank/", r), brief).status().code() ==
        absl::StatusCode::kNotFound) {
      absent.push_back(r);
    }
  }
  Blame blame;
  blame.phase = Phase::kBootstrap;
  blame.rank = absent.empty() ? -1 : absent[0];
  const std::string who =
      absent.empty() ? std::string("all ranks came, but they did not finish in time")
                     : absl::StrCat("these ranks did not come: ", absl::StrJoin(absent, ", "));
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

// Somebody has taken this rank's place already: a process that was given the same rank, or an
// earlier run, whose store was kept.
absl::Status PlaceTaken(Store& store, const std::string& prefix, int rank, int64_t claims,
                        const Stop& stop) {
  const bool met = store.TryGet(prefix + "met", stop).ok();
  const std::string advice =
      absl::StrCat("each run needs a store of its own",
                   absl::StartsWith(store.url(), "file:") ? ", here a new or empty directory" : "");
  const std::string claimed = absl::StrCat("rank ", rank, " was claimed by ", claims, " processes");
  return BlameRank(absl::FailedPreconditionError(
                       met ? absl::StrCat("creating the communicator: ", store.url(),
                                          " has been used before: its ranks have met already, and ",
                                          claimed, "; ", advice)
                           : absl::StrCat("creating the communicator: ", claimed,
                                          ": several were given this rank, or an earlier run used ",
                                          store.url(), "; ", advice)),
                   rank, Phase::kBootstrap);
}

absl::Status Agreement(const Card& mine, const Card& other) {
  if (mine.size != other.size) {
    return absl::DataLossError(
        absl::StrCat("creating the communicator: ranks disagree on its size: rank ", mine.rank,
                     " says ", mine.size, ", rank ", other.rank, " says ", other.size));
  }
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

absl::Status CheckAgreement(const Card& mine, const Card& other) {
  return BlameRank(Agreement(mine, other), other.rank, Phase::kBootstrap);
}

absl::StatusOr<std::vector<Card>> DecodeTable(const std::string& table, int size) {
  Reader reader(table);
  std::vector<Card> cards;
  for (int r = 0; r < size; ++r) {
    ENTRAIN_ASSIGN_OR_RETURN(Card card, Card::Decode(reader.GetText()));
    cards.push_back(std::move(card));
  }
  if (!reader.Finished()) {
    return absl::DataLossError("creating the communicator: the table of ranks is malformed");
  }
  return cards;
}

absl::StatusOr<std::string> CollectCards(Store& store, const std::string& prefix, const Card& mine,
                                         const Stop& stop) {
  Writer table;
  for (int r = 0; r < mine.size; ++r) {
    absl::StatusOr<std::string> text =
        GetUnlessPoisoned(store, prefix, absl::StrCat("rank/", r), stop);
    if (!text.ok()) {
      return text.status();
    }
    const absl::StatusOr<Card> card = Card::Decode(*text);
    if (!card.ok()) {
      return Poison(store, prefix, BlameRank(card.status(), r, Phase::kBootstrap), stop);
    }
    const absl::Status agreed = CheckAgreement(mine, *card);
    if (!agreed.ok()) {
      return Poison(store, prefix, agreed, stop);
    }
    table.PutText(*text);
  }
  ENTRAIN_RETURN_IF_ERROR(store.Set(prefix + "table", table.text(), stop));
  return table.Take();
}

std::string AddressOf(const Card& card, absl::string_view transport) {
  for (const auto& [name, address] : card.addresses) {
    if (name == transport) {
      return address;
    }
  }
  return {};
}

// The first of our transports that the peer has too and that reaches it.
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

std::string Card::Encode() const {
  Writer writer;
  writer.Put(kCardVersion)
      .Put(rank)
      .Put(size)
      .PutRaw(id.data(), id.size())
      .PutText(host_id)
      .Put(context);
  writer.PutText(settings).PutText(tuning).Put(static_cast<uint32_t>(addresses.size()));
  for (const auto& [transport, address] : addresses) {
    writer.PutText(transport).PutText(address);
  }
  writer.PutText(cpus.set.bits());
  writer.Put(cpus.quota.device).Put(cpus.quota.inode).Put(cpus.quota.millicores);
  return writer.Take();
}

absl::StatusOr<Card> Card::Decode(absl::string_view bytes) {
  Reader reader(bytes);
  Card card;
  const auto version = reader.Get<uint32_t>();
  if (version != kCardVersion) {
    return absl::DataLossError(absl::StrCat("creating the communicator: a rank speaks version ",
                                            version, " of the bootstrap, this one ", kCardVersion));
  }
  card.rank = reader.Get<int32_t>();
  card.size = reader.Get<int32_t>();
  const absl::string_view id = reader.GetRaw(card.id.size());
  std::copy(id.begin(), id.end(), card.id.begin());
  card.host_id = std::string(reader.GetText(1024));
  card.context = reader.Get<Context>();
  card.settings = std::string(reader.GetText(4096));
  card.tuning = std::string(reader.GetText(4096));
  const auto count = reader.Get<uint32_t>();
  for (uint32_t i = 0; i < count && i < 16 && reader.ok(); ++i) {
    std::string transport(reader.GetText(64));
    card.addresses.emplace_back(std::move(transport), std::string(reader.GetText(1024)));
  }
  card.cpus.set = CpuSet::FromBits(reader.GetText(CpuSet::kMostBytes));
  card.cpus.quota.device = reader.Get<uint64_t>();
  card.cpus.quota.inode = reader.Get<uint64_t>();
  card.cpus.quota.millicores = reader.Get<uint32_t>();
  if (!reader.Finished()) {
    return absl::DataLossError("creating the communicator: a rank's card is malformed");
  }
  return card;
}

absl::StatusOr<std::vector<Card>> ExchangeCards(Store& store, const std::string& prefix,
                                                const Card& mine, const Stop& stop) {
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t claims,
                           store.Add(absl::StrCat(prefix, "claim/", mine.rank), 1, stop));
  if (claims > 1) {
    return Poison(store, prefix, PlaceTaken(store, prefix, mine.rank, claims, stop), stop);
  }
  ENTRAIN_RETURN_IF_ERROR(store.Set(absl::StrCat(prefix, "rank/", mine.rank), mine.Encode(), stop));
  absl::StatusOr<std::string> table = mine.rank == 0
                                          ? CollectCards(store, prefix, mine, stop)
                                          : GetUnlessPoisoned(store, prefix, "table", stop);
  if (!table.ok()) {
    return table.status().code() == absl::StatusCode::kDeadlineExceeded
               ? NameAbsent(store, prefix, mine.size, table.status())
               : table.status();
  }
  ENTRAIN_ASSIGN_OR_RETURN(const Card first, Card::Decode(Reader(*table).GetText()));
  const absl::Status agreed = CheckAgreement(first, mine);
  if (!agreed.ok()) {
    return Poison(store, prefix, agreed, stop);
  }
  return DecodeTable(*table, mine.size);
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
  engine.RunInDriver([&] {
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
