// The flags of plans, for every algorithm. Each flag permits an executor to leave the order or the
// places of the schedule. A symbolic machine runs each lane with and without that permission and
// compares what it sends and what it leaves in the output.

#include "lib/engine/plan.h"

#include <algorithm>
#include <compare>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "collectives/catalog.h"

namespace entrain {
namespace {

using Value = uint64_t;

Value Mix(Value a, Value b) {
  Value x = (a ^ 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u + b;
  x = (x ^ (x >> 31)) * 0x94d049bb133111ebu;
  return x ^ (x >> 29);
}

struct Cell {
  Slot slot;
  int32_t block;
  friend auto operator<=>(const Cell&, const Cell&) = default;
};

// What a run of a lane does differently from the schedule.
struct Variation {
  enum class Order { kOfSchedule, kOpsBeforeSends };
  bool in_place = false;
  // The order of one round.
  uint32_t round = 0;
  Order order = Order::kOfSchedule;
  // This receive leaves its message in the sender's memory until the end of the round. -1: none.
  int64_t lent = -1;
  // This receive, and the operand, use the memory of the operation's result. -1: none.
  int64_t moved = -1, operand = -1, op = -1;
};

// Executes one lane on blocks with symbolic values.
class Machine {
 public:
  // The visible results of a run: sent messages by transfer, and the output.
  struct Seen {
    std::map<uint32_t, std::vector<Value>> sent;
    std::map<Cell, Value> out;
    friend bool operator==(const Seen&, const Seen&) = default;
  };

  static Seen Run(const Schedule& schedule, const Lane& lane, const Variation& variation) {
    Machine machine(schedule, variation);
    for (uint32_t r = lane.first_round; r < lane.first_round + lane.rounds; ++r) {
      machine.RunRound(r);
    }
    std::erase_if(machine.memory_, [](const auto& cell) { return cell.first.slot != Slot::kOut; });
    return {std::move(machine.sent_), std::move(machine.memory_)};
  }

 private:
  Machine(const Schedule& schedule, const Variation& variation)
      : schedule_(schedule), variation_(variation) {}

  Cell CellOf(const Region& region, int32_t i) const {
    const bool one = variation_.in_place && region.slot == Slot::kIn;
    return {one ? Slot::kOut : region.slot, region.first + i};
  }
  std::vector<Value> Read(const Region& region) const {
    std::vector<Value> values;
    for (int32_t i = 0; i < region.blocks; ++i) {
      const Cell cell = CellOf(region, i);
      const auto found = memory_.find(cell);
      // Memory that was never written has values of its own.
      values.push_back(found != memory_.end() ? found->second
                                              : Mix(Mix(1, static_cast<Value>(cell.slot)),
                                                    static_cast<Value>(cell.block)));
    }
    return values;
  }
  void Write(const Region& region, const std::vector<Value>& values) {
    for (int32_t i = 0; i < region.blocks; ++i) {
      memory_[CellOf(region, i)] = values[static_cast<size_t>(i)];
    }
  }
  std::vector<Value> Message(uint32_t transfer, int32_t blocks, Value kind) const {
    std::vector<Value> values;
    for (int32_t i = 0; i < blocks; ++i) {
      values.push_back(Mix(Mix(kind, transfer), static_cast<Value>(i)));
    }
    return values;
  }

  void Send(const Round& round) {
    for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
      if (schedule_.transfers[t].direction == Direction::kSend) {
        sent_[t] = Read(schedule_.transfers[t].region);
      }
    }
  }
  void Receive(const Round& round) {
    for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
      const Transfer& transfer = schedule_.transfers[t];
      if (transfer.direction == Direction::kRecv) {
        const Region& to = variation_.moved == t
                               ? schedule_.ops[static_cast<size_t>(variation_.op)].dst
                               : transfer.region;
        Write(to, Message(t, to.blocks, variation_.lent == t ? 3 : 2));
      }
    }
  }
  std::vector<Value> Operand(const Round& round, uint32_t index) const {
    if (variation_.operand == index) {
      return Read(schedule_.ops[static_cast<size_t>(variation_.op)].dst);
    }
    const Region& region = schedule_.operands[index];
    const auto lent = static_cast<uint32_t>(variation_.lent);
    if (variation_.lent >= round.first_transfer &&
        variation_.lent < round.first_transfer + round.transfers) {
      const Region& at = schedule_.transfers[lent].region;
      // Binding looks only where an operand begins.
      if (region.slot == at.slot && region.first >= at.first &&
          region.first < at.first + at.blocks) {
        std::vector<Value> values = Message(lent, at.blocks, 2);
        values.erase(values.begin(), values.begin() + (region.first - at.first));
        values.resize(static_cast<size_t>(region.blocks));
        return values;
      }
    }
    return Read(region);
  }
  void Operate(const Round& round) {
    for (uint32_t o = round.first_op; o < round.first_op + round.ops; ++o) {
      const LocalOp& op = schedule_.ops[o];
      std::vector<Value> result = Operand(round, op.first_operand);
      for (uint32_t i = op.first_operand + 1; i < op.first_operand + op.operands; ++i) {
        const std::vector<Value> more = Operand(round, i);
        for (size_t b = 0; b < result.size(); ++b) {
          result[b] = Mix(result[b], more[b]);
        }
      }
      Write(op.dst, result);
    }
  }
  void RunRound(uint32_t index) {
    const Round& round = schedule_.rounds[index];
    switch (index == variation_.round ? variation_.order : Variation::Order::kOfSchedule) {
      case Variation::Order::kOfSchedule:
        Send(round);
        Receive(round);
        Operate(round);
        break;
      case Variation::Order::kOpsBeforeSends:
        Receive(round);
        Operate(round);
        Send(round);
        break;
    }
  }

  const Schedule& schedule_;
  const Variation& variation_;
  std::map<Cell, Value> memory_;
  std::map<uint32_t, std::vector<Value>> sent_;
};

// Returns the cells of a region in a call in place.
std::set<Cell> CellsInPlace(const Region& region) {
  std::set<Cell> cells;
  for (int32_t i = 0; i < region.blocks; ++i) {
    cells.insert({region.slot == Slot::kIn ? Slot::kOut : region.slot, region.first + i});
  }
  return cells;
}

bool OpsWrite(const Schedule& schedule, const Round& round, const std::set<Cell>& cells) {
  for (uint32_t o = round.first_op; o < round.first_op + round.ops; ++o) {
    for (const Cell& cell : CellsInPlace(schedule.ops[o].dst)) {
      if (cells.count(cell) > 0) {
        return true;
      }
    }
  }
  return false;
}

struct Trial {
  const Algorithm* algorithm = nullptr;
  Plan plan;
  std::string name;
};

// Rounds that no algorithm has. Each is a case that a flag must exclude. A further round sends the
// results.
Schedule Contrived(const Spec& spec, absl::Span<const int>) {
  ScheduleBuilder builder(spec);
  const int next = (spec.rank + 1) % spec.size;
  const auto in = [](int first, int blocks = 1) { return Region{Slot::kIn, first, blocks}; };
  const auto out = [](int first, int blocks = 1) { return Region{Slot::kOut, first, blocks}; };
  const auto scratch = [](int first, int blocks = 1) {
    return Region{Slot::kScratch, first, blocks};
  };
  const auto end_round = [&] {
    builder.BeginRound();
    builder.Send(next, out(0, 3));
    builder.BeginRound();
  };
  builder.BeginLane();
  builder.AddScratch(0);
  builder.AddScratch(1);
  builder.BeginRound();
  // Reads a message twice.
  builder.Recv(next, scratch(0));
  builder.Combine(out(0), {scratch(0), scratch(0)}, false);
  end_round();
  // Writes to the memory of a message.
  builder.Recv(next, scratch(0));
  builder.Combine(scratch(0), {scratch(0), in(0)}, false);
  builder.Copy(out(0), scratch(0));
  end_round();
  // Reads two messages in one operand.
  builder.Recv(next, scratch(0));
  builder.Recv(next, scratch(1));
  builder.Combine(out(0, 2), {in(0, 2), scratch(0, 2)}, false);
  end_round();
  // Reads the old value of a result.
  builder.Recv(next, scratch(0));
  builder.Combine(out(0), {out(0), scratch(0)}, false);
  end_round();
  // Another operation reads the old value of a result.
  builder.Recv(next, scratch(0));
  builder.Copy(out(2), out(0));
  builder.Combine(out(0), {in(1), scratch(0)}, false);
  end_round();
  // Reads a part of a message.
  builder.Recv(next, scratch(0, 2));
  builder.Combine(out(0), {in(0), scratch(0)}, false);
  end_round();
  // A later round overwrites a part of the message, and reads the rest.
  builder.Recv(next, scratch(0, 2));
  builder.Combine(out(0, 2), {in(0, 2), scratch(0, 2)}, false);
  end_round();
  builder.Recv(next, scratch(0));
  builder.Combine(out(0), {scratch(0), scratch(1)}, true);
  return builder.Finish();
}

std::vector<Algorithm> AlgorithmsAndContrived() {
  std::vector<Algorithm> algorithms(Catalog().begin(), Catalog().end());
  algorithms.push_back(
      {"contrived", CallKind::kAllReduce, Order::kAny, Message::kPart, Partners::kFew,
       [](const Spec& spec, absl::Span<const int>) { return spec.size >= 3; }, Contrived});
  return algorithms;
}

constexpr int64_t kElementBytes = 8;
constexpr int64_t kPart = 128;  // elements

// Returns plans of the algorithm: 2 to 5 ranks, hosts, ranks, roots, lanes, in place and not, even
// and uneven.
std::vector<Trial> PlansOf(const Algorithm& algorithm, int64_t part) {
  std::vector<Trial> trials;
  for (int n = 2; n <= 5; ++n) {
    std::vector<std::vector<int>> maps(3);
    for (int r = 0; r < n; ++r) {
      maps[0].push_back(0);
      maps[1].push_back(r < (n + 1) / 2 ? 0 : 1);
      maps[2].push_back(r % 2);
    }
    for (int number = 0; number < 2 * 2 * 3 * n * n; ++number) {
      Spec spec{algorithm.kind, number % n, n, number / n % n, 1 + number / n / n % 3};
      spec.uneven = number / n / n / 3 % 2 != 0;
      spec.in_place = number / n / n / 6 != 0;
      for (const std::vector<int>& hosts : maps) {
        if ((spec.root > 0 && !HasRoot(spec.kind)) ||
            (spec.in_place && spec.kind != CallKind::kAllToAll) ||
            (spec.uneven && !HasParts(spec.kind)) || (&hosts != &maps[0] && !algorithm.by_hosts) ||
            !algorithm.fits(spec, hosts)) {
          continue;
        }
        std::vector<int64_t> counts;
        for (int r = 0; r < n; ++r) {
          counts.push_back(r * part);
        }
        const Layout layout =
            spec.uneven ? UnevenLayout(spec, counts)
                        : UniformLayout(spec, part * spec.lanes * (HasParts(spec.kind) ? 1 : n));
        trials.push_back(
            {&algorithm,
             Plan::Make(std::make_shared<const Schedule>(algorithm.build(spec, hosts)),
                        algorithm.name, layout, layout, kElementBytes, 2),
             absl::StrCat(NameOf(spec.kind), ":", algorithm.name, ", rank ", spec.rank, " of ", n,
                          ", root ", spec.root, ", ", spec.lanes, " lanes, ",
                          hosts[1] + hosts.back(), " hosts more", spec.uneven ? ", uneven" : "",
                          spec.in_place ? ", in place" : "")});
      }
    }
  }
  return trials;
}

class PlanTest : public testing::TestWithParam<Algorithm> {
 protected:
  // Calls `body` with each plan, each of its lanes, and the index of each round of the lane.
  template <typename Body>
  void ForEachRound(const Body& body) {
    for (const Trial& trial : PlansOf(GetParam(), kPart)) {
      SCOPED_TRACE(trial.name);
      for (const Lane& lane : trial.plan.schedule->lanes) {
        for (uint32_t r = lane.first_round; r < lane.first_round + lane.rounds; ++r) {
          body(trial.plan, lane, r);
          if (HasFailure()) {
            return;
          }
        }
      }
    }
  }
  // Returns true if the variation of the lane's run has the same visible results, in place and not.
  // A schedule of an all_to_all is either for in place or not, and is run only in this form.
  static bool Same(const Plan& plan, const Lane& lane, Variation variation) {
    const Spec& spec = plan.schedule->spec;
    for (const bool in_place : {false, true}) {
      if ((spec.kind == CallKind::kAllToAll && in_place != spec.in_place) ||
          (in_place && variation.moved >= 0)) {
        continue;
      }
      variation.in_place = in_place;
      if (Machine::Run(*plan.schedule, lane, variation) !=
          Machine::Run(*plan.schedule, lane, {.in_place = in_place})) {
        return false;
      }
    }
    return true;
  }
};

INSTANTIATE_TEST_SUITE_P(, PlanTest, testing::ValuesIn(AlgorithmsAndContrived()),
                         [](const auto& one) {
                           return absl::StrCat(NameOf(one.param.kind), "_", one.param.name);
                         });

// A copy of memory to itself, as in place, counts as a write.
TEST_P(PlanTest, OperationsComeBeforeSendsIfTheyWriteNothingThatIsSent) {
  ForEachRound([](const Plan& plan, const Lane& lane, uint32_t r) {
    const Schedule& schedule = *plan.schedule;
    const Round& round = schedule.rounds[r];
    std::set<Cell> sent;
    for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
      if (schedule.transfers[t].direction == Direction::kSend) {
        sent.merge(CellsInPlace(schedule.transfers[t].region));
      }
    }
    EXPECT_EQ(plan.ops_before_sends[r], !OpsWrite(schedule, round, sent)) << "round " << r;
    const Variation late{.round = r, .order = Variation::Order::kOpsBeforeSends};
    EXPECT_TRUE(!plan.ops_before_sends[r] || Same(plan, lane, late)) << "round " << r;
  });
}

// Only messages to scratch stay with the sender, and only if no operation of the round writes to
// their memory.
TEST_P(PlanTest, MessagesStayWithTheSenderWhereNobodySeesIt) {
  ForEachRound([](const Plan& plan, const Lane& lane, uint32_t r) {
    const Schedule& schedule = *plan.schedule;
    const Round& round = schedule.rounds[r];
    for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
      const Transfer& transfer = schedule.transfers[t];
      const bool expected = transfer.direction == Direction::kRecv &&
                            transfer.region.slot == Slot::kScratch &&
                            !OpsWrite(schedule, round, CellsInPlace(transfer.region)) &&
                            Same(plan, lane, {.lent = t});
      EXPECT_EQ(plan.read_once[t], expected) << "round " << r << ", transfer " << t;
      EXPECT_EQ(plan.may_be_lent[t], expected && plan.ops_before_sends[r])
          << "round " << r << ", transfer " << t;
    }
  });
}

// Of the messages of a combination, the first that may is received into the result.
TEST_P(PlanTest, OneMessageIsReceivedIntoEachResultWhereNobodySeesIt) {
  for (const Trial& trial : PlansOf(GetParam(), kPart)) {
    SCOPED_TRACE(trial.name);
    const Plan& plan = trial.plan;
    const Schedule& schedule = *plan.schedule;
    Plan::Places expected = plan.places;
    bool any = false;
    for (const Lane& lane : schedule.lanes) {
      for (uint32_t r = lane.first_round; r < lane.first_round + lane.rounds; ++r) {
        const Round& round = schedule.rounds[r];
        for (uint32_t o = round.first_op; o < round.first_op + round.ops; ++o) {
          const LocalOp& op = schedule.ops[o];
          bool taken = op.kind != LocalKind::kCombine || op.dst.slot != Slot::kOut;
          for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
            for (uint32_t i = op.first_operand; i < op.first_operand + op.operands; ++i) {
              if (!taken && schedule.transfers[t].direction == Direction::kRecv &&
                  schedule.transfers[t].region.slot == Slot::kScratch &&
                  schedule.transfers[t].region == schedule.operands[i] &&
                  Same(plan, lane, {.moved = t, .operand = i, .op = o})) {
                taken = any = true;
                expected.transfers[t] = expected.operands[i] = plan.ops[o];
              }
            }
          }
        }
      }
    }
    const auto same = [](const std::vector<Place>& a, const std::vector<Place>& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Place& x, const Place& y) {
        return x.slot == y.slot && x.offset == y.offset && x.bytes == y.bytes;
      });
    };
    EXPECT_TRUE(same(plan.apart.transfers, any ? expected.transfers : std::vector<Place>()));
    EXPECT_TRUE(same(plan.apart.operands, any ? expected.operands : std::vector<Place>()));
  }
}

TEST_P(PlanTest, OneLaneOfShortMessagesFitsInline) {
  constexpr int64_t kMiB = 1 << 20;
  for (const int64_t bytes : {kMiB / 4, kMiB - kElementBytes, kMiB, 2 * kMiB, 4 * kMiB}) {
    for (const Trial& trial : PlansOf(GetParam(), bytes / kElementBytes)) {
      SCOPED_TRACE(absl::StrCat(trial.name, ", parts of ", bytes, " bytes"));
      const Plan& plan = trial.plan;
      bool expected = plan.schedule->lanes.size() == 1;
      for (const Round& round : plan.schedule->rounds) {
        std::map<int, int> from;
        int64_t longest_received = 0;
        for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
          const int64_t length = plan.places.transfers[t].bytes;
          expected = expected && length <= 2 * kMiB;
          if (plan.schedule->transfers[t].direction == Direction::kRecv) {
            expected = expected && ++from[plan.schedule->transfers[t].peer] == 1;
            longest_received = std::max(longest_received, length);
          }
        }
        expected = expected && (from.size() < 2 || longest_received < kMiB);
      }
      EXPECT_EQ(plan.fits_inline, expected);
    }
  }
}

// Returns rank 1's plan of a collective on `size` ranks of one host, in one lane.
Plan PlanOf(CallKind kind, const char* algorithm, int size, int64_t count) {
  const std::vector<int> hosts(static_cast<size_t>(size), 0);
  const Spec spec{kind, 1, size, HasRoot(kind) ? 1 : 0, 1};
  const Layout layout = UniformLayout(spec, count);
  return Plan::Make(
      std::make_shared<const Schedule>(FindAlgorithm(kind, algorithm).value()->build(spec, hosts)),
      algorithm, layout, layout, kElementBytes, 1);
}

// Returns 'o' for each receive, in the order of the schedule, that goes to the result into which it
// is combined, and '-' for each other receive.
std::string ApartOf(CallKind kind, const char* algorithm, int size) {
  const Plan plan = PlanOf(kind, algorithm, size, 64);
  std::string apart;
  for (size_t t = 0; t < plan.schedule->transfers.size(); ++t) {
    if (plan.schedule->transfers[t].direction == Direction::kRecv) {
      const bool moves = !plan.apart.transfers.empty() &&
                         plan.apart.transfers[t].slot != plan.places.transfers[t].slot;
      EXPECT_TRUE(!moves || plan.apart.transfers[t].slot == Slot::kOut);
      apart += moves ? 'o' : '-';
    }
  }
  return apart;
}

TEST(Plan, OneMessageIsReceivedIntoEachResult) {
  EXPECT_EQ(ApartOf(CallKind::kReduce, "direct", 4), "o--");
  EXPECT_EQ(ApartOf(CallKind::kReduceScatter, "direct", 3), "o-");
  EXPECT_EQ(ApartOf(CallKind::kAllReduce, "direct", 2), "o");
  EXPECT_EQ(ApartOf(CallKind::kAllReduce, "two_step", 3), "o---") << "the others' sums come last";
  EXPECT_EQ(ApartOf(CallKind::kAllGather, "ring", 3), "--") << "nothing is combined";
}

}  // namespace
}  // namespace entrain
