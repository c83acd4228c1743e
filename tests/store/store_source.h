// One store of a given kind for a test, and any number of handles to it.
#pragma once

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/store/function_store.h"
#include "lib/store/prefix_store.h"
#include "lib/store/store.h"
#include "tests/support/etcd_server.h"

namespace entrain {

inline Stop Soon() {
  return {Deadline::After(20 * kSecond), nullptr};
}

// Functions over another store's map. They keep all keys, unless `removes` is true.
inline StoreFunctions FunctionsOver(const std::shared_ptr<Store>& base, bool removes = false) {
  using Base = std::shared_ptr<Store>;
  StoreFunctions functions;
  functions.user = new Base(base);
  functions.set = [](void* user, const char* key, const void* value, size_t bytes) {
    return ToCode(
        (*static_cast<Base*>(user))->Set(key, {static_cast<const char*>(value), bytes}, Soon()));
  };
  functions.get = [](void* user, const char* key, int64_t timeout_ns, void* value, size_t* bytes) {
    const auto got = (*static_cast<Base*>(user))->Get(key, {Deadline::After(timeout_ns)});
    if (got.ok()) {
      std::copy_n(got->data(), std::min(*bytes, got->size()), static_cast<char*>(value));
      *bytes = got->size();
    }
    return ToCode(got.status());
  };
  functions.add = [](void* user, const char* key, int64_t delta, int64_t* sum) {
    const auto added = (*static_cast<Base*>(user))->Add(key, delta, Soon());
    *sum = added.value_or(0);
    return ToCode(added.status());
  };
  const auto remove = [](void* user, const char* key) -> int32_t {
    return ToCode((*static_cast<Base*>(user))->Delete(key, Soon()));
  };
  functions.remove = removes ? +remove : nullptr;
  functions.release = [](void* user) { delete static_cast<Base*>(user); };
  return functions;
}

// Returns the kinds, without "etcd" if no etcd is installed (EtcdTests.RunHere reports this).
inline std::vector<const char*> KindsHere(std::vector<const char*> kinds) {
  if (WhyNoEtcd().empty()) {
    kinds.push_back("etcd");
  }
  return kinds;
}

// The kind "functions" is over a mem store. "functions_file" is over a file store, for processes.
class StoreSource {
 public:
  explicit StoreSource(const std::string& kind) : kind_(kind) {
    static std::atomic<int> count{0};
    if (kind == "file" || kind == "functions_file") {
      std::string pattern = ::testing::TempDir() + "entrain-store-XXXXXX";
      directory_ = mkdtemp(pattern.data());
      url_ = "file:" + directory_;
    } else if (kind == "tcp") {
      served_ = *ServeStore("tcp://127.0.0.1:0", security_);
      url_ = served_->url();
    } else if (kind == "tcp_tls") {
      security_.within_host = true;
      served_ = *ServeStore("tcp://127.0.0.1:0", security_);
      url_ = served_->url();
    } else if (kind == "local") {
      url_ = "local:contract" + std::to_string(getpid()) + "." + std::to_string(++count);
      served_ = *ServeStore(url_, security_);
    } else if (kind == "etcd") {
      static const EtcdServer etcd;  // for all sources of this process
      url_ = etcd.url("contract/" + std::to_string(++count));
    } else {
      EXPECT_TRUE(kind == "mem" || kind == "prefix" || kind == "functions")
          << "no store of the kind " << kind;
      url_ = "mem:contract" + std::to_string(++count);
    }
    first_ = Open();
  }
  ~StoreSource() {
    if (!directory_.empty()) {
      std::filesystem::remove_all(directory_);
    }
  }
  std::shared_ptr<Store> Open() const {
    auto store = OpenStore(url_, security_, Soon());
    EXPECT_TRUE(store.ok()) << store.status();
    return kind_ == "prefix"                  ? WithPrefix(*store, "part/")
           : kind_.rfind("functions", 0) == 0 ? MakeFunctionStore(FunctionsOver(*store), "")
                                              : *store;
  }
  const std::string& url() const { return url_; }
  // Returns the handle of the serving process, or null if there is no server.
  const std::shared_ptr<Store>& served() const { return served_; }

 private:
  Security security_{"a key of many bytes"};
  std::string kind_, url_, directory_;
  std::shared_ptr<Store> served_, first_;
};

}  // namespace entrain
