#include "collectives/catalog.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "collectives/composed.h"
#include "collectives/direct.h"
#include "collectives/draft.h"
#include "collectives/halving_doubling.h"
#include "collectives/ring.h"
#include "collectives/tree.h"

namespace entrain {
namespace {

using Hosts = absl::Span<const int>;
using ReduceScatterFragment = void (*)(Draft*, const Group&, const Pieces&, bool last);
using AllGatherFragment = void (*)(Draft*, const Group&, const Pieces&);
using TreeShape = tree::Branch (*)(const Group&, int root);
using BarrierFragment = void (*)(Draft*, const Group&);

bool Always(const Spec&, Hosts) {
  return true;
}
bool FitsComposed(const Spec&, Hosts hosts) {
  return composed::Fits(hosts);
}

// One lane after the other, each drawn up by `draw`. What a rank had from the start is copied last.
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

Schedule DirectAllReduce(const Spec& spec, Hosts) {
  return BuildLanes(spec, [&](Draft* draft) {
    direct::AllReduce(draft, Everyone(spec), AllParts(spec));
    draft->Settle(AllParts(spec));
  });
}

template <TreeShape shape>
Schedule BroadcastOver(const Spec& spec, Hosts) {
  return BuildLanes(
      spec, [&](Draft* draft) { tree::Broadcast(draft, shape(Everyone(spec), spec.root)); });
}

// Signals need no lanes.
template <BarrierFragment barrier>
Schedule BarrierOf(const Spec& spec, Hosts) {
  ScheduleBuilder builder(spec);
  Draft draft(&builder, 0);
  barrier(&draft, Everyone(spec));
  return builder.Finish();
}

template <void (*fragment)(Draft*, Hosts)>
Schedule Composed(const Spec& spec, Hosts hosts) {
  return BuildLanes(spec, [&](Draft* draft) { fragment(draft, hosts); });
}

Schedule ComposedBroadcast(const Spec& spec, Hosts hosts) {
  return BuildLanes(
      spec, [&](Draft* draft) { tree::Broadcast(draft, composed::BroadcastTree(spec, hosts)); });
}

constexpr Algorithm kAlgorithms[] = {
    {"direct", CallKind::kBarrier, true, Always, BarrierOf<direct::Barrier>},
    {"tree", CallKind::kBarrier, true, Always, BarrierOf<tree::Barrier>},

    {"direct", CallKind::kBroadcast, true, Always, BroadcastOver<tree::Star>},
    {"tree", CallKind::kBroadcast, true, Always, BroadcastOver<tree::Binomial>},
    {"ring", CallKind::kBroadcast, true, Always, BroadcastOver<tree::Chain>},
    {"composed", CallKind::kBroadcast, true, FitsComposed, ComposedBroadcast},

    {"direct", CallKind::kAllReduce, true, Always, DirectAllReduce},
    {"two_step", CallKind::kAllReduce, true, Always,
     AllReduceOf<direct::ReduceScatter, direct::AllGather>},
    {"halving_doubling", CallKind::kAllReduce, false, Always,
     AllReduceOf<halving_doubling::ReduceScatter, halving_doubling::AllGather>},
    {"ring", CallKind::kAllReduce, false, Always,
     AllReduceOf<ring::ReduceScatter, ring::AllGather>},
    {"composed", CallKind::kAllReduce, false, FitsComposed, Composed<composed::AllReduce>},

    {"direct", CallKind::kReduceScatter, true, Always, ReduceScatterOf<direct::ReduceScatter>},
    {"halving_doubling", CallKind::kReduceScatter, false, Always,
     ReduceScatterOf<halving_doubling::ReduceScatter>},
    {"ring", CallKind::kReduceScatter, false, Always, ReduceScatterOf<ring::ReduceScatter>},
    {"composed", CallKind::kReduceScatter, false, FitsComposed, Composed<composed::ReduceScatter>},

    {"direct", CallKind::kAllGather, true, Always, AllGatherOf<direct::AllGather>},
    {"halving_doubling", CallKind::kAllGather, true, Always,
     AllGatherOf<halving_doubling::AllGather>},
    {"ring", CallKind::kAllGather, true, Always, AllGatherOf<ring::AllGather>},
    {"composed", CallKind::kAllGather, true, FitsComposed, Composed<composed::AllGather>},
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
