#include "collectives/catalog.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "collectives/bruck.h"
#include "collectives/composed.h"
#include "collectives/composed_all_to_all.h"
#include "collectives/direct.h"
#include "collectives/draft.h"
#include "collectives/exchange.h"
#include "collectives/halving_doubling.h"
#include "collectives/recursive_doubling.h"
#include "collectives/ring.h"
#include "collectives/scan.h"
#include "collectives/tree.h"

namespace entrain {
namespace {

using Hosts = absl::Span<const int>;
using ReduceScatterFragment = void (*)(Draft*, const Group&, const Pieces&, bool last);
using AllGatherFragment = void (*)(Draft*, const Group&, const Pieces&);
using AllReduceFragment = void (*)(Draft*, const Group&, const Parts&);
using TreeShape = tree::Branch (*)(const Group&, int root);
using BarrierFragment = void (*)(Draft*, const Group&);

bool Always(const Spec&, Hosts) {
  return true;
}
bool KnowsAllParts(const Spec& spec, Hosts) {
  return !spec.uneven;
}
bool FitsComposed(const Spec&, Hosts hosts) {
  return composed::Fits(hosts);
}
bool FitsComposedEven(const Spec& spec, Hosts hosts) {
  return !spec.uneven && composed::Fits(hosts);
}

// Builds the lanes one after the other. `draw` writes each lane.
template <typename Draw>
Schedule BuildLanes(const Spec& spec, const Draw& draw) {
  ScheduleBuilder builder(spec);
  for (int lane = 0; lane < spec.lanes; ++lane) {
    Draft draft(&builder, lane);
    draw(&draft);
  }
  return builder.Finish();
}

template <ReduceScatterFragment reduce_scatter, AllGatherFragment all_gather>
Schedule AllReduceOf(const Spec& spec, Hosts) {
  return BuildLanes(spec, [&](Draft* draft) {
    const Group group = Everyone(spec);
    const Pieces pieces = OwnParts(spec);
    reduce_scatter(draft, group, pieces, /*last=*/true);
    all_gather(draft, group, pieces);
    draft->Settle(AllParts(spec));
  });
}

template <ReduceScatterFragment reduce_scatter>
Schedule ReduceScatterOf(const Spec& spec, Hosts) {
  return BuildLanes(spec, [&](Draft* draft) {
    reduce_scatter(draft, Everyone(spec), OwnParts(spec), /*last=*/true);
    draft->Settle({spec.rank});
  });
}

template <AllGatherFragment all_gather>
Schedule AllGatherOf(const Spec& spec, Hosts) {
  return BuildLanes(spec, [&](Draft* draft) { all_gather(draft, Everyone(spec), OwnParts(spec)); });
}

template <AllReduceFragment all_reduce>
Schedule AllReduceBy(const Spec& spec, Hosts) {
  return BuildLanes(spec, [&](Draft* draft) {
    all_reduce(draft, Everyone(spec), AllParts(spec));
    draft->Settle(AllParts(spec));
  });
}

// Completes a reduce. In a communicator of one rank, the root only copies its input.
void FinishReduce(Draft* draft) {
  if (draft->spec().rank == draft->spec().root) {
    draft->Settle(AllParts(draft->spec()));
  }
}

Schedule DirectReduce(const Spec& spec, Hosts) {
  return BuildLanes(spec, [&](Draft* draft) {
    direct::Reduce(draft, Everyone(spec), spec.root, AllParts(spec));
    FinishReduce(draft);
  });
}

template <ReduceScatterFragment reduce_scatter>
Schedule ReduceOf(const Spec& spec, Hosts) {
  return BuildLanes(spec, [&](Draft* draft) {
    reduce_scatter(draft, Everyone(spec), OwnParts(spec), /*last=*/true);
    direct::Gather(draft, Everyone(spec), spec.root, OwnParts(spec));
    FinishReduce(draft);
  });
}

template <TreeShape shape>
Schedule ReduceOver(const Spec& spec, Hosts) {
  return BuildLanes(spec, [&](Draft* draft) {
    tree::Reduce(draft, shape(Everyone(spec), spec.root));
    FinishReduce(draft);
  });
}

Schedule ComposedReduce(const Spec& spec, Hosts hosts) {
  return BuildLanes(
      spec, [&](Draft* draft) { tree::Reduce(draft, composed::BroadcastTree(spec, hosts)); });
}

Schedule DirectGather(const Spec& spec, Hosts) {
  return BuildLanes(spec, [&](Draft* draft) {
    direct::Gather(draft, Everyone(spec), spec.root, OwnParts(spec));
  });
}

Schedule TreeGather(const Spec& spec, Hosts) {
  return BuildLanes(spec, [&](Draft* draft) { tree::Gather(draft, Everyone(spec), spec.root); });
}

Schedule DirectScatter(const Spec& spec, Hosts) {
  return BuildLanes(spec, [&](Draft* draft) {
    direct::Scatter(draft, Everyone(spec), spec.root, OwnParts(spec));
  });
}

Schedule TreeScatter(const Spec& spec, Hosts) {
  return BuildLanes(spec, [&](Draft* draft) { tree::Scatter(draft, Everyone(spec), spec.root); });
}

template <void (*lane_of)(ScheduleBuilder*, int lane)>
Schedule LanesOf(const Spec& spec, Hosts) {
  ScheduleBuilder builder(spec);
  for (int lane = 0; lane < spec.lanes; ++lane) {
    lane_of(&builder, lane);
  }
  return builder.Finish();
}

template <TreeShape shape>
Schedule BroadcastOver(const Spec& spec, Hosts) {
  return BuildLanes(
      spec, [&](Draft* draft) { tree::Broadcast(draft, shape(Everyone(spec), spec.root)); });
}

Schedule ComposedAllToAll(const Spec& spec, Hosts hosts) {
  ScheduleBuilder builder(spec);
  for (int lane = 0; lane < spec.lanes; ++lane) {
    composed::AllToAll(&builder, lane, hosts);
  }
  return builder.Finish();
}

// Builds a schedule of one lane, because signals have no data to cut into lanes.
template <typename Draw>
Schedule BuildBarrier(const Spec& spec, const Draw& draw) {
  ScheduleBuilder builder(spec);
  Draft draft(&builder, 0);
  draw(&draft);
  return builder.Finish();
}

template <BarrierFragment barrier>
Schedule BarrierOf(const Spec& spec, Hosts) {
  return BuildBarrier(spec, [&](Draft* draft) { barrier(draft, Everyone(spec)); });
}

Schedule ComposedBarrier(const Spec& spec, Hosts hosts) {
  return BuildBarrier(spec, [&](Draft* draft) { composed::Barrier(draft, hosts); });
}

template <void (*fragment)(Draft*, Hosts)>
Schedule Composed(const Spec& spec, Hosts hosts) {
  return BuildLanes(spec, [&](Draft* draft) { fragment(draft, hosts); });
}

Schedule ComposedBroadcast(const Spec& spec, Hosts hosts) {
  return BuildLanes(
      spec, [&](Draft* draft) { tree::Broadcast(draft, composed::BroadcastTree(spec, hosts)); });
}

using enum Message;
using enum Order;
using enum Partners;

constexpr Algorithm kAlgorithms[] = {
    {"direct", CallKind::kBarrier, kAtOnce, kPart, kAll, Always, BarrierOf<direct::Barrier>},
    {"tree", CallKind::kBarrier, kAtOnce, kPart, kFew, Always, BarrierOf<tree::Barrier>},
    {"composed", CallKind::kBarrier, kAtOnce, kPart, kFew, FitsComposed, ComposedBarrier, true},

    {"direct", CallKind::kBroadcast, kAtOnce, kLane, kRoot, Always, BroadcastOver<tree::Star>},
    {"tree", CallKind::kBroadcast, kAtOnce, kLane, kFew, Always, BroadcastOver<tree::Binomial>},
    {"knomial", CallKind::kBroadcast, kAtOnce, kLane, kFew, Always, BroadcastOver<tree::Knomial>},
    {"ring", CallKind::kBroadcast, kAtOnce, kLane, kFew, Always, BroadcastOver<tree::Chain>},
    {"composed", CallKind::kBroadcast, kAtOnce, kLane, kFew, FitsComposed, ComposedBroadcast, true},

    {"direct", CallKind::kReduce, kAtOnce, kLane, kRoot, Always, DirectReduce},
    {"two_step", CallKind::kReduce, kAtOnce, kPart, kAll, Always, ReduceOf<direct::ReduceScatter>},
    {"tree", CallKind::kReduce, kAny, kLane, kFew, Always, ReduceOver<tree::Binomial>},
    {"knomial", CallKind::kReduce, kAny, kLane, kFew, Always, ReduceOver<tree::Knomial>},
    {"halving_doubling", CallKind::kReduce, kAny, kPart, kRoot, Always,
     ReduceOf<halving_doubling::ReduceScatter>},
    {"ring", CallKind::kReduce, kAny, kLane, kFew, Always, ReduceOver<tree::Chain>},
    {"composed", CallKind::kReduce, kAny, kLane, kFew, FitsComposed, ComposedReduce, true},

    {"direct", CallKind::kAllReduce, kAtOnce, kLane, kAll, Always, AllReduceBy<direct::AllReduce>},
    {"two_step", CallKind::kAllReduce, kAtOnce, kPart, kAll, Always,
     AllReduceOf<direct::ReduceScatter, direct::AllGather>},
    {"recursive_doubling", CallKind::kAllReduce, kByRank, kLane, kFew, Always,
     AllReduceBy<recursive_doubling::AllReduce>},
    {"halving_doubling", CallKind::kAllReduce, kAny, kPart, kFew, Always,
     AllReduceOf<halving_doubling::ReduceScatter, halving_doubling::AllGather>},
    {"ring", CallKind::kAllReduce, kAny, kPart, kFew, Always,
     AllReduceOf<ring::ReduceScatter, ring::AllGather>},
    {"composed", CallKind::kAllReduce, kAny, kPart, kFew, FitsComposed,
     Composed<composed::AllReduce>, true},

    {"direct", CallKind::kReduceScatter, kAtOnce, kPart, kAll, Always,
     ReduceScatterOf<direct::ReduceScatter>},
    {"halving_doubling", CallKind::kReduceScatter, kAny, kPart, kFew, Always,
     ReduceScatterOf<halving_doubling::ReduceScatter>},
    {"ring", CallKind::kReduceScatter, kAny, kPart, kFew, Always,
     ReduceScatterOf<ring::ReduceScatter>},
    {"composed", CallKind::kReduceScatter, kAny, kPart, kFew, FitsComposed,
     Composed<composed::ReduceScatter>, true},

    {"direct", CallKind::kAllGather, kAtOnce, kPart, kAll, Always, AllGatherOf<direct::AllGather>},
    {"bruck", CallKind::kAllGather, kAtOnce, kPart, kFew, Always, AllGatherOf<bruck::AllGather>},
    {"halving_doubling", CallKind::kAllGather, kAtOnce, kPart, kFew, Always,
     AllGatherOf<halving_doubling::AllGather>},
    {"ring", CallKind::kAllGather, kAtOnce, kPart, kFew, Always, AllGatherOf<ring::AllGather>},
    {"composed", CallKind::kAllGather, kAtOnce, kPart, kFew, FitsComposed,
     Composed<composed::AllGather>, true},

    {"direct", CallKind::kGather, kAtOnce, kPart, kRoot, Always, DirectGather},
    {"tree", CallKind::kGather, kAtOnce, kPart, kFew, KnowsAllParts, TreeGather},
    {"composed", CallKind::kGather, kAtOnce, kPart, kFew, FitsComposedEven,
     Composed<composed::Gather>, true},

    {"direct", CallKind::kScatter, kAtOnce, kPart, kRoot, Always, DirectScatter},
    {"tree", CallKind::kScatter, kAtOnce, kPart, kFew, KnowsAllParts, TreeScatter},
    {"composed", CallKind::kScatter, kAtOnce, kPart, kFew, FitsComposedEven,
     Composed<composed::Scatter>, true},

    {"direct", CallKind::kAllToAll, kAtOnce, kPart, kAll, Always, LanesOf<exchange::Direct>},
    {"pairwise", CallKind::kAllToAll, kAtOnce, kPart, kAllInTurn, Always,
     LanesOf<exchange::Pairwise>},
    {"bruck", CallKind::kAllToAll, kAtOnce, kPart, kFew, KnowsAllParts, LanesOf<bruck::AllToAll>},
    {"composed", CallKind::kAllToAll, kAtOnce, kPart, kFew, FitsComposedEven, ComposedAllToAll,
     true},

    {"doubling", CallKind::kScan, kByRank, kLane, kFew, Always, LanesOf<scan::Doubling>},
    {"ring", CallKind::kScan, kFixed, kLane, kFew, Always, LanesOf<scan::Chain>},
    {"doubling", CallKind::kExclusiveScan, kByRank, kLane, kFew, Always, LanesOf<scan::Doubling>},
    {"ring", CallKind::kExclusiveScan, kFixed, kLane, kFew, Always, LanesOf<scan::Chain>},
};

}  // namespace

absl::Span<const Algorithm> Catalog() {
  return kAlgorithms;
}

absl::StatusOr<const Algorithm*> FindAlgorithm(CallKind kind, absl::string_view name) {
  std::string names;
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.kind == kind) {
      if (algorithm.name == name) {
        return &algorithm;
      }
      absl::StrAppend(&names, names.empty() ? "" : ", ", algorithm.name);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("no algorithm '", name, "' for ", NameOf(kind),
                                                 "; there are: ", names.empty() ? "none" : names));
}

}  // namespace entrain
