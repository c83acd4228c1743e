#include "lib/comm/create/peer_memory.h"

#include "absl/strings/str_format.h"

#include "lib/base/status.h"

namespace entrain {

absl::StatusOr<void*> PeerMemory::Allocate(int64_t bytes, SealedMemory::Pages pages) {
  ENTRAIN_ASSIGN_OR_RETURN(const auto region, regions_.Allocate(bytes, pages));
  return region->memory.data();
}

absl::Status PeerMemory::Free(void* memory) {
  return TakeBack(memory, false).status();
}

absl::StatusOr<int64_t> PeerMemory::Register(Bytes memory) {
  absl::Status unused;
  engine_.seat().RunInDriver([&] { unused = engine_.CheckUnused(memory); });
  ENTRAIN_RETURN_IF_ERROR(Annotate(unused, absl::StrFormat("memory %p", memory.data())));
  const auto region = regions_.Register(memory);
  ENTRAIN_RETURN_IF_ERROR(Annotate(region.status(), absl::StrFormat("memory %p", memory.data())));
  return (*region)->memory.size();
}

absl::Status PeerMemory::Deregister(void* memory) {
  ENTRAIN_ASSIGN_OR_RETURN(const auto region, TakeBack(memory, true));
  return Annotate(region->memory.GiveBack(), absl::StrFormat("memory %p", memory));
}

absl::StatusOr<std::shared_ptr<SharedRegion>> PeerMemory::TakeBack(void* memory, bool registered) {
  absl::Status status;
  std::shared_ptr<SharedRegion> taken;
  engine_.seat().RunInDriver([&] {
    const auto region = regions_.At(memory);
    if (region == nullptr || region->registered != registered) {
      status = absl::InvalidArgumentError(absl::StrFormat(
          "memory: %p %s", memory,
          registered ? "is not registered for communicators of this runtime"
                     : "was not allocated for communicators of this runtime, or has been freed"));
      return;
    }
    if (registered) {
      status = Annotate(engine_.Retire(*region), absl::StrFormat("memory %p", memory));
    } else {
      engine_.RetireWhenUnused(region);
    }
    if (status.ok()) {
      taken = regions_.Remove(*region);
    }
  });
  ENTRAIN_RETURN_IF_ERROR(status);
  return taken;
}

}  // namespace entrain
