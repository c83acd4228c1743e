// The meetings of a store (store.h) as a state machine without socket, clock or lock. The mem store
// and the server each have an object of class Gatherings. A file store keeps the same state on
// disk. This unit also has the error messages of meetings, and the encodings that a client and a
// server send (docs/store.md shows them).
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

// The data with which a rank joins.
struct Entry {
  int32_t rank = 0, size = 0;
  bool serves = false;  // the store's server runs in the rank's process and ends with it
  Parts parts;
  absl::Status unable;  // not OK: the reason why the rank cannot take part
};

// Limits of one entry. CheckEntry returns kInvalidArgument if the entry exceeds a limit, if its
// size is above kMaxMeetingSize, or if its rank is not in [0, size).
constexpr size_t kMaxParts = 64, kMaxEntryBytes = 64 << 10;
constexpr int32_t kMaxMeetingSize = 1 << 20;
absl::Status CheckEntry(const Entry& entry);

// The limit on the bytes of all meetings of one store together.
constexpr size_t kMaxGatheringBytes = size_t{256} << 20;

// One meeting.
struct Gathering {
  struct Seat {
    uint64_t member = 0;  // the caller's number for the client that joined
    Parts parts;
    int claims = 1;  // number of processes that have joined as this rank
    bool finished = false;
  };
  int32_t size = 0;
  // The rank whose process serves the store: the first rank that joined with Entry::serves. -1: no
  // such rank has joined, or it has finished.
  int32_t server_rank = -1;
  bool server_known = false;  // a rank has joined with Entry::serves
  std::map<int32_t, Seat> seats;
  int32_t finished = 0;
  bool over = false;  // every rank has finished; the seats are gone
  absl::Status failure;

  bool complete() const { return over || seats.size() == static_cast<size_t>(size); }
  std::vector<int> Absent() const;
  // Returns the parts of all ranks, indexed by rank. Must be called only if complete() && !over.
  std::vector<Parts> Table() const;
};

// All meetings of a store. Only the first failure of a meeting counts. When a meeting fails, its
// parts are dropped.
class Gatherings {
 public:
  // Joins the meeting as entry.rank. Returns an error if the meeting has failed or is over, or if
  // this join makes the meeting fail. `url` is the store's URL, for the error.
  absl::Status Join(const std::string& key, const Entry& entry, uint64_t member,
                    absl::string_view url);
  // If the rank has not finished, Leave makes the meeting fail. `gone` is true if the rank's
  // process has ended, and false if the rank gave up. Leave and Fail return true if the call has
  // made the meeting fail.
  bool Leave(const std::string& key, int32_t rank, bool gone);
  bool Fail(const std::string& key, const absl::Status& why);
  void Finish(const std::string& key, int32_t rank);
  // Returns null if no rank has joined.
  const Gathering* Find(const std::string& key) const;
  size_t bytes() const { return bytes_; }
  // Returns the counter for the bytes of tables that are not yet sent. The caller keeps the counter
  // up to date. These bytes count toward kMaxGatheringBytes.
  size_t* tables() { return &table_bytes_; }

 private:
  void Clear(Gathering& gathering);
  bool FailIt(Gathering& gathering, const absl::Status& why);

  std::map<std::string, Gathering> all_;
  size_t bytes_ = 0, table_bytes_ = 0;
};

// Error messages. `how` completes "rank R ...".
absl::Status RankLeft(int32_t rank, absl::string_view how);
absl::Status PlaceTaken(absl::string_view url, int32_t rank, int claims);
absl::Status UsedBefore(absl::string_view url);
absl::Status SizesDiffer(int32_t rank, int32_t size, int32_t other_rank, int32_t other_size);
absl::Status ServerEnded(absl::string_view url, int32_t server_rank);

// Encodings. For malformed input, DecodeEntry returns kInvalidArgument, and DecodeNews returns
// kDataLoss.
std::string EncodeEntry(const Entry& entry);
absl::StatusOr<Entry> DecodeEntry(absl::string_view bytes);

// The messages of a server to a rank that has joined.
enum class NewsKind : uint8_t {
  kTable = 0x80,   // all ranks have joined
  kFailed = 0x81,  // the meeting has failed
  kAbsent = 0x82,  // the ranks that have not joined; the answer to StoreOp::kAbsent
  // the rank whose process serves the store: if this process ends, the store ends. -1: from now on
  // the end of the store is no failure
  kServer = 0x83,
};
// Omits a part that equals the part of the previous rank at the same index.
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
