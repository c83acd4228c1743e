// Implements store.h: rendezvous stores.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "include/entrain/store.h"
#include "lib/api/boundary.h"
#include "lib/api/environment.h"
#include "lib/api/handles.h"
#include "lib/api/settings.h"
#include "lib/base/config.h"
#include "lib/base/status.h"
#include "lib/store/function_store.h"

namespace entrain::api {
namespace {

// the time limit of entrain_store_open if timeout_ns is 0
constexpr int64_t kConnectTimeout = 30 * kSecond;

// Returns the Stop for a request to the store.
Stop RequestStop(const entrain_store_t* store) {
  return {.deadline = Deadline::After(store->timeout_ns.load(std::memory_order_relaxed))};
}

absl::Status CheckKey(const entrain_store_t* store, const char* key) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(store, "store"));
  ENTRAIN_RETURN_IF_ERROR(NotNull(key, "key"));
  const size_t bytes = std::strlen(key);
  if (bytes == 0 || bytes > kMaxStoreKey) {
    return absl::InvalidArgumentError(
        absl::StrCat("key has ", bytes, " bytes, allowed are 1 to ", kMaxStoreKey));
  }
  return absl::OkStatus();
}

// Returns a reference that keeps the store alive. Another thread may destroy the handle during a
// call.
std::shared_ptr<Store> Kept(const entrain_store_t* store) {
  return store->store;
}

void Give(std::shared_ptr<Store> opened, entrain_store_t** store) {
  std::string url = opened->url();
  *store = new entrain_store{.store = std::move(opened), .url = std::move(url)};
}

}  // namespace
}  // namespace entrain::api

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::Deadline;

extern "C" {

entrain_status_t entrain_store_open(const char* url, int64_t timeout_ns, entrain_store_t** store) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(url, "url"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(store, "store"));
    ENTRAIN_RETURN_IF_ERROR(CheckTimeout(timeout_ns));
    ENTRAIN_ASSIGN_OR_RETURN(const entrain::Security security, entrain::LoadSecurity({}));
    const int64_t timeout = timeout_ns > 0 ? timeout_ns : kConnectTimeout;
    const entrain::Stop stop{.deadline = Deadline::After(timeout)};
    ENTRAIN_ASSIGN_OR_RETURN(auto opened, std::strcmp(url, "env:") == 0
                                              ? OpenStoreOfOthers(security, stop)
                                              : entrain::OpenStore(url, security, stop));
    Give(std::move(opened), store);
    return absl::OkStatus();
  });
}

entrain_status_t entrain_store_serve(const char* url, entrain_store_t** store) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(url, "url"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(store, "store"));
    ENTRAIN_ASSIGN_OR_RETURN(const entrain::Security security, entrain::LoadSecurity({}));
    ENTRAIN_ASSIGN_OR_RETURN(auto served, entrain::ServeStore(url, security));
    Give(std::move(served), store);
    return absl::OkStatus();
  });
}

entrain_status_t entrain_store_create(const entrain_store_functions_t* functions,
                                      entrain_store_t** store) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(functions, "functions"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(store, "store"));
    entrain_store_functions_t known;
    entrain_store_functions_init(&known);
    ENTRAIN_RETURN_IF_ERROR(
        entrain::CopyStruct(functions, &known, sizeof(known), "entrain_store_functions_t"));
    for (const auto& [missing, name] : {std::pair(known.set == nullptr, "functions.set"),
                                        std::pair(known.get == nullptr, "functions.get"),
                                        std::pair(known.add == nullptr, "functions.add")}) {
      if (missing) {
        return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
      }
    }
    Give(entrain::MakeFunctionStore(
             {known.user, known.set, known.get, known.add, known.remove, known.release},
             known.host == nullptr ? "" : known.host),
         store);
    return absl::OkStatus();
  });
}

const char* entrain_store_url(const entrain_store_t* store) {
  return NotNull(store, "store").ok() ? store->url.c_str() : "";
}

entrain_status_t entrain_store_set_timeout(entrain_store_t* store, int64_t timeout_ns) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(store, "store"));
    ENTRAIN_RETURN_IF_ERROR(CheckPositiveTimeout(timeout_ns));
    store->timeout_ns.store(timeout_ns, std::memory_order_relaxed);
    return absl::OkStatus();
  });
}

entrain_status_t entrain_store_set(entrain_store_t* store, const char* key, const void* value,
                                   size_t bytes) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckKey(store, key));
    if (bytes > 0) {
      ENTRAIN_RETURN_IF_ERROR(NotNull(value, "value"));
    }
    if (bytes > entrain::kMaxStoreValue) {
      return absl::InvalidArgumentError(absl::StrCat("value of key \"", key, "\" has ", bytes,
                                                     " bytes, allowed are ",
                                                     entrain::kMaxStoreValue));
    }
    return Kept(store)->Set(key, {static_cast<const char*>(value), bytes}, RequestStop(store));
  });
}

entrain_status_t entrain_store_get(entrain_store_t* store, const char* key, int64_t timeout_ns,
                                   void* value, size_t* bytes) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckKey(store, key));
    ENTRAIN_RETURN_IF_ERROR(NotNull(bytes, "bytes"));
    ENTRAIN_RETURN_IF_ERROR(CheckTimeout(timeout_ns));
    if (*bytes > 0) {
      ENTRAIN_RETURN_IF_ERROR(NotNull(value, "value"));
    }
    const auto found = timeout_ns > 0
                           ? Kept(store)->Get(key, {.deadline = Deadline::After(timeout_ns)})
                           : Kept(store)->TryGet(key, RequestStop(store));
    if (absl::IsNotFound(found.status())) {
      return absl::DeadlineExceededError(absl::StrCat("key ", key, " does not exist now"));
    }
    ENTRAIN_ASSIGN_OR_RETURN(const std::string got, found);
    std::copy_n(got.data(), std::min(*bytes, got.size()), static_cast<char*>(value));
    *bytes = got.size();
    return absl::OkStatus();
  });
}

entrain_status_t entrain_store_add(entrain_store_t* store, const char* key, int64_t delta,
                                   int64_t* sum) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckKey(store, key));
    ENTRAIN_RETURN_IF_ERROR(NotNull(sum, "sum"));
    ENTRAIN_ASSIGN_OR_RETURN(*sum, Kept(store)->Add(key, delta, RequestStop(store)));
    return absl::OkStatus();
  });
}

entrain_status_t entrain_store_delete(entrain_store_t* store, const char* key) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckKey(store, key));
    return Kept(store)->Delete(key, RequestStop(store));
  });
}

void entrain_store_destroy(entrain_store_t* store) {
  Destroy(__func__, store);
}

}  // extern "C"
