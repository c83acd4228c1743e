#include "lib/store/gathering.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "lib/base/bytes.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr absl::string_view kCreating = "creating the communicator: ";
constexpr size_t kSeatBytes = 128;                  // for bookkeeping
constexpr size_t kMeetingBytes = 4 << 10;           // for bookkeeping, and for the reason of a
                                                    // failure
constexpr size_t kMaxTableBytes = size_t{1} << 30;  // size of all parts, also of those that the
                                                    // encoding omits
constexpr uint32_t kMaxTold = 4096;                 // number of absent ranks that an answer lists

absl::Status AboutRank(absl::Status status, int32_t rank) {
  Blame blame;
  blame.rank = rank;
  blame.phase = Phase::kBootstrap;
  blame.operation = "create";
  return WithBlame(std::move(status), blame);
}

std::string Advice(absl::string_view url) {
  return absl::StrCat("each run needs a store of its own",
                      absl::StartsWith(url, "file:") ? ", here a new or empty directory" : "");
}

size_t BytesOf(const Parts& parts) {
  size_t bytes = kSeatBytes;
  for (const std::string& part : parts) {
    bytes += part.size() + sizeof(part);
  }
  return bytes;
}

}  // namespace

absl::Status RankLeft(int32_t rank, absl::string_view how) {
  return AboutRank(absl::UnavailableError(absl::StrCat(kCreating, "rank ", rank, " ", how)), rank);
}

absl::Status PlaceTaken(absl::string_view url, int32_t rank, int claims) {
  return AboutRank(absl::FailedPreconditionError(absl::StrCat(
                       kCreating, "rank ", rank, " was claimed by ", claims,
                       " processes: several were given this rank, or an earlier run used ", url,
                       "; ", Advice(url))),
                   rank);
}

absl::Status UsedBefore(absl::string_view url) {
  return AboutRank(
      absl::FailedPreconditionError(absl::StrCat(
          kCreating, url, " has been used before: its ranks have met already; ", Advice(url))),
      -1);
}

absl::Status SizesDiffer(int32_t rank, int32_t size, int32_t other_rank, int32_t other_size) {
  return AboutRank(absl::DataLossError(absl::StrCat(kCreating, "ranks disagree on its size: rank ",
                                                    rank, " says ", size, ", rank ", other_rank,
                                                    " says ", other_size)),
                   other_rank);
}

absl::Status ServerEnded(absl::string_view url, int32_t server_rank) {
  if (server_rank >= 0) {
    return RankLeft(server_rank, absl::StrCat("has ended, and with it the store ", url));
  }
  return AboutRank(
      absl::UnavailableError(absl::StrCat(kCreating, "the server of store ", url, " has ended")),
      -1);
}

absl::Status CheckEntry(const Entry& entry) {
  if (entry.size < 1 || entry.size > kMaxMeetingSize || entry.rank < 0 ||
      entry.rank >= entry.size) {
    return absl::InvalidArgumentError(absl::StrCat("store: join as rank ", entry.rank, " of ",
                                                   entry.size, "; at most ", kMaxMeetingSize,
                                                   " ranks meet, and ranks count from 0"));
  }
  const size_t bytes = BytesOf(entry.parts);
  if (entry.parts.size() > kMaxParts || bytes > kMaxEntryBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "store: rank ", entry.rank, " brings ", entry.parts.size(), " parts, ", bytes,
        " bytes with their bookkeeping; at most ", kMaxParts, " and ", kMaxEntryBytes));
  }
  return absl::OkStatus();
}

// ---- Meetings

std::vector<int> Gathering::Absent() const {
  std::vector<int> absent;
  for (int32_t rank = 0; rank < size && !over && absent.size() < kMaxTold; ++rank) {
    if (seats.find(rank) == seats.end()) {
      absent.push_back(rank);
    }
  }
  return absent;
}

std::vector<Parts> Gathering::Table() const {
  std::vector<Parts> table;
  table.reserve(seats.size());
  for (const auto& [rank, seat] : seats) {
    table.push_back(seat.parts);
  }
  return table;
}

absl::Status Gatherings::Join(const std::string& key, const Entry& entry, uint64_t member,
                              absl::string_view url) {
  const bool is_new = all_.find(key) == all_.end();
  const size_t bytes = BytesOf(entry.parts) + key.size() + (is_new ? kMeetingBytes : 0);
  const size_t had = bytes_ + table_bytes_;
  if (had + bytes > kMaxGatheringBytes) {
    const absl::Status full =
        AboutRank(absl::ResourceExhaustedError(absl::StrCat(
                      kCreating, "the meetings of store ", url, " hold ", had, " bytes, rank ",
                      entry.rank, " brings ", bytes, "; at most ", kMaxGatheringBytes)),
                  entry.rank);
    Fail(key, full);
    return full;
  }
  Gathering& meeting = all_[key];
  if (meeting.over) {
    return UsedBefore(url);
  }
  if (const auto taken = meeting.seats.find(entry.rank); taken != meeting.seats.end()) {
    const absl::Status status = PlaceTaken(url, entry.rank, ++taken->second.claims);
    FailIt(meeting, status);
    return status;
  }
  if (!meeting.seats.empty() && meeting.size != entry.size) {
    const absl::Status status =
        SizesDiffer(meeting.seats.begin()->first, meeting.size, entry.rank, entry.size);
    FailIt(meeting, status);
    return status;
  }
  meeting.size = entry.size;
  if (entry.serves && !std::exchange(meeting.server_known, true)) {
    meeting.server_rank = entry.rank;
  }
  Gathering::Seat& seat = meeting.seats[entry.rank];
  seat.member = member;
  bytes_ += kSeatBytes + key.size() + (is_new ? kMeetingBytes : 0);
  if (!entry.unable.ok()) {
    FailIt(meeting, entry.unable);
  } else if (meeting.failure.ok()) {
    seat.parts = entry.parts;
    bytes_ += BytesOf(entry.parts) - kSeatBytes;
  }
  return meeting.failure;
}

// Drops the parts of all ranks. The ranks' places remain taken.
void Gatherings::Clear(Gathering& gathering) {
  for (auto& [rank, seat] : gathering.seats) {
    bytes_ -= BytesOf(seat.parts) - kSeatBytes;
    seat.parts = Parts();
  }
}

bool Gatherings::FailIt(Gathering& gathering, const absl::Status& why) {
  if (!gathering.failure.ok() || gathering.over) {
    return false;
  }
  gathering.failure = why;
  Clear(gathering);
  return true;
}

bool Gatherings::Fail(const std::string& key, const absl::Status& why) {
  const auto found = all_.find(key);
  return found != all_.end() && FailIt(found->second, why);
}

bool Gatherings::Leave(const std::string& key, int32_t rank, bool gone) {
  const auto found = all_.find(key);
  if (found == all_.end()) {
    return false;
  }
  Gathering& meeting = found->second;
  const auto seat = meeting.seats.find(rank);
  return seat != meeting.seats.end() && !seat->second.finished &&
         FailIt(meeting, RankLeft(rank, gone ? "has ended while the ranks were meeting"
                                             : "gave up while the ranks were meeting"));
}

void Gatherings::Finish(const std::string& key, int32_t rank) {
  const auto found = all_.find(key);
  if (found == all_.end()) {
    return;
  }
  Gathering& meeting = found->second;
  const auto seat = meeting.seats.find(rank);
  if (seat == meeting.seats.end() || seat->second.finished) {
    return;
  }
  seat->second.finished = true;
  meeting.server_rank = meeting.server_rank == rank ? -1 : meeting.server_rank;
  if (++meeting.finished == meeting.size) {
    Clear(meeting);
    bytes_ -= (meeting.seats.size() - 1) * (kSeatBytes + key.size());
    bytes_ -= meeting.failure.ok() ? kMeetingBytes : 0;
    meeting.seats.clear();
    meeting.over = true;
  }
}

const Gathering* Gatherings::Find(const std::string& key) const {
  const auto found = all_.find(key);
  return found == all_.end() ? nullptr : &found->second;
}

// ---- Encodings

std::string EncodeEntry(const Entry& entry) {
  Writer out;
  out.Put(entry.rank).Put(entry.size).Put(static_cast<uint8_t>(entry.serves));
  out.PutText(entry.unable.ok() ? std::string() : EncodeStatus(entry.unable));
  out.Put(static_cast<uint32_t>(entry.parts.size()));
  for (const std::string& part : entry.parts) {
    out.PutText(part);
  }
  return out.Take();
}

absl::StatusOr<Entry> DecodeEntry(absl::string_view bytes) {
  Reader in(bytes);
  Entry entry;
  entry.rank = in.Get<int32_t>();
  entry.size = in.Get<int32_t>();
  entry.serves = in.Get<uint8_t>() != 0;
  const absl::string_view unable = in.GetText(kMaxEntryBytes);
  const auto parts = in.Get<uint32_t>();
  for (uint32_t i = 0; i < parts && i <= kMaxParts && in.ok(); ++i) {
    entry.parts.emplace_back(in.GetText(kMaxEntryBytes));
  }
  std::optional<absl::Status> why = unable.empty() ? absl::OkStatus() : DecodeStatus(unable);
  if (!in.Finished() || !why) {
    return absl::InvalidArgumentError("store: malformed entry of a meeting");
  }
  entry.unable = *std::move(why);
  ENTRAIN_RETURN_IF_ERROR(CheckEntry(entry));
  return entry;
}

std::string EncodeTable(const std::vector<Parts>& table) {
  Writer out;
  out.Put(NewsKind::kTable).Put(static_cast<uint32_t>(table.size()));
  const Parts none;
  const Parts* before = &none;
  for (const Parts& parts : table) {
    uint64_t same = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      same |= i < before->size() && parts[i] == (*before)[i] ? uint64_t{1} << i : 0;
    }
    out.Put(static_cast<uint8_t>(parts.size())).Put(same);
    for (size_t i = 0; i < parts.size(); ++i) {
      if ((same >> i & 1) == 0) {
        out.PutText(parts[i]);
      }
    }
    before = &parts;
  }
  return out.Take();
}

std::string EncodeFailed(const absl::Status& why) {
  return Writer().Put(NewsKind::kFailed).PutText(EncodeStatus(why)).Take();
}

std::string EncodeAbsent(const std::vector<int>& ranks) {
  Writer out;
  out.Put(NewsKind::kAbsent).Put(static_cast<uint32_t>(ranks.size()));
  for (const int rank : ranks) {
    out.Put(static_cast<int32_t>(rank));
  }
  return out.Take();
}

std::string EncodeServer(int32_t rank) {
  return Writer().Put(NewsKind::kServer).Put(rank).Take();
}

namespace {

void ReadTable(Reader& in, std::vector<Parts>* table, size_t* bytes) {
  const auto size = in.Get<uint32_t>();
  for (uint32_t rank = 0; rank < size && in.ok() && *bytes <= kMaxTableBytes; ++rank) {
    const auto count = in.Get<uint8_t>();
    const auto same = in.Get<uint64_t>();
    Parts parts;
    for (size_t i = 0; i < count && i < kMaxParts && in.ok(); ++i) {
      const bool repeated = (same >> i & 1) != 0 && !table->empty() && i < table->back().size();
      parts.push_back(repeated ? table->back()[i] : std::string(in.GetText(kMaxEntryBytes)));
    }
    *bytes += BytesOf(parts);
    table->push_back(std::move(parts));
  }
}

}  // namespace

absl::StatusOr<News> DecodeNews(absl::string_view bytes) {
  Reader in(bytes);
  News news;
  news.kind = in.Get<NewsKind>();
  bool fine = true;
  if (news.kind == NewsKind::kTable) {
    size_t written_out = 0;
    ReadTable(in, &news.table, &written_out);
  } else if (news.kind == NewsKind::kFailed) {
    const std::optional<absl::Status> why = DecodeStatus(in.GetText());
    fine = why && !why->ok();
    news.failure = fine ? *why : absl::OkStatus();
  } else if (news.kind == NewsKind::kAbsent) {
    const auto count = in.Get<uint32_t>();
    for (uint32_t i = 0; i < count && in.ok(); ++i) {
      news.absent.push_back(in.Get<int32_t>());
    }
  } else if (news.kind == NewsKind::kServer) {
    news.server_rank = in.Get<int32_t>();
  } else {
    fine = false;
  }
  if (!fine || !in.Finished()) {
    return absl::DataLossError("malformed news of a meeting");
  }
  return news;
}

}  // namespace entrain
