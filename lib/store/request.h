// One operation on a store as a value. What the operations mean is written once, here; the stores
// differ only in where the map lives. The encodings are what crosses the wire (docs/store.md
// draws them).
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
  // Of meetings (gathering.h), between a client and a server.
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
  std::string value;  // kSet: the value. kCompareAndSet: desired. kJoin: an Entry. kFail: a status
  std::string expected;  // kCompareAndSet
  int64_t delta = 0;     // kAdd
};

// Sizes within the limits of store.h. Errors name the key.
absl::Status CheckRequest(const StoreRequest& request);

// What the key holds after kSet, kAdd or kCompareAndSet when it held `old` (null: absent). Pure.
// kInvalidArgument: kAdd to something that is no decimal integer, or past the range of int64.
absl::StatusOr<std::string> ValueAfter(const StoreRequest& request, const std::string* old);

// A kCompareAndSet that finds something other than what it expected: nothing may be written, not
// even an absent key.
bool IsRefused(const StoreRequest& request, const std::string* old);

// What a map holds: keys, values, and bookkeeping for each key. In all, and set by one client.
constexpr size_t kMaxTableBytes = size_t{256} << 20, kMaxClientBytes = size_t{64} << 20;

// The map itself, without waiting. Not thread-safe.
class StoreTable {
 public:
  // The answer: a value, or a number in decimal, or nothing to kDelete. kGet and kTryGet: kNotFound when the key is
  // absent. kResourceExhausted names the limit that a value would exceed. `client`: whoever asks; the last that has
  // written a key bears its bytes. `changed`: whether somebody waiting for request.key should look again.
  absl::StatusOr<std::string> Apply(const StoreRequest& request, absl::string_view client,
                                    bool* changed);

 private:
  struct Held {
    std::string value, client;
  };
  // What a key with so many bytes of value counts for.
  static size_t CostOf(const std::string& key, size_t bytes);
  // Takes what a key costs from whoever bears it.
  void Refund(const std::string& key, const Held& old);
  // What `key` with `bytes` of value in the place of `old` would make of the sums; on an error nothing has changed.
  absl::Status Charge(const std::string& key, size_t bytes, absl::string_view client,
                      const Held* old);

  std::map<std::string, Held, std::less<>> values_;
  std::map<std::string, size_t, std::less<>> of_client_;
  size_t bytes_ = 0;
};

// Largest encodings of anything CheckRequest accepts, and of its answer; longer ones are refused
// unread.
constexpr size_t kMaxRequestBytes = 2 * kMaxStoreValue + kMaxStoreKey + 64;
constexpr size_t kMaxReplyBytes = kMaxStoreValue + 64;

std::string EncodeRequest(const StoreRequest& request);
// Malformed or beyond the limits: kInvalidArgument.
absl::StatusOr<StoreRequest> DecodeRequest(absl::string_view bytes);
std::string EncodeReply(const absl::StatusOr<std::string>& answer);
// Malformed: kDataLoss. Otherwise what EncodeReply was given.
absl::StatusOr<std::string> DecodeReply(absl::string_view bytes);

// A Store whose operations all pass one function.
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
  // `request` has passed CheckRequest. kGet waits for the key.
  virtual absl::StatusOr<std::string> Do(const StoreRequest& request, const Stop& stop) = 0;
  // `key` and `entry` are within the limits.
  virtual absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(const std::string& key,
                                                             const Entry& entry,
                                                             const Stop& stop) = 0;

 private:
  absl::StatusOr<std::string> Checked(const StoreRequest& request, const Stop& stop);
};

// Until when a rank may try to say what it says last in a meeting that it joined with the deadline `by`: for 2 s, and no
// more than 230 ms beyond `by`. Who comes later tries once.
Deadline LastWordBy(Deadline by);

// "store URL: get of key "x"", for messages.
std::string Describe(absl::string_view url, const StoreRequest& request);

// The stores, by kind. `where` is the URL without its scheme.
absl::StatusOr<std::shared_ptr<Store>> OpenMemStore(absl::string_view where);
absl::StatusOr<std::shared_ptr<Store>> OpenFileStore(absl::string_view where, const Stop& stop);
absl::StatusOr<std::shared_ptr<Store>> OpenTcpStore(absl::string_view where, absl::string_view key,
                                                    const Stop& stop);
absl::StatusOr<std::shared_ptr<Store>> OpenLocalStore(absl::string_view name, absl::string_view key,
                                                      const Stop& stop);

}  // namespace entrain
