#include "lib/comm/plan/tuning.h"

#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/comm/plan/planner.h"

namespace entrain {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr char kFirst[] = "entrain-tuning 2\n";
constexpr char kShm[] =
    "link shm ranks 2 free call_us 1 latency_us 2 message_us 3 switch_us 0 gbs 6.5 host_gbs inf "
    "reduce_gbs 8\n";

absl::StatusOr<Tuning> Parse(const std::string& text) {
  return ParseTuning(text, "some.tuning");
}

TEST(Tuning, IsReadAndWrittenAlike) {
  const auto tuning = Parse(absl::StrCat(
      "# found in the street\n\n", kFirst, "  ", kShm, "\t# and\n",
      "choose shm ranks 3 crowded all_reduce:ring@128K-1M,broadcast:tree@8-inf # two\r\n"));
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  EXPECT_EQ(tuning->links[0].latency_us, 2);
  EXPECT_EQ(tuning->links[0].host_gbs, std::numeric_limits<double>::infinity());
  EXPECT_EQ(tuning->links[0].reduce_gbs, 8);
  EXPECT_EQ(tuning->choices[1].where, (TunedFor{Link::kShm, 3, true}));
  EXPECT_EQ(tuning->choices[1].choice.low, 8);
  EXPECT_EQ(tuning->choices[0].choice.high, 1 << 20);
  const std::string text = tuning->ToText();
  EXPECT_THAT(
      text, HasSubstr("choose shm ranks 3 crowded all_reduce:ring@128K-1M,broadcast:tree@8-inf\n"));
  const auto again = ParseTuning(text, "again");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->ToText(), text);
  EXPECT_EQ(again->Fingerprint(), tuning->Fingerprint());
}

TEST(Tuning, OwnValuesServeMemoryAndTcp) {
  for (const Link link : {Link::kInproc, Link::kShm, Link::kTcpInside, Link::kTcpAcross}) {
    for (const int ranks : {1, 2, 5, 64}) {
      for (const bool crowded : {false, true}) {
        const LinkFigures figures = BuiltinTuning()->FiguresFor({link, ranks, crowded});
        EXPECT_EQ(figures.where.link, link);
        EXPECT_FALSE(figures.from_traits);
        EXPECT_GT(figures.gbs, 0);
      }
    }
  }
  // ParseTuning reads what ToText has written.
  EXPECT_EQ(ParseTuning(BuiltinTuning()->ToText(), "own")->ToText(), BuiltinTuning()->ToText());
}

TEST(Tuning, ALinkWithoutALineIsEstimatedByItsSpeed) {
  const TunedFor where{Link::kFabricAcross, 4, false};
  const LinkFigures figures = BuiltinTuning()->FiguresFor(where, {2, 8, 12});
  EXPECT_TRUE(figures.from_traits);
  EXPECT_EQ(figures.where, where);
  EXPECT_EQ(figures.latency_us + 2 * figures.message_us, 2);  // latency of a small message
  EXPECT_EQ(figures.gbs, 8);
  EXPECT_EQ(figures.host_gbs, 12);
  EXPECT_FALSE(BuiltinTuning()->FiguresFor({Link::kTcpAcross, 4, false}, {2, 8, 12}).from_traits);
  std::string line = kShm;
  line.replace(line.find("shm"), 3, "fabric_across");
  EXPECT_FALSE(Parse(absl::StrCat(kFirst, line))->FiguresFor(where, {2, 8, 12}).from_traits);
}

TEST(Tuning, TheWorstOfTwoSpeedsIsTheWorseOfEachFigure) {
  LinkSpeed speed{2, 8, 12};
  speed.Worsen({1, 3, 20});
  EXPECT_EQ(speed.latency_us, 2);
  EXPECT_EQ(speed.gbs, 3);
  EXPECT_EQ(speed.host_gbs, 12);
}

TEST(Tuning, FileTakesThePlaceOfTheLinksItNames) {
  const auto tuning = Parse(absl::StrCat(kFirst, kShm));
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  EXPECT_EQ(tuning->FiguresFor({Link::kShm, 4, true}).latency_us, 2);
  const TunedFor across{Link::kTcpAcross, 1, false};
  EXPECT_EQ(ToText(tuning->FiguresFor(across)), ToText(BuiltinTuning()->FiguresFor(across)));
  for (const MeasuredChoice& one : tuning->choices) {
    EXPECT_NE(one.where.link, Link::kShm);
  }
  EXPECT_NE(tuning->Fingerprint(), BuiltinTuning()->Fingerprint());
}

TEST(Tuning, FiguresAreThoseOfTheNearestCrowd) {
  std::string text = kFirst;
  for (const char* where : {"2 free", "4 free", "8 crowded"}) {
    absl::StrAppend(&text, "link shm ranks ", where, std::string(kShm).substr(21));
  }
  const auto tuning = Parse(text);
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  const auto ranks = [&](int n, bool crowded) {
    return tuning->FiguresFor({Link::kShm, n, crowded}).where.ranks;
  };
  EXPECT_EQ(ranks(1, false), 2);
  EXPECT_EQ(ranks(3, false), 2);
  EXPECT_EQ(ranks(9, false), 4);
  EXPECT_EQ(ranks(3, true), 8);
  EXPECT_EQ(ranks(64, true), 8);
}

struct BadText {
  std::string text;
  const char *where, *says;
};
class BadTuning : public testing::TestWithParam<BadText> {};

TEST_P(BadTuning, IsRefusedByLineAndValue) {
  const auto tuning = Parse(GetParam().text);
  ASSERT_FALSE(tuning.ok());
  EXPECT_EQ(tuning.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(tuning.status().message()),
              StartsWith(absl::StrCat("tuning: some.tuning", GetParam().where)));
  EXPECT_THAT(std::string(tuning.status().message()), HasSubstr(GetParam().says));
}

std::string Changed(const std::string& from, const std::string& to) {
  std::string text = absl::StrCat(kFirst, kShm);
  text.replace(text.find(from), from.size(), to);
  return text;
}

INSTANTIATE_TEST_SUITE_P(
    All, BadTuning,
    testing::Values(
        BadText{"", " does not begin", "entrain-tuning 2"},
        BadText{"entrain-tuning 1\n", ":1: ", "\"entrain-tuning 1\""},
        BadText{Changed("link", "knot"), ":2: ", "\"knot\" is not link or choose"},
        BadText{Changed("shm", "wire"), ":2: ", "\"wire\" is not a kind of link"},
        BadText{Changed("ranks 2", "ranks 0"), ":2: ", "\"0\" is not a number of ranks"},
        BadText{Changed("free", "alone"), ":2: ", "\"alone\" is not free or crowded"},
        BadText{Changed("latency_us 2", "latency_us -2"), ":2: ", "\"-2\" is not latency_us"},
        BadText{Changed("latency_us 2", "latency_us nan"), ":2: ", "\"nan\" is not latency_us"},
        BadText{Changed(" gbs 6.5", " gbs fast"), ":2: ", "\"fast\""},
        BadText{Changed(" gbs 6.5", " gbs 0"), ":2: ", "\"0\" is not gbs"},
        BadText{Changed("latency_us 2 ", ""), ":2: ", "\"message_us\" is not latency_us"},
        BadText{Changed("reduce_gbs 8", "reduce_gbs"), ":2: ", "reduce_gbs"},
        BadText{Changed("reduce_gbs 8", "reduce_gbs 8 more"), ":2: ", "\"more\""},
        BadText{absl::StrCat(kFirst, kShm, "choose shm ranks 2 free all_reduce:magic"),
                ":3: ", "magic"},
        BadText{absl::StrCat(kFirst, kShm, "choose shm ranks 2 free all_reduce:ring@1Q-inf"),
                ":3: ", "1Q"},
        BadText{absl::StrCat(kFirst, kShm, "choose shm ranks 2 free"), ":3: ", "is not choose"}));

TEST(Tuning, FileThatIsNotThereIsNamed) {
  const auto tuning = LoadTuning("/no/such/tuning");
  ASSERT_FALSE(tuning.ok());
  EXPECT_THAT(std::string(tuning.status().message()), HasSubstr("/no/such/tuning"));
  EXPECT_FALSE(LoadTuning("/").ok());
}

// ---- The planner's use of a tuning

std::shared_ptr<const Tuning> With(const std::string& lines) {
  return std::make_shared<const Tuning>(*Parse(absl::StrCat(kFirst, kShm, lines)));
}

Call AllReduce(int64_t bytes) {
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = DType::kU8;
  call.count = bytes;
  return call;
}

std::string Chosen(Planner& planner, const Call& call) {
  const auto plan = planner.PlanFor(call);
  return plan.ok() ? (*plan)->algorithm : plan.status().ToString();
}

TEST(PlannerByTuning, MeasuredChoicesCountWhereTheyWereMeasured) {
  const auto tuning = With(
      "choose shm ranks 3 free all_reduce:ring@0-99\n"
      "choose shm ranks 3 crowded all_reduce:ring@100-199\n"
      "choose shm ranks 4 free all_reduce:ring@200-299\n"
      "choose tcp_inside ranks 3 free all_reduce:ring@300-399\n" +
      std::string("link tcp_inside") + std::string(kShm).substr(8));
  const Topology topology = Topology::FromHostIds({"a", "a", "a"});
  Planner planner(0, topology, {}, tuning, {Link::kShm, 3});
  EXPECT_EQ(Chosen(planner, AllReduce(50)), "ring");
  EXPECT_NE(Chosen(planner, AllReduce(150)), "ring");
  EXPECT_NE(Chosen(planner, AllReduce(250)), "ring");
  EXPECT_NE(Chosen(planner, AllReduce(350)), "ring");
  planner.SetPaths({Link::kShm, 2});
  EXPECT_NE(Chosen(planner, AllReduce(50)), "ring");
  EXPECT_EQ(Chosen(planner, AllReduce(150)), "ring");
  planner.SetPaths({Link::kTcpInside, 3});
  EXPECT_EQ(Chosen(planner, AllReduce(350)), "ring");
}

TEST(PlannerByTuning, OverridesCountBeforeAndTheSecondHasItsTurnWhereTheFirstCannotServe) {
  const auto tuning = With("choose shm ranks 3 free all_reduce:recursive_doubling\n");
  const Topology topology = Topology::FromHostIds({"a", "a", "a"});
  const auto overrides = ParseOverrides("all_reduce:composed,all_reduce:halving_doubling@64-inf");
  Planner planner(0, topology, *overrides, tuning, {Link::kShm, 3});
  EXPECT_EQ(Chosen(planner, AllReduce(8)), "recursive_doubling");
  EXPECT_EQ(Chosen(planner, AllReduce(64)), "halving_doubling");
  // Neither ring nor halving_doubling can combine in rank order.
  Call ordered = AllReduce(64);
  ordered.reduction.op = ReduceOp::kCustom;
  ordered.reduction.commutative = false;
  EXPECT_EQ(Chosen(planner, ordered), "recursive_doubling");
}

TEST(PlannerByTuning, FiguresDecideTheRest) {
  const auto with = [](const char* latency, const char* rate) {
    std::string line = kShm;
    line.replace(line.find("latency_us 2"), 12, absl::StrCat("latency_us ", latency));
    line.replace(line.find(" gbs 6.5"), 8, absl::StrCat(" gbs ", rate));
    return std::make_shared<const Tuning>(*Parse(absl::StrCat(kFirst, line)));
  };
  const Topology topology = Topology::FromHostIds(std::vector<std::string>(8, "a"));
  Planner far(0, topology, {}, with("10000", "6.5"), {Link::kShm, 8});
  Planner slow(0, topology, {}, with("0.01", "0.01"), {Link::kShm, 8});
  EXPECT_EQ(Chosen(far, AllReduce(100000)), "direct");  // one hop
  EXPECT_THAT(Chosen(slow, AllReduce(100000)),
              testing::AnyOf("ring", "halving_doubling", "two_step"));  // the fewest bytes
}

// The library has no lines for a fabric. The figures of its transport count, not those of slow TCP.
TEST(PlannerByTuning, AFabricIsPlannedByItsTraits) {
  const Topology hosts = Topology::FromHostIds({"a", "b", "c", "d", "e", "f", "g", "h"});
  Paths paths{Link::kInproc, 8, Link::kFabricAcross};
  paths.across_speed = {2, 8, 8};
  Planner fabric(0, hosts, {}, BuiltinTuning(), paths);
  Planner tcp(0, hosts, {}, BuiltinTuning(), {Link::kInproc, 8});
  const std::string explained = *fabric.Explain(AllReduce(4096));
  EXPECT_THAT(explained, testing::AllOf(HasSubstr("\nfor fabric_across ranks 8 free on 8 cores"),
                                        HasSubstr(" latency_us 1 "),
                                        HasSubstr(" (no line: by the transport's traits)")));
  EXPECT_THAT(*tcp.Explain(AllReduce(4096)), testing::Not(HasSubstr("traits")));
  // On a slow network, rounds cost less in comparison with bytes. There it pays to save bytes by
  // more rounds.
  std::vector<int64_t> differ;
  for (int64_t bytes = 8; bytes <= 1 << 20; bytes *= 2) {
    if (Chosen(fabric, AllReduce(bytes)) != Chosen(tcp, AllReduce(bytes))) {
      differ.push_back(bytes);
    }
  }
  EXPECT_THAT(differ, testing::Not(testing::IsEmpty()));
}

// Times of all_reduce from docs/lab/tuning.md, in us, for each algorithm.
struct MeasuredCell {
  Link link;
  size_t ranks;
  int64_t bytes;
  double direct, two_step, recursive_doubling, halving_doubling, ring;
};

TEST(PlannerByTuning, OwnValuesChooseNearlyTheFastestOfMeasuredCells) {
  constexpr MeasuredCell kCells[] = {
      {Link::kShm, 2, 8, 0.37, 0.48, 0.37, 0.48, 0.48},
      {Link::kShm, 2, 128 << 10, 15.7, 23.1, 15.7, 23.1, 23.4},
      {Link::kShm, 2, 2 << 20, 320, 300, 320, 300, 287},
      {Link::kShm, 4, 8, 4.7, 8.4, 7.8, 7.9, 8.7},
      {Link::kShm, 4, 32 << 10, 19.1, 14.9, 17.5, 13.8, 21.3},
      {Link::kShm, 4, 128 << 10, 99, 35.1, 88, 60, 42.7},
      {Link::kShm, 4, 512 << 10, 376, 198, 269, 199, 214},
      {Link::kShm, 4, 32 << 20, 72000, 25100, 50600, 27800, 26800},
      {Link::kTcpInside, 4, 8, 53.9, 111, 39.7, 72.8, 122},
      {Link::kTcpInside, 4, 512 << 10, 900, 497, 507, 405, 476},
      {Link::kTcpInside, 4, 8 << 20, 29200, 14400, 18700, 11700, 21100},
  };
  for (const MeasuredCell& cell : kCells) {
    const Topology topology = Topology::FromHostIds(std::vector<std::string>(cell.ranks, "a"));
    Planner planner(0, topology, {}, BuiltinTuning(), {cell.link, 2});
    const std::map<std::string, double> us = {{"direct", cell.direct},
                                              {"two_step", cell.two_step},
                                              {"recursive_doubling", cell.recursive_doubling},
                                              {"halving_doubling", cell.halving_doubling},
                                              {"ring", cell.ring}};
    const std::string chosen = Chosen(planner, AllReduce(cell.bytes));
    for (const auto& [name, least] : us) {
      EXPECT_LT(us.at(chosen), 1.15 * least) << NameOf(cell.link) << " " << cell.ranks << ", "
                                             << cell.bytes << ": " << chosen << ", not " << name;
    }
  }
}

TEST(PlannerByTuning, ExplainsItself) {
  const auto tuning = With("choose shm ranks 2 free all_reduce:ring@1K-2K\n");
  const auto overrides = ParseOverrides("all_reduce:direct@4K-8K");
  const Topology topology = Topology::FromHostIds({"a", "a"});
  Planner planner(0, topology, *overrides, tuning, {Link::kShm, 2});
  EXPECT_THAT(
      *planner.Explain(AllReduce(1024)),
      testing::AllOf(StartsWith("ring, as measured: all_reduce:ring@1K-2K; estimates in us: "),
                     HasSubstr(" two_step "), HasSubstr(" direct "),
                     HasSubstr("\nfor shm ranks 2 free on 2 cores, from some.tuning: shm "
                               "ranks 2 free call_us 1 latency_us 2 ")));
  EXPECT_THAT(*planner.Explain(AllReduce(4096)),
              StartsWith("direct, as overridden by all_reduce:direct@4K-8K; "));
  EXPECT_THAT(*planner.Explain(AllReduce(8)), StartsWith("direct, by the model; "));
  planner.SetPaths({Link::kShm, 1});
  EXPECT_THAT(*planner.Explain(AllReduce(8)), HasSubstr("\nfor shm ranks 2 crowded on 1 cores"));
  const Topology hosts = Topology::FromHostIds({"a", "a", "b"});
  Planner mixed(0, hosts, {}, tuning, {Link::kShm, 2});
  EXPECT_THAT(*mixed.Explain(AllReduce(8)),
              testing::AllOf(HasSubstr("\nfor 3 ranks on 2 hosts on 2 cores"),
                             HasSubstr("; tcp_across ranks 1 ")));
}

}  // namespace
}  // namespace entrain
