// A store that consists of the user's functions: set, get, add and, optionally, remove. The
// functions work on a map that the user keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/clock.h"
#include "lib/store/store.h"

namespace entrain {

// The C++ form of entrain_store_functions_t; include/entrain/store.h states the rules. `set`,
// `get`, `add` and `remove` return an entrain_status_t.
struct StoreFunctions {
  void* user = nullptr;
  int32_t (*set)(void* user, const char* key, const void* value, size_t bytes) = nullptr;
  int32_t (*get)(void* user, const char* key, int64_t timeout_ns, void* value,
                 size_t* bytes) = nullptr;
  int32_t (*add)(void* user, const char* key, int64_t delta, int64_t* sum) = nullptr;
  int32_t (*remove)(void* user, const char* key) = nullptr;  // null: keys stay
  void (*release)(void* user) = nullptr;                     // null: nothing to release
};

// Calls the functions and checks their results. Every error names the store, the function and the
// key.
class FunctionCalls {
 public:
  FunctionCalls(const StoreFunctions& functions, std::string url)
      : functions_(functions), url_(std::move(url)) {}
  ~FunctionCalls();
  FunctionCalls(const FunctionCalls&) = delete;
  FunctionCalls& operator=(const FunctionCalls&) = delete;

  absl::Status Set(const std::string& key, const std::string& value) const;
  // Waits for the key for `timeout_ns`, or longer if the user's function does. kNotFound: the key
  // did not appear.
  absl::StatusOr<std::string> Get(const std::string& key, int64_t timeout_ns) const;
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t delta) const;
  // Returns kUnimplemented if the user gave no such function.
  absl::Status Remove(const std::string& key) const;
  // Removes a key that is not needed any more. Only logs a failure, because the key does no harm if
  // it stays.
  void Forget(const std::string& key) const;
  bool removes() const { return functions_.remove != nullptr; }
  const std::string& url() const { return url_; }

 private:
  absl::Status Check(int32_t code, const char* function, const std::string& key) const;

  const StoreFunctions functions_;
  const std::string url_;
};

// Returns the time for which one call of `get` may wait before the store looks at `stop` again.
int64_t GetSliceNs(const Stop& stop);

// `host` is the result of Store::host. The store has no compare-and-set (kUnimplemented), and
// refuses keys that contain a zero byte. The functions are called only by threads that call the
// store or its meetings. The thread that drops the last reference calls `release`.
std::shared_ptr<Store> MakeFunctionStore(const StoreFunctions& functions, std::string host);

}  // namespace entrain
