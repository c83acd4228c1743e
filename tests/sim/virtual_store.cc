#include "tests/sim/virtual_store.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "include/entrain/types.h"
#include "lib/store/function_store.h"
#include "tests/sim/seeds.h"

namespace entrain {

std::shared_ptr<Store> VirtualStore::Open() {
  doors_.push_back(std::make_unique<Door>(Door{this, world_.process()}));
  StoreFunctions functions;
  functions.user = doors_.back().get();
  functions.set = &Set;
  functions.get = &Get;
  functions.add = &Add;
  functions.remove = &Remove;
  return MakeFunctionStore(functions, "");
}

bool VirtualStore::Travel(int process) {
  VirtualNetwork& network = world_.network();
  if (world_.isolated(process)) {
    world_.Sleep(kMillisecond);
    return false;
  }
  int64_t time = network.Between(times_.least_ns / 2, times_.most_ns / 2);
  if (times_.slow > 0 && network.Chance(times_.slow)) {
    time += network.Between(0, times_.slow_ns / 2);
  }
  if (const auto slow = slow_.find(process); slow != slow_.end()) {
    time += network.Between(0, slow->second / 2);
  }
  world_.Sleep(std::max(time, stalled_until_ - network.now()));
  return !world_.isolated(process) && !cut_off(process);
}

void VirtualStore::Trace(int process, const char* what, const char* key) {
  if (Seeds::Traced()) {
    printf("%10.3f ms: process %d: %s %s\n", static_cast<double>(world_.network().now()) * 1e-6,
           process, what, key);
  }
}

void VirtualStore::Changed(const std::string& key) {
  for (auto [first, last] = waiting_.equal_range(key); first != last; ++first) {
    world_.Wake(first->second, &waiting_);
  }
}

int32_t VirtualStore::Set(void* user, const char* key, const void* value, size_t bytes) {
  const auto [store, process] = *static_cast<Door*>(user);
  if (!store->Travel(process)) {
    return ENTRAIN_PEER_LOST;
  }
  store->Trace(process, "sets", key);
  store->values_[key] = std::string(static_cast<const char*>(value), bytes);
  store->Changed(key);
  return store->Travel(process) ? ENTRAIN_OK : ENTRAIN_PEER_LOST;
}

int32_t VirtualStore::Get(void* user, const char* key, int64_t timeout_ns, void* value,
                          size_t* bytes) {
  const auto [store, process] = *static_cast<Door*>(user);
  if (!store->Travel(process)) {
    return ENTRAIN_PEER_LOST;
  }
  if (timeout_ns > 0 && !store->values_.contains(key)) {
    const auto here = store->waiting_.emplace(key, process);
    const int64_t until = store->world_.LocalNow(process) + timeout_ns;
    int64_t left = timeout_ns;
    while (left > 0 && !store->values_.contains(key) && !store->world_.isolated(process)) {
      store->world_.Block(&store->waiting_, left);
      left = until - store->world_.LocalNow(process);
    }
    store->waiting_.erase(here);
  }
  const auto found = store->values_.find(key);
  const bool present = found != store->values_.end();
  const std::string text = present ? found->second : "";
  store->Trace(process, present ? "gets" : "finds no", key);
  if (!store->Travel(process)) {
    return ENTRAIN_PEER_LOST;
  }
  if (!present) {
    return ENTRAIN_TIMED_OUT;
  }
  std::memcpy(value, text.data(), std::min(text.size(), *bytes));
  *bytes = text.size();
  return ENTRAIN_OK;
}

int32_t VirtualStore::Add(void* user, const char* key, int64_t delta, int64_t* sum) {
  const auto [store, process] = *static_cast<Door*>(user);
  if (!store->Travel(process)) {
    return ENTRAIN_PEER_LOST;
  }
  store->Trace(process, "adds to", key);
  std::string& text = store->values_[key];
  int64_t before = 0;
  if (!text.empty() && !absl::SimpleAtoi(text, &before)) {
    return ENTRAIN_MISMATCH;
  }
  *sum = before + delta;
  text = absl::StrCat(*sum);
  store->Changed(key);
  return store->Travel(process) ? ENTRAIN_OK : ENTRAIN_PEER_LOST;
}

int32_t VirtualStore::Remove(void* user, const char* key) {
  const auto [store, process] = *static_cast<Door*>(user);
  if (!store->Travel(process)) {
    return ENTRAIN_PEER_LOST;
  }
  store->Trace(process, "removes", key);
  store->values_.erase(key);
  return store->Travel(process) ? ENTRAIN_OK : ENTRAIN_PEER_LOST;
}

}  // namespace entrain
