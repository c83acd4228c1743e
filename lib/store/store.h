// Rendezvous: meetings of ranks, and a small shared map, by which ranks find each other; nothing else afterwards.
//
// Thread safety: a Store may be used from any thread. Every blocking call ends by its Stop: the
// deadline (TIMED_OUT naming the key) or the cancel flag (ABORTED).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"

namespace entrain {

constexpr size_t kMaxStoreKey = 512;
constexpr size_t kMaxStoreValue = 1 << 20;

// What a rank brings to a meeting: up to 64 texts, 64 KiB in all. A text that many ranks have in the same place travels
// once.
using Parts = std::vector<std::string>;

// A rank's part in a meeting of ranks (Store::Join): each brings its parts, each gets those of all. A meeting that has
// failed stays so, and all its ranks learn the first reason: a rank was claimed twice, sizes differ, a rank failed it, or
// a rank has ended, by kill -9 too, before its Finish. The store notices that within a second, where the rank's host still
// answers, and otherwise within ten. One thread at a time; must not outlive the store.
class StoreMeeting {
 public:
  // Not after Finish: the rank gives up, and the meeting fails.
  virtual ~StoreMeeting() = default;
  // Blocks until all ranks have joined. Returns what they brought, by rank, or why the meeting has failed.
  // kDeadlineExceeded, kAborted: `stop`; the rank is still part of the meeting.
  virtual absl::StatusOr<std::vector<Parts>> Wait(const Stop& stop) = 0;
  // Why the meeting has failed since all ranks came; OK if it has not, as far as is known. Never blocks.
  virtual absl::Status Check() = 0;
  // Fails the meeting for all its ranks.
  virtual void Fail(const absl::Status& why) = 0;
  // This rank needs the others no more: its end is no failure from now on.
  virtual void Finish() = 0;
  // Ranks that have not joined, the first 4096 at most. A server's answer is awaited for two round trips beyond `stop`.
  virtual absl::StatusOr<std::vector<int>> Absent(const Stop& stop) = 0;
};

class Store {
 public:
  virtual ~Store() = default;
  virtual absl::Status Set(absl::string_view key, absl::string_view value, const Stop& stop) = 0;
  // Waits until the key exists.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, const Stop& stop) = 0;
  // kNotFound when the key does not exist now.
  virtual absl::StatusOr<std::string> TryGet(absl::string_view key, const Stop& stop) = 0;
  // Adds to a decimal integer (absent: 0) and returns the sum. Atomic.
  virtual absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, const Stop& stop) = 0;
  // Sets the key to `desired` if it holds `expected` (absent counts as empty); returns what it
  // holds afterwards.
  virtual absl::StatusOr<std::string> CompareAndSet(absl::string_view key,
                                                    absl::string_view expected,
                                                    absl::string_view desired,
                                                    const Stop& stop) = 0;
  // Removes a key, also one that Add counts in; OK if there is none.
  virtual absl::Status Delete(absl::string_view key, const Stop& stop) = 0;
  // Takes the place of `rank` in the meeting `key` of `size` ranks and brings `mine`, in one request. An error instead of
  // parts: the rank cannot take part; the meeting fails by it at once. Does not wait for the other ranks.
  virtual absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(absl::string_view key, int rank,
                                                             int size,
                                                             const absl::StatusOr<Parts>& mine,
                                                             const Stop& stop) = 0;
  // The URL by which other processes open the same store. mem: stores name themselves.
  virtual std::string url() const = 0;
  // The server's host, to choose the interface that leads there; empty when there is none.
  virtual std::string host() const { return {}; }
};

// "mem:NAME" (this process; the same name is the same store while somebody holds it), "local:NAME"
// (a server among this user's processes on this host; also retried), "file:DIRECTORY" (one
// machine), "tcp://HOST:PORT[,HOST:PORT...]" (a server elsewhere; connecting retries until `stop`
// ends it, then the error names the addresses tried). `key`: pre-shared key, empty for none.
absl::StatusOr<std::shared_ptr<Store>> OpenStore(absl::string_view url, absl::string_view key,
                                                 const Stop& stop);

// Serves a tcp or a local store from this process, on a thread of its own, until the returned store
// is destroyed: "tcp://HOST:PORT", port 0: the kernel chooses, and url() says which; "local:NAME".
// Port or name in use: FAILED_PRECONDITION naming it.
absl::StatusOr<std::shared_ptr<Store>> ServeStore(absl::string_view url, absl::string_view key);

}  // namespace entrain
