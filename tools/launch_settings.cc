#include "tools/launch_settings.h"

#include <optional>
#include <string>

#include "lib/base/config.h"
#include "lib/base/status.h"
#include "lib/comm/plan/overrides.h"
#include "lib/comm/plan/tuning.h"
#include "lib/net/interfaces.h"
#include "lib/net/keep_alive.h"
#include "lib/net/key_file.h"
#include "lib/net/listener.h"
#include "lib/net/security.h"
#include "transports/settings.h"
#include "transports/tcp/tcp_sockets.h"
#include "transports/tcp/tcp_transport.h"

namespace entrain {
namespace {

absl::Status CheckInterface(const std::string& filter) {
  ENTRAIN_ASSIGN_OR_RETURN(const auto interfaces, ListInterfaces());
  return ChooseAddress(filter, interfaces, nullptr).status();
}

struct Check {
  const char* name;
  absl::Status (*accept)(const std::string& value);
};

constexpr Check kChecks[] = {
    {"ENTRAIN_TRANSPORTS", [](const std::string& v) { return ParseTransports(v).status(); }},
    {"ENTRAIN_ALGORITHMS", [](const std::string& v) { return ParseOverrides(v).status(); }},
    {"ENTRAIN_TUNING",
     [](const std::string& v) { return v == "probe" ? absl::OkStatus() : LoadTuning(v).status(); }},
    {"ENTRAIN_DETERMINISM", [](const std::string& v) { return ParseDeterminism(v).status(); }},
    {"ENTRAIN_TIMEOUT", [](const std::string& v) { return ParseDuration(v).status(); }},
    {"ENTRAIN_SILENCE", [](const std::string& v) { return ParseDuration(v).status(); }},
    {"ENTRAIN_INTERFACE", CheckInterface},
    {"ENTRAIN_PORTS", [](const std::string& v) { return ParsePorts(v).status(); }},
    {"ENTRAIN_TCP_STREAMS", [](const std::string& v) { return ParseTcpStreams(v).status(); }},
    {"ENTRAIN_TCP_CONGESTION", [](const std::string& v) { return CheckTcpCongestion(v); }},
    {"ENTRAIN_KEEPALIVE", [](const std::string& v) { return ParseKeepAlive(v).status(); }},
    {"ENTRAIN_KEY_FILE", [](const std::string& v) { return ReadKeyFile(v).status(); }},
    {"ENTRAIN_FAULT", [](const std::string& v) { return ParseFaultPlan(v).status(); }},
};

}  // namespace

absl::Status CheckLaunchSettings() {
  WarnOfUnknownVariables();
  ENTRAIN_RETURN_IF_ERROR(ApplyLogLevel());
  for (const Check& check : kChecks) {
    if (const std::optional<std::string> value = GetEnv(check.name)) {
      ENTRAIN_RETURN_IF_ERROR(Annotate(check.accept(*value), check.name));
    }
  }
  return LoadSecurity({}).status();
}

}  // namespace entrain
