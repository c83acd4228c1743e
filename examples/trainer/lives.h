// The lives of a run that takes in newcomers (--admit). A life begins when all ranks meet. It ends
// when no rank is left that a restarted rank could join. The restarted ranks then meet in the next
// life, and continue from the newest checkpoint.
//
// The ranks learn of lives through the store of the job (ENTRAIN_STORE), and so through processes
// that only the launcher must keep alive. Keys, each behind "entrain-train/":
//   begun/L    life L has begun, L >= 1. Life 0 begins with the job
//   met/L      all ranks of life L have met. From then on, a restarted rank joins them
//   asked      a restarted rank asks whether anybody lives; the value is different each time
//   alive/L/R  the answer of rank R of life L: it changes after a question
//   stepped    some life has exchanged, so a run that begins anew would lose steps
//   over       the run is over
// A member reads `asked` and begun/L+1 twice a second. If nobody asks, nobody writes. With an answer
// a member writes its other keys again, so the store may lose them.
//
// A rank that was stopped while the others have begun another life ends its process when it wakes
// up, before it can save.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "examples/trainer/api.h"

namespace trainer {

using StoreHandle = Handle<entrain_store_t, entrain_store_destroy>;

class Lives {
 public:
  // Opens the store. Returns null if ENTRAIN_STORE is not set. `ranks`: the size of the job. If the
  // run `saves` checkpoints, tells entrain-run that restarted ranks continue by themselves.
  static std::unique_ptr<Lives> Open(int rank, int ranks, bool saves);
  ~Lives();

  // How a process takes part.
  enum class Way {
    kMeet,  // with all other ranks, in life number()
    kJoin,  // life number() has begun without it
    kOver,  // not at all: the run is over
  };
  // Returns how this process takes part. `restarted`: an earlier process had this rank. If the way is
  // kJoin, HasMembers must be called before this process waits for others.
  Way Arrive(bool restarted);
  // Must be called when the meeting of life number() has succeeded.
  void Met() { met_.store(true); }
  // Must be called when this rank has joined life number().
  void Joined();
  // Must be called when the meeting has failed, or no member is left. Begins the next life.
  void Fail();
  // Returns true if a rank of life number() has lived since Arrive, or since the last call. Blocks for
  // at most kGoneS.
  bool HasMembers();
  // Must be called at exchanges.
  void Exchanged() { exchanged_.store(true); }
  // Returns true if some life has exchanged.
  bool Stepped() const { return Has("stepped"); }
  // Must be called when this rank has finished the run.
  void Over();

  int64_t number() const { return number_; }
  entrain_store_t* store() const { return store_.get(); }

 private:
  static constexpr int kGoneS = 10;

  Lives(StoreHandle store, int rank, int ranks)
      : store_(std::move(store)), rank_(rank), ranks_(ranks) {}
  bool Has(const std::string& key) const;
  void Set(const std::string& key, const std::string& value = "1") const;
  // Returns what the ranks of life number() have written.
  std::vector<std::string> Signs() const;
  std::string Get(const std::string& key) const;
  void Ask();
  // Opens the store anew if its server has ended.
  void FollowServer();
  // Begin and end the thread that answers for this rank.
  void Keep();
  void Stop();
  void Work();
  void Answer(const std::string& question) const;

  StoreHandle store_;  // replaced by FollowServer only, on the thread of Work after the meeting
  const int rank_, ranks_;
  int64_t number_ = 0;
  std::atomic<bool> met_{false}, exchanged_{false};
  std::vector<std::string> before_;  // the signs before the last question
  std::thread keeper_;
  std::mutex mutex_;
  std::condition_variable wakes_;
  bool stops_ = false;
};

}  // namespace trainer
