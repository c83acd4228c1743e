// Gloo's rendezvous store in memory that forked ranks share, so that nothing needs to be cleaned
// up.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "gloo/rendezvous/store.h"

namespace entrain::perf {

// Must be created before the ranks are forked. Each key is set once and never removed.
class PageStore final : public gloo::rendezvous::Store {
 public:
  PageStore();
  ~PageStore() override;
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  void set(const std::string& key, const std::vector<char>& value) override;
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, kDefaultTimeout); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  struct Entry;
  struct Page;
  const Entry* Find(const std::string& key) const;

  Page* page_;
};

}  // namespace entrain::perf
