#include "bench/page_store.h"

#include <cstring>
#include <stdexcept>

#include <sched.h>
#include <sys/mman.h>

namespace entrain::perf {
namespace {

constexpr size_t kEntries = 1024, kLongestKey = 64, kLongestValue = 16 << 10;

}  // namespace

struct PageStore::Entry {
  std::atomic<bool> set;
  size_t bytes;
  char key[kLongestKey];
  char value[kLongestValue];
};

struct PageStore::Page {
  std::atomic<size_t> taken;
  Entry entries[kEntries];
};

PageStore::PageStore()
    : page_(static_cast<Page*>(
          mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  if (page_ == MAP_FAILED) {
    throw std::runtime_error("cannot map the store");
  }
}

PageStore::~PageStore() {
  munmap(page_, sizeof(Page));
}

const PageStore::Entry* PageStore::Find(const std::string& key) const {
  const size_t taken = page_->taken.load(std::memory_order_relaxed);
  for (size_t i = 0; i < taken && i < kEntries; ++i) {
    const Entry& entry = page_->entries[i];
    // Acquire: pairs with the release in set(), which publishes key and value.
    if (entry.set.load(std::memory_order_acquire) && key == entry.key) {
      return &entry;
    }
  }
  return nullptr;
}

void PageStore::set(const std::string& key, const std::vector<char>& value) {
  const size_t index = page_->taken.fetch_add(1, std::memory_order_relaxed);
  if (index >= kEntries || key.size() >= kLongestKey || value.size() > kLongestValue) {
    throw std::runtime_error("the store is full, or the entry too long: " + key);
  }
  Entry& entry = page_->entries[index];
  std::memcpy(entry.key, key.c_str(), key.size() + 1);
  std::memcpy(entry.value, value.data(), value.size());
  entry.bytes = value.size();
  entry.set.store(true, std::memory_order_release);
}

std::vector<char> PageStore::get(const std::string& key) {
  wait({key});
  const Entry* const entry = Find(key);
  return {entry->value, entry->value + entry->bytes};
}

void PageStore::wait(const std::vector<std::string>& keys,
                     const std::chrono::milliseconds& timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (const std::string& key : keys) {
    while (Find(key) == nullptr) {
      if (std::chrono::steady_clock::now() > end) {
        throw std::runtime_error("nobody has set " + key);
      }
      sched_yield();
    }
  }
}

}  // namespace entrain::perf
