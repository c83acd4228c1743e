// Rendezvous: a small shared map that ranks use to find each other, and nothing else afterwards.
//
// Thread safety: a Store may be used from any thread. Every blocking call ends by its Stop: the
// deadline (TIMED_OUT naming the key) or the cancel flag (ABORTED).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"

namespace entrain {

constexpr size_t kMaxStoreKey = 512;
constexpr size_t kMaxStoreValue = 1 << 20;

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
  // Removes every key that begins with `prefix`; returns how many.
  virtual absl::StatusOr<int64_t> DeletePrefix(absl::string_view prefix, const Stop& stop) = 0;
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
