#include "examples/trainer/lives.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <unistd.h>

namespace trainer {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr auto kLook = std::chrono::milliseconds(500);
constexpr int64_t kStoreNs = 2 * kSecondNs;  // for a request to the store

std::string KeyOf(const std::string& key) {
  return "entrain-train/" + key;
}

}  // namespace

std::unique_ptr<Lives> Lives::Open(int rank, int ranks, bool saves) {
  if (std::getenv("ENTRAIN_STORE") == nullptr) {
    return nullptr;
  }
  entrain_store_t* store = nullptr;
  Check(entrain_store_open("env:", 0, &store));
  Check(entrain_store_set_timeout(store, kStoreNs));
  if (saves) {
    (void)entrain_store_set(store, "revives", "1", 1);
  }
  return std::unique_ptr<Lives>(new Lives(StoreHandle(store), rank, ranks));
}

Lives::~Lives() {
  Stop();
}

// ---- The store. If it does not answer, a key counts as not set, and the next beat tries again.

std::string Lives::Get(const std::string& key) const {
  char text[64] = {};
  size_t bytes = sizeof(text) - 1;
  const bool set =
      entrain_store_get(store_.get(), KeyOf(key).c_str(), 0, text, &bytes) == ENTRAIN_OK;
  return set ? text : "";
}

bool Lives::Has(const std::string& key) const {
  return !Get(key).empty();
}

// Another server may have the address by then. It has none of the keys.
void Lives::FollowServer() {
  char text[64];
  size_t bytes = sizeof(text);
  entrain_store_t* fresh = nullptr;
  if (entrain_store_get(store_.get(), KeyOf("asked").c_str(), 0, text, &bytes) ==
          ENTRAIN_PEER_LOST &&
      entrain_store_open("env:", kStoreNs, &fresh) == ENTRAIN_OK) {
    store_.reset(fresh);
    (void)entrain_store_set_timeout(fresh, kStoreNs);
  }
}

void Lives::Set(const std::string& key, const std::string& value) const {
  (void)entrain_store_set(store_.get(), KeyOf(key).c_str(), value.data(), value.size());
}

std::vector<std::string> Lives::Signs() const {
  std::vector<std::string> signs;
  for (int rank = 0; rank < ranks_; ++rank) {
    signs.push_back(Get("alive/" + std::to_string(number_) + "/" + std::to_string(rank)));
  }
  return signs;
}

// ---- Arriving

Lives::Way Lives::Arrive(bool restarted) {
  while (true) {
    while (Has("begun/" + std::to_string(number_ + 1))) {
      ++number_;
    }
    if (Has("over")) {
      return Way::kOver;
    }
    const bool met = Has("met/" + std::to_string(number_));
    if (!met && (number_ > 0 || !restarted)) {
      Keep();
      return Way::kMeet;
    }
    before_ = Signs();
    Ask();
    if (met) {
      return Way::kJoin;
    }
    if (!HasMembers()) {  // nobody is in the first meeting any more
      Fail();
    }
  }
}

void Lives::Joined() {
  met_.store(true);
  Keep();
}

void Lives::Ask() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Set("asked", std::to_string(rank_) + " " + std::to_string(now.count()));
}

// Asks again each second, because another rank may have asked over the question.
bool Lives::HasMembers() {
  constexpr int kLooksPerS = 20;
  for (int look = 1; look <= kGoneS * kLooksPerS; ++look) {
    if (std::vector<std::string> now = Signs(); now != before_) {
      before_ = std::move(now);
      Ask();  // for the next call
      return true;
    }
    if (look % kLooksPerS == 0) {
      Ask();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1000 / kLooksPerS));
  }
  return false;
}

void Lives::Fail() {
  Stop();
  ++number_;
  Set("begun/" + std::to_string(number_));
}

// ---- The thread of a member

void Lives::Keep() {
  Answer("0");
  keeper_ = std::thread([this] { Work(); });
}

void Lives::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stops_ = true;
  }
  wakes_.notify_all();
  if (keeper_.joinable()) {
    keeper_.join();
  }
  stops_ = false;
  met_.store(false);
}

void Lives::Work() {
  std::string answered;
  bool met = false, exchanged = false;
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (wakes_.wait_for(lock, kLook, [this] { return stops_; })) {
        return;
      }
    }
    if (met_.load()) {
      FollowServer();
    }
    if (Has("begun/" + std::to_string(number_ + 1))) {
      std::fprintf(
          stderr,
          "entrain-train: rank %d was silent, and the other ranks have begun the run again "
          "from its last checkpoint; this process ends\n",
          rank_);
      std::fflush(nullptr);
      _exit(1);
    }
    const std::string question = Get("asked");
    const bool news = question != answered || met != met_.load() || exchanged != exchanged_.load();
    if (news) {
      answered = question;
      met = met_.load();
      exchanged = exchanged_.load();
      Answer(question);
    }
  }
}

void Lives::Answer(const std::string& question) const {
  const std::string life = std::to_string(number_);
  Set("alive/" + life + "/" + std::to_string(rank_), std::to_string(getpid()) + " " + question);
  if (number_ > 0) {
    Set("begun/" + life);
  }
  if (met_.load()) {
    Set("met/" + life);
  }
  if (exchanged_.load()) {
    Set("stepped");
  }
}

void Lives::Over() {
  Stop();  // its thread may open the store anew
  Set("over");
}

}  // namespace trainer
