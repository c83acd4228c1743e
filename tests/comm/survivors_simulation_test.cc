// The machine of lib/comm/failure/survivors.h on a virtual network: crashes (also in the middle of sending), lost and slow paths,
// stopped ranks, ranks that call late or leave. Every seed is a run. When a run fails, the test
// prints its seed; then
//   ENTRAIN_SIMULATION_FIRST=SEED ENTRAIN_SIMULATION_SEEDS=1 ENTRAIN_SIMULATION_TRACE=1 survivors_simulation_test
// repeats this run and prints its messages. ENTRAIN_SIMULATION_SEEDS=1000000 runs more seeds.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

#include "lib/comm/failure/survivors.h"
#include "tests/sim/seeds.h"
#include "tests/sim/virtual_network.h"

namespace entrain {
namespace {

using Decision = Survivors::Decision;
using End = Survivors::End;
using Kind = Survivors::Kind;
using Wish = Survivors::Wish;

constexpr int64_t kSilence = 100 * kMillisecond;

const bool kTrace = Seeds::Traced();

// A rank: its machine, and a caller that makes one call after the other.
class Rank final : public VirtualNode {
 public:
  Rank(VirtualNetwork& network, int rank, std::vector<Wish> program)
      : network_(network),
        rank_(rank),
        program_(std::move(program)),
        machine_(rank, network.size()) {}

  void OnMessage(int from, const std::string& text, int64_t now) override {
    if (kTrace) {
      // The machine's header of a message: number, type; of a report, flags.
      printf("%10.3f ms: %d <- %d: #%d type %d flags %d; here #%u end %d\n",
             static_cast<double>(now) * 1e-6, rank_, from, text.empty() ? 0 : text[0],
             text.empty() ? 0 : text[4], text.empty() ? 0 : text[5], machine_.number(),
             static_cast<int>(machine_.end()));
    }
    if (left_) {
      return;
    }
    if (text.empty()) {
      machine_.OnGone(from, now);  // it has left
    } else {
      machine_.OnMessage(from, text, now);
    }
    After();
  }
  void OnLost(int peer, bool proven, int64_t now) override {
    if (!left_) {
      proven ? machine_.OnGone(peer, now) : machine_.OnCut(peer, now);
      After();
    }
  }
  void OnTick(int64_t now) override {
    machine_.OnTick(now);
    After();
  }
  int64_t next_tick() const override {
    return left_ ? std::numeric_limits<int64_t>::max() : machine_.next_tick().at_ns;
  }

  // The caller makes its next call, or repeats the call that is under way.
  void Call() {
    if (!left_ && machine_.number() <= program_.size()) {
      called_ = true;
      machine_.Call(program_[machine_.number() - 1], network_.now(), kSilence);
      After();
    }
  }
  void Leave() {
    left_ = true;
    for (int r = 0; r < network_.size(); ++r) {
      if (r != rank_) {
        network_.Send(rank_, r, "");
      }
    }
  }

  const Survivors& machine() const { return machine_; }
  bool called() const { return called_; }
  bool left() const { return left_; }
  bool waits() const { return !left_ && machine_.pending(); }
  bool finished() const { return machine_.number() > program_.size(); }
  const std::map<uint32_t, Decision>& decided() const { return decided_; }
  bool leaves_when_done = false;
  int64_t pause_ns = kMillisecond;

 private:
  void After() {
    for (auto& message : machine_.TakeMessages()) {
      network_.Send(rank_, message.to, std::move(message.text));
    }
    const uint32_t over = machine_.number() - 1;
    if (over == 0 || decided_.contains(over)) {
      return;
    }
    decided_[over] = *machine_.last();
    network_.On(rank_, network_.now() + pause_ns, [this] {
      if (!finished()) {
        Call();
      } else if (leaves_when_done && !left_) {
        Leave();
      }
    });
  }

  VirtualNetwork& network_;
  const int rank_;
  const std::vector<Wish> program_;
  Survivors machine_;
  bool called_ = false, left_ = false;
  std::map<uint32_t, Decision> decided_;
};

// Counts how often the seeds reached the situations that they are meant to reach.
struct Reached {
  uint64_t decisions = 0, smaller = 0, recovered = 0, left_out = 0, minority = 0, excluded = 0,
           waiting = 0, none = 0;
};

class World {
 public:
  explicit World(uint64_t seed)
      : network_(seed, PickSize(seed), {kMicrosecond, 5 * kMillisecond}),
        size_(network_.size()),
        any_(network_.Chance(0.1)),
        touched_(static_cast<size_t>(size_)) {
    MakeRanks();
    if (network_.Chance(0.9)) {
      const int faults = static_cast<int>(network_.Between(1, 4));
      for (int i = 0; i < faults; ++i) {
        AddFault();
      }
    }
    network_.Run(end_ + 30 * kSilence);
  }

  // Returns the failures, or "" if there are none.
  std::string Check() const {
    std::string wrong;
    const auto say = [&](auto... words) { absl::StrAppend(&wrong, words..., "\n"); };
    for (int a = 0; a < size_; ++a) {
      for (const auto& [number, decision] : rank(a).decided()) {
        if (!decision.members.Has(a)) {
          say("rank ", a, " has decided #", number, " without itself");
        }
        for (int b = 0; b < a; ++b) {
          const auto other = rank(b).decided().find(number);
          if (other == rank(b).decided().end() || !goes_on(a) || !goes_on(b)) {
            continue;
          }
          const bool apart = any_ && (rank(a).machine().knowledge().cut().Has(b) ||
                                      rank(b).machine().knowledge().cut().Has(a) ||
                                      !decision.members.Has(b) || !other->second.members.Has(a));
          if (!apart && !(other->second == decision)) {
            say("ranks ", b, ", ", a, " have decided #", number,
                " differently: ", Text(other->second), " and ", Text(decision));
          }
        }
        CheckContent(a, number, decision, &wrong);
      }
      if (network_.alive(a) && rank(a).waits() && !SomeRankHasNotCalled()) {
        say("rank ", a, " still waits in #", rank(a).machine().number(), " for leader ",
            rank(a).machine().knowledge().leader());
      }
    }
    for (int a = 0; a < size_; ++a) {
      for (const auto& [number, decision] : rank(a).decided()) {
        for (int c = 0; c < size_ && goes_on(a); ++c) {
          const bool was_in = number == 1 || rank(a).decided().at(number - 1).members.Has(c);
          if (was_in && !decision.members.Has(c) && Reaches(c, decision.members)) {
            say("rank ", c, ", which reaches all members, is left out of #", number, ": ",
                Text(decision));
          }
        }
      }
    }
    return wrong.empty() ? wrong : absl::StrCat(wrong, Describe());
  }

  void Count(Reached* reached) const {
    bool decided = false;
    for (int r = 0; r < size_; ++r) {
      for (const auto& [number, decision] : rank(r).decided()) {
        ++reached->decisions;
        decided = true;
        reached->smaller += decision.members.count() < size_ ? 1 : 0;
        // The decision has a member that has crashed long ago: an earlier leader had proposed it.
        reached->recovered += std::any_of(crashed_.begin(), crashed_.end(),
                                          [&](int dead) {
                                            return decision.members.Has(dead) &&
                                                   rank(dead).decided().count(number) == 0;
                                          })
                                  ? 1
                                  : 0;
      }
      const End end = rank(r).machine().end();
      reached->left_out += end == End::kLeftOut ? 1 : 0;
      reached->minority += end == End::kMinority ? 1 : 0;
      reached->excluded += end == End::kExcluded ? 1 : 0;
      reached->waiting += network_.alive(r) && rank(r).waits() ? 1 : 0;
    }
    reached->none += decided ? 0 : 1;
  }

 private:
  static int PickSize(uint64_t seed) {
    constexpr int kSizes[] = {1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 7, 8};
    return kSizes[seed % std::size(kSizes)];
  }
  const Rank& rank(int r) const { return *ranks_[static_cast<size_t>(r)]; }
  // A dead rank does nothing with its decision.
  bool goes_on(int r) const { return network_.alive(r); }

  void MakeRanks() {
    std::vector<Kind> kinds;
    for (int64_t calls = network_.Between(1, 3); calls > 0; --calls) {
      kinds.push_back(network_.Chance(0.5) ? Kind::kShrink : Kind::kAgree);
    }
    excluded_ = size_ > 2 && network_.Chance(0.1) ? Pick() : -1;
    const bool all_exclude = network_.Chance(0.5);
    for (int r = 0; r < size_; ++r) {
      std::vector<Wish> program;
      for (const Kind kind : kinds) {
        Wish wish;
        wish.kind = kind;
        wish.any = any_;
        wish.flag = ~(1u << r);
        wish.context = static_cast<uint16_t>(100 * (program.size() + 1) + static_cast<size_t>(r));
        program.push_back(wish);
      }
      if (excluded_ >= 0 && excluded_ != r && (all_exclude || r == (excluded_ + 1) % size_)) {
        program[0].exclude = {excluded_};
      }
      ranks_.push_back(std::make_unique<Rank>(network_, r, std::move(program)));
      ranks_.back()->leaves_when_done = network_.Chance(0.4);
      ranks_.back()->pause_ns = network_.Between(0, 20 * kMillisecond);
      network_.Attach(r, ranks_.back().get());
      const bool late = network_.Chance(0.1);
      const int64_t at = network_.Between(0, late ? 10 * kSilence : 30 * kMillisecond);
      if (network_.Chance(0.02)) {
        Touch(r);  // never calls
        continue;
      }
      CallAt(r, at);
      if (network_.Chance(0.05)) {
        CallAt(r, at + network_.Between(0, 5 * kSilence));  // comes back to it
      }
    }
  }
  void CallAt(int r, int64_t at) {
    end_ = std::max(end_, at);
    network_.On(r, at, [this, r] { ranks_[static_cast<size_t>(r)]->Call(); });
  }

  int Pick() { return static_cast<int>(network_.Between(0, size_ - 1)); }
  void Touch(int r) { touched_[static_cast<size_t>(r)] = true; }
  void Tell(std::string what) { story_.push_back(std::move(what)); }

  void AddFault() {
    // Most faults fall into the exchange itself, which takes a few ms.
    const int64_t at = network_.Between(0, network_.Chance(0.7) ? 60 * kMillisecond : 6 * kSilence);
    end_ = std::max(end_, at);
    const int a = Pick(), b = Pick();
    switch (network_.Between(0, 9)) {
      case 0:
      case 1: {
        const bool notice = network_.Chance(0.8);
        const double proven = network_.Chance(0.8) ? 1 : network_.Chance(0.5) ? 0 : 0.5;
        Touch(a);
        crashed_.insert(a);
        Tell(absl::StrCat(at, ": ", a, " crashes; told: ", notice, ", proven: ", proven));
        network_.At(at, [=, this] { network_.Crash(a, notice, proven); });
        return;
      }
      case 2:
      case 3: {
        const int sends = static_cast<int>(network_.Between(1, 3 * size_));
        Touch(a);
        crashed_.insert(a);
        Tell(absl::StrCat(at, ": ", a, " crashes at send ", sends));
        network_.At(at, [=, this] { network_.CrashInTheMiddle(a, sends); });
        return;
      }
      case 4:
        if (a != b) {
          CutPair(a, b, at, network_.Chance(0.6));
        }
        return;
      case 5: {  // sides that do not reach each other
        const uint64_t side = network_.random()();
        const bool notice = network_.Chance(0.6);
        for (int x = 0; x < size_; ++x) {
          for (int y = 0; y < x; ++y) {
            if (((side >> x) & 1) != ((side >> y) & 1)) {
              CutPair(x, y, at, notice);
            }
          }
        }
        return;
      }
      case 9: {  // sides that do not hear each other, and then a death that all learn of
        const uint64_t side = network_.random()();
        const int64_t until = at + network_.Between(5 * kSilence, 10 * kSilence);
        const int64_t death = at + network_.Between(kSilence, 4 * kSilence);
        for (int x = 0; x < size_; ++x) {
          for (int y = 0; y < size_; ++y) {
            if (((side >> x) & 1) != ((side >> y) & 1)) {
              troubled_.insert(std::minmax(x, y));
              network_.At(at, [=, this] { network_.Stall(x, y, until); });
            }
          }
        }
        Touch(a);
        crashed_.insert(a);
        end_ = std::max(end_, until);
        Tell(absl::StrCat(at, ": sides ", side % (uint64_t{1} << size_), " are deaf until ", until,
                          ", ", a, " crashes at ", death));
        network_.At(death, [=, this] { network_.Crash(a); });
        return;
      }
      case 6: {
        const int64_t until = at + network_.Between(kMillisecond, 8 * kSilence);
        Touch(a);
        stopped_.insert(a);
        end_ = std::max(end_, until);
        Tell(absl::StrCat(at, ": ", a, " is stopped until ", until));
        network_.At(at, [=, this] { network_.Stop(a, until); });
        return;
      }
      case 7: {
        const int64_t until = at + network_.Between(kMillisecond, 4 * kSilence);
        if (a != b) {
          troubled_.insert(std::minmax(a, b));
          end_ = std::max(end_, until);
          Tell(absl::StrCat(at, ": ", a, " to ", b, " is slow until ", until));
          network_.At(at, [=, this] { network_.Stall(a, b, until); });
        }
        return;
      }
      default:
        Touch(a);
        Tell(absl::StrCat(at, ": ", a, " leaves"));
        network_.On(a, at, [=, this] {
          if (!rank(a).left()) {
            ranks_[static_cast<size_t>(a)]->Leave();
          }
        });
    }
  }
  void CutPair(int a, int b, int64_t at, bool notice) {
    troubled_.insert(std::minmax(a, b));
    const bool both = network_.Chance(0.8);
    Tell(absl::StrCat(at, ": ", a, " and ", b, " are cut, both ways: ", both, ", told: ", notice));
    network_.At(at + network_.Between(0, kMillisecond), [=, this] { network_.Cut(a, b, notice); });
    if (both) {
      network_.At(at + network_.Between(0, kMillisecond),
                  [=, this] { network_.Cut(b, a, notice); });
    }
  }

  // Flag and contexts are those of the members.
  void CheckContent(int a, uint32_t number, const Decision& decision, std::string* wrong) const {
    uint32_t flag = ~0u;
    std::vector<uint16_t> contexts;
    for (const int r : decision.members.ranks()) {
      flag &= ~(1u << r);
      contexts.push_back(static_cast<uint16_t>(100 * number + static_cast<uint32_t>(r)));
    }
    if (decision.flag != flag || decision.contexts != contexts ||
        decision.error != Survivors::Error::kNone) {
      absl::StrAppend(wrong, "rank ", a, " has decided other contents: ", Text(decision), "\n");
    }
  }
  bool SomeRankHasNotCalled() const {
    for (int r = 0; r < size_; ++r) {
      // This may be a rank that has made fewer calls than the others: it may have been stopped
      // between two calls.
      if (network_.alive(r) && !rank(r).left() && !rank(r).called() &&
          rank(r).machine().end() == End::kNone) {
        return true;
      }
    }
    return false;
  }
  // The rank lives and calls, and its paths to the members had no faults. (A rank that found too
  // few others has given up, even if some of these have died later.)
  bool Reaches(int r, const RankSet& members) const {
    const std::vector<int> ranks = members.ranks();
    return !touched_[static_cast<size_t>(r)] && r != excluded_ &&
           rank(r).machine().end() != End::kMinority &&
           std::none_of(ranks.begin(), ranks.end(), [&](int other) {
             return stopped_.count(other) > 0 || troubled_.count(std::minmax(r, other)) > 0;
           });
  }

  static std::string Text(const Decision& decision) {
    return absl::StrCat("{", absl::StrJoin(decision.members.ranks(), ","), "} contexts ",
                        absl::StrJoin(decision.contexts, ","), " flag ", decision.flag, " error ",
                        static_cast<int>(decision.error));
  }
  std::string Describe() const {
    std::string text = absl::StrCat(size_, " ranks, any: ", any_, ", excluded: ", excluded_, "\n  ",
                                    absl::StrJoin(story_, "\n  "), "\n");
    for (int r = 0; r < size_; ++r) {
      const Survivors& machine = rank(r).machine();
      absl::StrAppend(&text, "  rank ", r, network_.alive(r) ? "" : " dead",
                      rank(r).left() ? " left" : "", rank(r).called() ? "" : " never called",
                      ", number ", machine.number(), ", end ", static_cast<int>(machine.end()),
                      ", cut {", absl::StrJoin(machine.knowledge().cut().ranks(), ","), "} gone {",
                      absl::StrJoin(machine.knowledge().gone().ranks(), ","), "}\n");
    }
    return text;
  }

  VirtualNetwork network_;
  const int size_;
  const bool any_;
  int excluded_ = -1;
  std::vector<bool> touched_;  // crashes, is stopped, leaves, or never calls
  std::set<int> stopped_;
  std::set<std::pair<int, int>>
      troubled_;  // the path between the two is cut or slow, at least one way
  std::set<int> crashed_;
  std::vector<std::string> story_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  int64_t end_ = 0;
};

TEST(SurvivorsSimulation, RanksThatGoOnAgree) {
  const auto [first, seeds] = Seeds(6000);
  Reached reached;
  int failed = 0;
  for (uint64_t seed = first; seed < first + seeds && failed < 5; ++seed) {
    const World world(seed);
    world.Count(&reached);
    if (const std::string wrong = world.Check(); !wrong.empty()) {
      ++failed;
      ADD_FAILURE() << "seed " << seed << ": " << wrong;
    }
  }
  const std::string counts = absl::StrCat(
      seeds, " seeds: decisions ", reached.decisions, ", of fewer ranks ", reached.smaller,
      ", taken over from a dead leader ", reached.recovered, "; ranks left out ", reached.left_out,
      ", in a minority ", reached.minority, ", excluded ", reached.excluded,
      ", waiting for a caller ", reached.waiting, "; runs without a decision ", reached.none);
  RecordProperty("reached", counts);
  printf("%s\n", counts.c_str());
  if (seeds >= 1000) {
    // Every branch is exercised.
    for (const uint64_t count : {reached.smaller, reached.recovered, reached.left_out,
                                 reached.minority, reached.excluded, reached.waiting}) {
      EXPECT_GT(count, seeds / 1000) << counts;
    }
    EXPECT_LT(reached.none, seeds / 4) << counts;
  }
}

}  // namespace
}  // namespace entrain
