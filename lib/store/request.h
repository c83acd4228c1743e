// One operation on a store, as a value. This unit defines the meaning of the operations for all
// stores. The stores differ only in where they keep the map. A client and a server send the
// encodings of this unit (docs/store.md shows them).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/store/gathering.h"
#include "lib/store/store.h"

namespace entrain {

enum class StoreOp : uint8_t {
  kSet = 1,
  kGet = 2,
  kTryGet = 3,
  kAdd = 4,
  kCompareAndSet = 5,
  // Requests of meetings (gathering.h), from a client to a server.
  kJoin = 6,
  kAbsent = 7,
  kFail = 8,
  kFinish = 9,
  kDelete = 10,
};
inline bool IsOfMeeting(StoreOp op) {
  return op >= StoreOp::kJoin && op <= StoreOp::kFinish;
}

struct StoreRequest {
  StoreOp op = StoreOp::kGet;
  std::string key;
  // kSet: the value. kCompareAndSet: the desired value. kJoin: an Entry. kFail: a status
  std::string value;
  std::string expected;  // kCompareAndSet
  int64_t delta = 0;     // kAdd
};

// Checks the sizes against the limits in store.h. Errors name the key.
absl::Status CheckRequest(const StoreRequest& request);

// Returns the value of the key after kSet, kAdd or kCompareAndSet. `old` is the value before the
// request; null: the key is absent. kInvalidArgument: kAdd to a value that is not a decimal
// integer, or a sum beyond int64.
absl::StatusOr<std::string> ValueAfter(const StoreRequest& request, const std::string* old);

// Returns true for a kCompareAndSet if the value differs from the expected value. The caller must
// then write nothing, and must not create an absent key.
bool IsRefused(const StoreRequest& request, const std::string* old);

// The limit on the size of a map, and the limit on the size of all keys that one client was the
// last to write. A size counts keys, values, and bookkeeping for each key.
constexpr size_t kMaxTableBytes = size_t{256} << 20, kMaxClientBytes = size_t{64} << 20;

// The map itself. Never waits. Not thread-safe.
class StoreTable {
 public:
  // Executes the request. Returns a value, a decimal number, or an empty text for kDelete.
  // kNotFound: kGet or kTryGet of an absent key. kResourceExhausted names the limit that a value
  // would exceed. `client` is the client that makes the request. The bytes of a key count for the
  // client that wrote the key last. Sets `*changed` to true if clients that wait for request.key
  // must check the key again.
  absl::StatusOr<std::string> Apply(const StoreRequest& request, absl::string_view client,
                                    bool* changed);

 private:
  struct Held {
    std::string value, client;
  };
  // Returns the size of a key with a value of `bytes` bytes, as the limits count it.
  static size_t CostOf(const std::string& key, size_t bytes);
  // Subtracts the size of a key from bytes_ and of_client_.
  void Refund(const std::string& key, const Held& old);
  // Changes bytes_ and of_client_ for a value of `bytes` bytes that replaces `old`. If a limit
  // would be exceeded, returns an error and changes nothing.
  absl::Status Charge(const std::string& key, size_t bytes, absl::string_view client,
                      const Held* old);

  std::map<std::string, Held, std::less<>> values_;
  std::map<std::string, size_t, std::less<>> of_client_;
  size_t bytes_ = 0;
};

// The largest encodings of a request that CheckRequest accepts, and of its reply. Longer encodings
// are refused without being read.
constexpr size_t kMaxRequestBytes = 2 * kMaxStoreValue + kMaxStoreKey + 64;
constexpr size_t kMaxReplyBytes = kMaxStoreValue + 64;

std::string EncodeRequest(const StoreRequest& request);
// Returns kInvalidArgument if the bytes are malformed or beyond the limits.
absl::StatusOr<StoreRequest> DecodeRequest(absl::string_view bytes);
std::string EncodeReply(const absl::StatusOr<std::string>& answer);
// Returns the answer that was given to EncodeReply, or kDataLoss if the bytes are malformed.
absl::StatusOr<std::string> DecodeReply(absl::string_view bytes);

// A Store that implements all operations on the map by one function, Do.
class RequestStore : public Store {
 public:
  absl::Status Set(absl::string_view key, absl::string_view value, const Stop& stop) final;
  absl::StatusOr<std::string> Get(absl::string_view key, const Stop& stop) final;
  absl::StatusOr<std::string> TryGet(absl::string_view key, const Stop& stop) final;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, const Stop& stop) final;
  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired, const Stop& stop) final;
  absl::Status Delete(absl::string_view key, const Stop& stop) final;
  absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(absl::string_view key, int rank, int size,
                                                     const absl::StatusOr<Parts>& mine,
                                                     const Stop& stop) final;

 protected:
  // `request` has passed CheckRequest. A kGet waits for the key.
  virtual absl::StatusOr<std::string> Do(const StoreRequest& request, const Stop& stop) = 0;
  // `key` and `entry` are within the limits.
  virtual absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(const std::string& key,
                                                             const Entry& entry,
                                                             const Stop& stop) = 0;

 private:
  absl::StatusOr<std::string> Checked(const StoreRequest& request, const Stop& stop);
};

// Returns the deadline for a rank's last message in a meeting. `by` is the deadline with which the
// rank joined. The result is `most_ns` from now, but at most 230 ms after `by`. If the result has
// already passed, the rank tries once.
Deadline LastWordBy(Deadline by, int64_t most_ns = 2 * kSecond);

// Returns "store URL: get of key "x"", for messages.
std::string Describe(absl::string_view url, const StoreRequest& request);

// Open the stores, one function per kind. `where` is the URL without its scheme.
absl::StatusOr<std::shared_ptr<Store>> OpenMemStore(absl::string_view where);
absl::StatusOr<std::shared_ptr<Store>> OpenFileStore(absl::string_view where, const Stop& stop);
absl::StatusOr<std::shared_ptr<Store>> OpenTcpStore(absl::string_view where,
                                                    const Security& security, const Stop& stop);
absl::StatusOr<std::shared_ptr<Store>> OpenLocalStore(absl::string_view name,
                                                      const Security& security, const Stop& stop);
absl::StatusOr<std::shared_ptr<Store>> OpenEtcdStore(absl::string_view where, const Stop& stop);

}  // namespace entrain
