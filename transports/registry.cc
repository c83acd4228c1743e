#include "transports/registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

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

// Users may list this name among the transports. It is not a transport, but a method for calls on
// device memory (lib/device/calls).
constexpr const char* kForDevices = "nccl";

std::string KnownNames() {
  return absl::StrJoin(kRegistry, ", ",
                       [](std::string* out, const TransportFactory& factory) {
                         absl::StrAppend(out, factory.name);
                       }) +
         ", " + kForDevices;
}

}  // namespace

absl::Span<const TransportFactory> TransportRegistry() {
  return kRegistry;
}

absl::StatusOr<std::vector<std::string>> ParseTransports(absl::string_view text) {
  std::vector<std::string> asked;
  if (!absl::StripAsciiWhitespace(text).empty()) {
    for (absl::string_view part : absl::StrSplit(text, ',')) {
      asked.emplace_back(absl::StripAsciiWhitespace(part));
    }
  }
  for (size_t i = 0; i < asked.size(); ++i) {
    const bool known =
        std::any_of(std::begin(kRegistry), std::end(kRegistry),
                    [&](const TransportFactory& factory) { return asked[i] == factory.name; }) ||
        asked[i] == kForDevices;
    if (!known) {
      return absl::InvalidArgumentError(absl::StrCat("transports \"", text, "\": \"", asked[i],
                                                     "\" is not a transport of this build (",
                                                     KnownNames(), ")"));
    }
    if (std::count(asked.begin(), asked.end(), asked[i]) > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("transports \"", text, "\": \"", asked[i], "\" is named twice"));
    }
  }
  std::vector<std::string> names;
  for (const TransportFactory& factory : kRegistry) {
    if (asked.empty() || std::find(asked.begin(), asked.end(), factory.name) != asked.end()) {
      names.emplace_back(factory.name);
    }
  }
  if (asked.empty() || std::find(asked.begin(), asked.end(), kForDevices) != asked.end()) {
    names.emplace_back(kForDevices);
  }
  return names;
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
