// A checked call that went the short way, kept for the next that differs from it in nothing but its addresses: no lock,
// no plan and no conversion is needed for that one.
//
// Thread safety: none; CommCore's driver.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/base/call.h"
#include "lib/comm/communicator.h"
#include "lib/engine/plan.h"

namespace entrain {

// A buffer that a call may have: not null, aligned, not around the end of memory; or empty.
bool IsGoodBuffer(const void* buffer, int64_t bytes, int64_t alignment);

struct LastCall {
  std::shared_ptr<const Plan> plan;  // null: none
  Call call;
  Descriptor descriptor;
  Wiring wiring;
  uint64_t plans_made = 0;  // CommCore's, when the plan was made

  // Whether calls like it, without options, may be repeated.
  static bool MayRepeat(const Call& call);
  LastCall() = default;
  LastCall(const Call& checked, const Descriptor& descriptor, const Wiring& wiring,
           uint64_t plans_made, std::shared_ptr<const Plan> plan);

  bool Is(const Likeness& like) const {
    return call.kind == like.kind && call.count == like.count && call.dtype == like.dtype &&
           call.reduction.op == like.op && call.root == like.root;
  }
  // Addresses as good as those of the call, which were checked.
  bool Serves(const void* in, const void* out) const;

 private:
  bool Apart(const void* in, const void* out) const;

  int64_t alignment_ = 1;
  uintptr_t apart_by_ = 0;  // out - in
  bool apart_ = false;      // in and out share no memory
};

}  // namespace entrain
