// The meetings of a store (store.h) as a state machine without socket, clock or lock. The mem store
// and the server keep such an object; a file store keeps the same state on disk. This unit also has
// the encodings of a meeting on the wire (docs/store.md draws them) and its error messages.
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
  bool serves = false;  // the rank's process serves the store, which ends with the process
  Parts parts;
  absl::Status unable;  // not OK: the rank cannot take part, for this reason
};

// Limits of one entry. The rank must be in [0, size), and the size at most kMaxMeetingSize;
// otherwise kInvalidArgument.
constexpr size_t kMaxParts = 64, kMaxEntryBytes = 64 << 10;
constexpr int32_t kMaxMeetingSize = 1 << 20;
absl::Status CheckEntry(const Entry& entry);

// The limit on the bytes of all meetings of one store together.
constexpr size_t kMaxGatheringBytes = size_t{256} << 20;

// One meeting.
struct Gathering {
  struct Seat {
    uint64_t member = 0;  // number of the client that joined, given by the caller
    Parts parts;
    int claims = 1;  // number of processes that have joined as this rank
    bool finished = false;
  };
  int32_t size = 0;
  // The first rank whose process said that it serves the store, until that rank has finished. -1:
  // unknown or none.
  int32_t server_rank = -1;
  bool server_known = false;  // some rank has said so
  std::map<int32_t, Seat> seats;
  int32_t finished = 0;
  bool over = false;  // every rank has finished; the seats are gone
  absl::Status failure;

  bool complete() const { return over || seats.size() == static_cast<size_t>(size); }
  std::vector<int> Absent() const;
  // Returns all parts, by rank. The meeting must be complete and not over.
  std::vector<Parts> Table() const;
};

// All meetings of a store. Only the first failure of a meeting counts. A failure drops the parts.
class Gatherings {
 public:
  // Takes the place of entry.rank. Returns an error of `member` itself, or an error of the meeting.
  // The second kind also fails the meeting. `url` is the store's URL, for the error.
  absl::Status Join(const std::string& key, const Entry& entry, uint64_t member,
                    absl::string_view url);
  // Leave fails the meeting unless the rank has finished. `gone`: its process has ended; otherwise
  // the rank gave up. Leave and Fail return true if the meeting has failed by this call.
  bool Leave(const std::string& key, int32_t rank, bool gone);
  bool Fail(const std::string& key, const absl::Status& why);
  void Finish(const std::string& key, int32_t rank);
  // Returns null if no rank has joined.
  const Gathering* Find(const std::string& key) const;
  size_t bytes() const { return bytes_; }
  // Returns the counter for the bytes of tables that are on their way. The caller keeps the counter
  // up to date; the bytes count toward the limit.
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

// Encodings. Malformed input: kInvalidArgument from a client, kDataLoss from the store.
std::string EncodeEntry(const Entry& entry);
absl::StatusOr<Entry> DecodeEntry(absl::string_view bytes);

// The messages of a server to a rank that has joined.
enum class NewsKind : uint8_t {
  kTable = 0x80,   // all ranks have joined
  kFailed = 0x81,  // the meeting has failed
  kAbsent = 0x82,  // the ranks that have not joined; the answer to a kAbsent
  kServer =
      0x83,  // the store ends with this rank's process. -1: the store may end, which is no failure
};
// A part that equals the same part of the previous rank is sent only once.
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
