// The meetings of a store (store.h) as a pure machine: no socket, no clock, no lock. The mem store and the server keep
// one; a file store keeps the same on disk. Here are also the encodings of a meeting on the wire (docs/store.md draws
// them) and its sentences.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/store/store.h"

namespace entrain {

// What a rank says when it joins.
struct Entry {
  int32_t rank = 0, size = 0;
  bool serves = false;  // the rank's process serves the store: the store ends with the process
  Parts parts;
  absl::Status unable;  // not OK: the rank cannot take part, and why
};

// Limits of one entry. A rank in [0, size), a size up to kMaxMeetingSize: kInvalidArgument otherwise.
constexpr size_t kMaxParts = 64, kMaxEntryBytes = 64 << 10;
constexpr int32_t kMaxMeetingSize = 1 << 20;
absl::Status CheckEntry(const Entry& entry);

// What all meetings of one store may hold together.
constexpr size_t kMaxGatheringBytes = size_t{256} << 20;

// One meeting.
struct Gathering {
  struct Seat {
    uint64_t member = 0;  // the caller's name for whoever joined
    Parts parts;
    int claims = 1;  // how many processes have come as this rank
    bool finished = false;
  };
  int32_t size = 0;
  // The first rank that said that its process serves the store, until it has finished; -1: unknown or none.
  int32_t server_rank = -1;
  bool server_known = false;  // one has said so
  std::map<int32_t, Seat> seats;
  int32_t finished = 0;
  bool over = false;  // every rank has finished; the seats are gone
  absl::Status failure;

  bool complete() const { return over || seats.size() == static_cast<size_t>(size); }
  std::vector<int> Absent() const;
  // Of a complete meeting that is not over.
  std::vector<Parts> Table() const;
};

// All meetings of a store. The first failure of a meeting counts, and takes the parts with it.
class Gatherings {
 public:
  // Takes the place. An error is `member`'s own; where it concerns the meeting, the meeting has failed by it too.
  // `url`: of the store, for the error.
  absl::Status Join(const std::string& key, const Entry& entry, uint64_t member,
                    absl::string_view url);
  // Fails the meeting unless the rank has finished. `gone`: its process has ended; else it gave up.
  // Leave and Fail: true if the meeting has failed by it.
  bool Leave(const std::string& key, int32_t rank, bool gone);
  bool Fail(const std::string& key, const absl::Status& why);
  void Finish(const std::string& key, int32_t rank);
  // Null: nobody has joined.
  const Gathering* Find(const std::string& key) const;
  size_t bytes() const { return bytes_; }
  // For the caller to count what it holds beside: tables that are on their way. Part of the limit.
  size_t* tables() { return &table_bytes_; }

 private:
  void Clear(Gathering& gathering);
  bool FailIt(Gathering& gathering, const absl::Status& why);

  std::map<std::string, Gathering> all_;
  size_t bytes_ = 0, table_bytes_ = 0;
};

// Sentences. A rank that ended: `how` completes "rank R ...".
absl::Status RankLeft(int32_t rank, absl::string_view how);
absl::Status PlaceTaken(absl::string_view url, int32_t rank, int claims);
absl::Status UsedBefore(absl::string_view url);
absl::Status SizesDiffer(int32_t rank, int32_t size, int32_t other_rank, int32_t other_size);
absl::Status ServerEnded(absl::string_view url, int32_t server_rank);

// Encodings; malformed: kInvalidArgument (from a client), kDataLoss (from the store).
std::string EncodeEntry(const Entry& entry);
absl::StatusOr<Entry> DecodeEntry(absl::string_view bytes);

// What a server tells a rank that has joined.
enum class NewsKind : uint8_t {
  kTable = 0x80,   // all have come
  kFailed = 0x81,  // the meeting has failed
  kAbsent = 0x82,  // who has not come, as asked for
  kServer =
      0x83,  // the store ends with this rank's process; -1: the store may end, which is no failure
};
// A part that is equal to that of the rank before is left out.
std::string EncodeTable(const std::vector<Parts>& table);
std::string EncodeFailed(const absl::Status& why);
std::string EncodeAbsent(const std::vector<int>& ranks);
std::string EncodeServer(int32_t rank);
struct News {
  NewsKind kind = NewsKind::kTable;
  std::vector<Parts> table;
  absl::Status failure;
  std::vector<int> absent;
  int32_t server_rank = -1;
};
absl::StatusOr<News> DecodeNews(absl::string_view bytes);

}  // namespace entrain
