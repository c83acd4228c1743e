#include "lib/api/settings.h"

#include <optional>

#include "absl/strings/str_cat.h"

#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/device/calls/device_runner.h"

namespace entrain::api {
namespace {

// Returns an empty text for null. In RuntimeOptions an empty text means the value from the
// environment.
std::string TextOrEmpty(const char* given) {
  return given != nullptr ? given : "";
}

absl::Status CheckSilence(int64_t silence_ns) {
  return silence_ns == 0 || silence_ns >= CommOptions::kLeastSilenceNs
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("silence_ns ", silence_ns,
                                                       " is neither 0 nor at least ",
                                                       CommOptions::kLeastSilenceNs));
}

}  // namespace

absl::Status CheckTimeout(int64_t timeout_ns) {
  if (timeout_ns < 0) {
    return absl::InvalidArgumentError(absl::StrCat("timeout_ns ", timeout_ns, " is negative"));
  }
  return absl::OkStatus();
}

absl::Status CheckPositiveTimeout(int64_t timeout_ns) {
  return timeout_ns > 0 ? absl::OkStatus()
                        : absl::InvalidArgumentError(
                              absl::StrCat("timeout_ns ", timeout_ns, " is not positive"));
}

absl::StatusOr<RuntimeOptions> ToRuntimeOptions(const entrain_runtime_config_t* config) {
  entrain_runtime_config_t known;
  entrain_runtime_config_init(&known);
  if (config != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(CopyStruct(config, &known, sizeof(known), "entrain_runtime_config_t"));
  }
  ENTRAIN_RETURN_IF_ERROR(
      CheckChoice("progress", known.progress, ENTRAIN_PROGRESS_CALLER, "ENTRAIN_PROGRESS_*"));
  ENTRAIN_RETURN_IF_ERROR(CheckReserved("reserved", known.reserved));
  RuntimeOptions options;
  options.transports = TextOrEmpty(known.transports);
  options.interface_filter = TextOrEmpty(known.interface_filter);
  options.ports = TextOrEmpty(known.ports);
  options.security = {.key_file = TextOrEmpty(known.key_file),
                      .tls = {.certificate = TextOrEmpty(known.tls_cert),
                              .key = TextOrEmpty(known.tls_key),
                              .authorities = TextOrEmpty(known.tls_ca)}};
  options.host_id = TextOrEmpty(known.host_id);
  options.own_thread = known.progress == ENTRAIN_PROGRESS_THREAD;
  options.device_calls = kDeviceCalls;
  if (known.log != nullptr) {
    SetLogSink(known.log, known.log_user);
  }
  return options;
}

absl::StatusOr<CommOptions> ToCommOptions(const entrain_comm_config_t& config) {
  WarnOfUnknownVariables();
  ENTRAIN_RETURN_IF_ERROR(CheckTimeout(config.timeout_ns));
  CommOptions options;
  if (config.name != nullptr) {
    options.name = config.name;
    ENTRAIN_RETURN_IF_ERROR(CheckName(options.name));
  }
  options.algorithms =
      config.algorithms != nullptr ? config.algorithms : GetEnv("ENTRAIN_ALGORITHMS").value_or("");
  options.tuning = config.tuning != nullptr ? config.tuning : GetEnv("ENTRAIN_TUNING").value_or("");
  ENTRAIN_ASSIGN_OR_RETURN(options.determinism,
                           CheckDeterminism("determinism", config.determinism));
  if (const auto text = GetEnv("ENTRAIN_DETERMINISM");
      text && options.determinism == Determinism::kDefault) {
    const absl::StatusOr<Determinism> set = ParseDeterminism(*text);
    if (!set.ok()) {
      return Annotate(set.status(), "ENTRAIN_DETERMINISM");
    }
    options.determinism = *set;
  }
  ENTRAIN_RETURN_IF_ERROR(CheckReserved("reserved", config.reserved));
  if (config.timeout_ns > 0) {
    options.timeout_ns = config.timeout_ns;
  } else if (const std::optional<std::string> text = GetEnv("ENTRAIN_TIMEOUT")) {
    absl::StatusOr<int64_t> timeout = ParseDuration(*text);
    if (!timeout.ok()) {
      return Annotate(timeout.status(), "ENTRAIN_TIMEOUT");
    }
    options.timeout_ns = *timeout;
  }
  ENTRAIN_RETURN_IF_ERROR(CheckSilence(config.silence_ns));
  options.silence_ns = config.silence_ns;
  if (const auto text = GetEnv("ENTRAIN_SILENCE"); text && options.silence_ns == 0) {
    absl::StatusOr<int64_t> silence = ParseDuration(*text);
    const absl::Status fine = silence.ok() ? CheckSilence(*silence) : silence.status();
    if (!fine.ok()) {
      return Annotate(fine, "ENTRAIN_SILENCE");
    }
    options.silence_ns = *silence;
  }
  if (config.runtime != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(NotNull(config.runtime, "config.runtime"));
    options.runtime = config.runtime->runtime;
  } else {
    ENTRAIN_ASSIGN_OR_RETURN(options.runtime, Runtime::Default(kDeviceCalls));
  }
  return options;
}

}  // namespace entrain::api
