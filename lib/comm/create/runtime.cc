#include "lib/comm/create/runtime.h"

#include <fstream>

#include <sys/stat.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/flight/flight_log.h"
#include "lib/net/handshake.h"
#include "transports/registry.h"

namespace entrain {
namespace {

std::string Setting(const std::string& given, const char* variable) {
  return given.empty() ? GetEnv(variable).value_or("") : given;
}

std::string NamespaceId(const char* path) {
  struct stat info {};
  return stat(path, &info) == 0 ? absl::StrCat(info.st_dev, ".", info.st_ino) : "?";
}

}  // namespace

std::string ThisHostId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  if (!std::getline(file, boot)) {
    boot = "no-boot-id";
  }
  return absl::StrCat(boot, "/", NamespaceId("/proc/self/ns/net"), "/",
                      NamespaceId("/proc/self/ns/ipc"));
}

absl::StatusOr<std::shared_ptr<Runtime>> Runtime::Create(const RuntimeOptions& options) {
  WarnOfUnknownVariables();
  ENTRAIN_RETURN_IF_ERROR(ApplyLogLevel());
  ENTRAIN_RETURN_IF_ERROR(FlightLog::Get().Configure());
  std::shared_ptr<Runtime> runtime(new Runtime(options));
  RandomBytes(runtime->id_.data(), runtime->id_.size());
  runtime->host_id_ = Setting(options.host_id, "ENTRAIN_HOST_ID");
  if (runtime->host_id_.empty()) {
    runtime->host_id_ = ThisHostId();
  }
  ENTRAIN_ASSIGN_OR_RETURN(runtime->security_, LoadSecurity(options.security));
  const std::string transports = Setting(options.transports, "ENTRAIN_TRANSPORTS");
  runtime->transports_named_ = !transports.empty();
  ENTRAIN_ASSIGN_OR_RETURN(runtime->transport_names_, ParseTransports(transports));
  if (const std::optional<std::string> fault = GetEnv("ENTRAIN_FAULT")) {
    auto plan = ParseFaultPlan(*fault);
    if (!plan.ok()) {
      return Annotate(plan.status(), "ENTRAIN_FAULT");
    }
    runtime->fault_ = *std::move(plan);
  }
  return runtime;
}

const std::shared_ptr<UseCounts>& Runtime::UsesOfDefault() {
  static const auto* const uses = new std::shared_ptr<UseCounts>(std::make_shared<UseCounts>());
  return *uses;
}

absl::StatusOr<std::shared_ptr<Runtime>> Runtime::Default(DeviceCallsFactory device_calls) {
  // The state of the process. The pointer is weak, because only the users of the runtime keep the
  // runtime alive.
  static absl::Mutex mutex(absl::kConstInit);
  static std::weak_ptr<Runtime>* const current = new std::weak_ptr<Runtime>();
  absl::MutexLock lock(&mutex);
  if (std::shared_ptr<Runtime> runtime = current->lock()) {
    return runtime;
  }
  RuntimeOptions options;
  options.device_calls = device_calls;
  ENTRAIN_ASSIGN_OR_RETURN(std::shared_ptr<Runtime> runtime, Create(options));
  runtime->uses_ = UsesOfDefault();
  *current = runtime;
  return runtime;
}

Runtime::Runtime(const RuntimeOptions& options) : options_(options), pool_(int64_t{256} << 20) {
  FlightLog::Get().Retain();
}

Runtime::~Runtime() {
  if (engine_ != nullptr) {
    engine_->Shutdown();
  }
  FlightLog::Get().Release();
}

absl::Status Runtime::EnsureStarted(const std::string& route_to, int rank) {
  absl::MutexLock lock(&mutex_);
  return engine_ == nullptr ? Start(route_to, rank) : absl::OkStatus();
}

absl::Status Runtime::Start(const std::string& route_to, int rank) {
  TransportConfig config;
  config.self = id_;
  config.host_id = host_id_;
  config.interface_filter = Setting(options_.interface_filter, "ENTRAIN_INTERFACE");
  config.ports = Setting(options_.ports, "ENTRAIN_PORTS");
  config.tcp_streams = GetEnv("ENTRAIN_TCP_STREAMS").value_or("");
  config.tcp_congestion = GetEnv("ENTRAIN_TCP_CONGESTION").value_or("");
  config.keep_alive = GetEnv("ENTRAIN_KEEPALIVE").value_or("");
  config.security = security_;
  config.route_to = route_to;
  config.regions = regions_;
  auto engine = std::make_shared<Engine>(SeatOptions{.own_thread = options_.own_thread});
  std::shared_ptr<FaultLink> fault;
  if (fault_ && fault_->IsFor(rank)) {
    ENTRAIN_LOG(kWarning, "rank ", rank, " sends as ENTRAIN_FAULT=", *GetEnv("ENTRAIN_FAULT"),
                " says");
    fault = CreateFaultLink(*fault_, rank, engine->clock());
  }
  std::vector<std::string> failures;
  for (const TransportFactory& factory : TransportRegistry()) {
    if (std::find(transport_names_.begin(), transport_names_.end(), factory.name) ==
        transport_names_.end()) {
      continue;
    }
    if (const absl::Status absent = factory.Absence(transports_named_); !absent.ok()) {
      if (transports_named_) {
        return Annotate(absent, absl::StrCat("transport ", factory.name));
      }
      ENTRAIN_LOG(kDebug, "transport ", factory.name, " is absent: ", absent.message());
      failures.push_back(absl::StrCat(factory.name, ": ", absent.message()));
      continue;
    }
    auto transport = fault != nullptr && fault_->IsFor(factory.name)
                         ? CreateBehind(fault, factory, config, engine.get())
                         : factory.create(config, engine.get());
    if (transport.ok()) {
      engine->AddTransport(*std::move(transport));
      continue;
    }
    // If a transport is not available, the runtime works without it. But an invalid setting is
    // always an error.
    if (transports_named_ || absl::IsInvalidArgument(transport.status())) {
      return Annotate(transport.status(), absl::StrCat("transport ", factory.name));
    }
    const std::string left_out =
        absl::StrCat("transport ", factory.name, " is left out: ", transport.status().message());
    if (absl::IsUnimplemented(transport.status())) {
      ENTRAIN_LOG(kDebug, left_out);  // this machine has no such device or network
    } else {
      ENTRAIN_LOG(kWarning, left_out);
    }
    failures.push_back(absl::StrCat(factory.name, ": ", transport.status().message()));
  }
  if (engine->transports().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no transport works: ", absl::StrJoin(failures, "; ")));
  }
  if (!engine->status().ok()) {
    const absl::Status why = engine->status();
    engine->Shutdown();
    return why;
  }
  engine->Start();
  engine_ = std::move(engine);
  memory_ = std::make_unique<PeerMemory>(*engine_, *regions_);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DeviceCalls>> Runtime::MakeDeviceCalls(
    std::shared_ptr<CommCore> core) const {
  return options_.device_calls != nullptr ? options_.device_calls(std::move(core), transport_names_)
                                          : absl::UnimplementedError(absl::StrCat(
                                                "memory 1 (of a device): ", kBuiltWithoutDevices));
}

int UseCounts::Next(const std::string& store_url, const std::string& name) {
  absl::MutexLock lock(&mutex_);
  const std::string key = absl::StrCat(store_url, "\n", name);
  for (auto& [used, count] : counts_) {
    if (used == key) {
      return count++;
    }
  }
  counts_.emplace_back(key, 1);
  return 0;
}

}  // namespace entrain
