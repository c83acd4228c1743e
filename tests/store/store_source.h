// One store of a kind for a test, and any number of handles to it.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

#include <unistd.h>

#include "gtest/gtest.h"

#include "lib/store/prefix_store.h"
#include "lib/store/store.h"

namespace entrain {

inline Stop Soon() {
  return {Deadline::After(20 * kSecond), nullptr};
}

class StoreSource {
 public:
  explicit StoreSource(const std::string& kind) : kind_(kind) {
    static std::atomic<int> count{0};
    if (kind == "file") {
      std::string pattern = ::testing::TempDir() + "entrain-store-XXXXXX";
      directory_ = mkdtemp(pattern.data());
      url_ = "file:" + directory_;
    } else if (kind == "tcp") {
      served_ = *ServeStore("tcp://127.0.0.1:0", kKey);
      url_ = served_->url();
    } else if (kind == "local") {
      url_ = "local:contract" + std::to_string(getpid()) + "." + std::to_string(++count);
      served_ = *ServeStore(url_, kKey);
    } else {
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
    auto store = OpenStore(url_, kKey, Soon());
    EXPECT_TRUE(store.ok()) << store.status();
    return kind_ == "prefix" ? WithPrefix(*store, "part/") : *store;
  }
  const std::string& url() const { return url_; }
  // The handle of the process that serves; null: there is no server.
  const std::shared_ptr<Store>& served() const { return served_; }

 private:
  static constexpr const char* kKey = "a key of many bytes";
  std::string kind_, url_, directory_;
  std::shared_ptr<Store> served_, first_;
};

}  // namespace entrain
