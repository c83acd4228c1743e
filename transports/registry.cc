#include "transports/registry.h"

#include <utility>

#include "transports/fault/fault_transport.h"
#include "transports/inproc/inproc_transport.h"
#include "transports/shm/shm_transport.h"
#include "transports/tcp/tcp_transport.h"
#if ENTRAIN_HAVE_UCX
#include "transports/ucx/ucx_transport.h"
#endif

namespace entrain {
namespace {

#if !ENTRAIN_HAVE_UCX
absl::Status UcxAbsence(bool) {
  return absl::FailedPreconditionError(
      "this build was made without it (ENTRAIN_UCX, or no header ucp/api/ucp.h)");
}
absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const TransportConfig&, Events*) {
  return UcxAbsence(true);
}
#endif

constexpr TransportFactory kRegistry[] = {
    {"inproc", CreateInprocTransport},
    {"shm", CreateShmTransport},
    {"ucx", CreateUcxTransport, UcxAbsence},
    {"tcp", CreateTcpTransport},
};

}  // namespace

absl::Span<const TransportFactory> TransportRegistry() {
  return kRegistry;
}

std::shared_ptr<FaultLink> CreateFaultLink(const FaultPlan& plan, int rank, const Clock& clock) {
  return std::make_shared<FaultLink>(plan, rank, clock);
}

absl::StatusOr<std::unique_ptr<Transport>> CreateBehind(std::shared_ptr<FaultLink> link,
                                                        const TransportFactory& factory,
                                                        const TransportConfig& config,
                                                        Events* events) {
  return CreateFaultTransport(std::move(link), factory, config, events);
}

}  // namespace entrain
