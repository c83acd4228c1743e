// A store: meetings of ranks, and a small shared map. Ranks find each other in the store. Later
// they use the store only when they look for newcomers (lib/comm/create/applications.h).
//
// Thread safety: any thread may use a Store. If the Stop's deadline ends a blocking call, the error
// is kDeadlineExceeded and names the key. If the Stop's flag ends the call, the error is kAborted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"
#include "lib/net/security.h"

namespace entrain {

constexpr size_t kMaxStoreKey = 512;
constexpr size_t kMaxStoreValue = 1 << 20;

// The texts that a rank brings to a meeting: at most 64 texts, and 64 KiB in all. If consecutive
// ranks have the same text at the same index, a server sends this text only once.
using Parts = std::vector<std::string>;

// A rank's part in a meeting of ranks (Store::Join). Each rank brings its parts and gets the parts
// of all ranks. A meeting fails if two processes claim one rank, if sizes differ, if a rank calls
// Fail, or if a rank's process ends before its Finish, even by kill -9. A failure is final, and all
// ranks learn the first reason. The store notices the end of a process within ten seconds. If the
// process's host still answers, the store notices the end within one second. (In a store of etcd or
// of functions, this holds only if the rank that watches the process is on the same host.) The
// object must not outlive the store. Thread safety: one thread at a time.
class StoreMeeting {
 public:
  // If Finish was not called, the rank gives up, and the meeting fails.
  virtual ~StoreMeeting() = default;
  // Blocks until all ranks have joined. Returns the parts by rank, or the reason why the meeting
  // has failed. If `stop` ends the call, returns kDeadlineExceeded or kAborted, and the rank is
  // still part of the meeting.
  virtual absl::StatusOr<std::vector<Parts>> Wait(const Stop& stop) = 0;
  // If this process knows that the meeting has failed, returns the reason, else OK. Never waits for
  // other ranks. In a store of functions, calls the functions.
  virtual absl::Status Check() = 0;
  // Fails the meeting for all its ranks.
  virtual void Fail(const absl::Status& why) = 0;
  // Declares that this rank does not need the other ranks any more. From now on the end of this
  // rank is no failure of the meeting.
  virtual void Finish() = 0;
  // Returns the ranks that have not joined. Some stores return only the first 4096. May wait for a
  // server's answer up to two round trips longer than `stop` allows.
  virtual absl::StatusOr<std::vector<int>> Absent(const Stop& stop) = 0;
};

class Store {
 public:
  virtual ~Store() = default;
  virtual absl::Status Set(absl::string_view key, absl::string_view value, const Stop& stop) = 0;
  // Blocks until the key exists.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, const Stop& stop) = 0;
  // Returns kNotFound if the key does not exist now.
  virtual absl::StatusOr<std::string> TryGet(absl::string_view key, const Stop& stop) = 0;
  // Adds to a decimal integer (an absent key counts as 0) and returns the sum. Atomic.
  virtual absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, const Stop& stop) = 0;
  // Sets the key to `desired` if it holds `expected` (an absent key counts as empty). Returns the
  // value that the key holds afterwards.
  virtual absl::StatusOr<std::string> CompareAndSet(absl::string_view key,
                                                    absl::string_view expected,
                                                    absl::string_view desired,
                                                    const Stop& stop) = 0;
  // Removes a key. The key may be a counter. Returns OK if there is no such key.
  virtual absl::Status Delete(absl::string_view key, const Stop& stop) = 0;
  // Joins the meeting `key` of `size` ranks as `rank`, with the parts `mine`. If `mine` is an
  // error, the rank cannot take part, and the meeting fails at once. Does not wait for the other
  // ranks.
  virtual absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(absl::string_view key, int rank,
                                                             int size,
                                                             const absl::StatusOr<Parts>& mine,
                                                             const Stop& stop) = 0;
  // Returns the URL by which other processes open this store. A mem: store returns its own URL.
  virtual std::string url() const = 0;
  // Returns true if the store consists of functions of the caller. No thread of the library may
  // call these functions.
  virtual bool IsOfFunctions() const { return false; }
  // Returns the server's host, or an empty text if there is no server. A rank chooses its network
  // interface by the route to this host.
  virtual std::string host() const { return {}; }
};

// Opens a store:
//   "mem:NAME"           in this process; one store per NAME, until its last user is gone
//   "local:NAME"         a server among this user's processes on this host
//   "file:DIRECTORY"     one machine
//   "tcp://HOST:PORT[,HOST:PORT...]"            a server elsewhere
//   "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]"  an etcd of one or several members
// local:, tcp: and etcd: retry until `stop` ends the function. The error then names the addresses
// that were tried. `security` may be a text: a pre-shared key, or no key if the text is empty.
// `security` does not apply to etcd.
absl::StatusOr<std::shared_ptr<Store>> OpenStore(absl::string_view url, const Security& security,
                                                 const Stop& stop);

// Serves a tcp or local store from this process until the returned store is destroyed. The server
// has a thread of its own. `url` is "local:NAME", or "tcp://HOST:PORT". With port 0 the kernel
// chooses a port, and url() returns the result. If the port or name is in use, the error is
// FAILED_PRECONDITION and names it.
absl::StatusOr<std::shared_ptr<Store>> ServeStore(absl::string_view url, const Security& security);

}  // namespace entrain
