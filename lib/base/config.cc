#include "lib/base/config.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "lib/base/log.h"

extern char** environ;

namespace entrain {
namespace {

constexpr EnvVariable kEnvironment[] = {
    {"ENTRAIN_STORE", "URL",
     "the rendezvous store: tcp://HOST:PORT, etcd://HOST:PORT, local:NAME, file:DIRECTORY or "
     "mem:NAME"},
    {"ENTRAIN_RUN_ID", "text",
     "a name of the job, put before the launcher's id (torchrun's run id, Slurm's job and "
     "step): processes meet only if both are equal, even if jobs share a store by mistake; the "
     "same on all ranks and newcomers; default: none"},
    {"ENTRAIN_TRANSPORTS", "names",
     "the transports that may be used, comma separated; default: all that work"},
    {"ENTRAIN_ALGORITHMS", "overrides",
     "the algorithm for a collective and a range of bytes: COLLECTIVE:ALGORITHM[@LOW-HIGH], "
     "comma separated; default: the library takes the one with the lowest estimated time"},
    {"ENTRAIN_TUNING", "file or probe",
     "the source of cost estimates: a file of entrain-perf --tune, or links measured at "
     "creation; default: the library's own values"},
    {"ENTRAIN_DETERMINISM", "algorithm or rank_order",
     "what determines the bits of a reduction's result; algorithm: the contributions and the "
     "chosen algorithm; rank_order: the contributions in rank order alone; default: algorithm"},
    {"ENTRAIN_TIMEOUT", "duration", "default deadline of operations, e.g. 90s, 5m; default: 30m"},
    {"ENTRAIN_SILENCE", "duration",
     "a rank counts as stopped if another rank waits for it in a call, and its library answers "
     "nothing for this time; default: none, so only the deadline ends the wait; with on_loss "
     "finish 30s, with admit 3s"},
    {"ENTRAIN_INTERFACE", "filter",
     "the address to bind and publish: names, prefixes (eth*), CIDR, ipv4/ipv6, ^exclusions"},
    {"ENTRAIN_PORTS", "LOW-HIGH",
     "the ports to listen on; default: the kernel chooses, but the store at MASTER_ADDR takes "
     "one from 10000 to 28999"},
    {"ENTRAIN_TCP_STREAMS", "1 to 16",
     "the number of tcp connections for large messages to a peer; default: 1 to a peer on the "
     "same host, otherwise chosen by the measured rate; with ENTRAIN_CRC always 1"},
    {"ENTRAIN_TCP_CONGESTION", "name",
     "the congestion control of tcp connections with a round trip of 1 ms or more, e.g. bbr; "
     "default: the host's"},
    {"ENTRAIN_KEEPALIVE", "LIMIT/INTERVAL",
     "tcp probes the host of a peer every INTERVAL, and reports the peer as lost if the host "
     "answers nothing for LIMIT; default: 8s/2s"},
    {"ENTRAIN_HOST_ID", "text",
     "the name of this process's host: processes with the same name are on one host; default: "
     "a name made of the host's boot id, its network namespace and its IPC namespace"},
    {"ENTRAIN_KEY_FILE", "path",
     "file with the pre-shared key of the job, 16 bytes to 4 KiB; default: none"},
    {"ENTRAIN_TLS", "hosts or all",
     "the connections that tcp encrypts if the process has a key or certificates; hosts: those "
     "between hosts; all: also those within a host; default: hosts"},
    {"ENTRAIN_TLS_CERT", "path",
     "PEM file with this process's certificate, for TLS by certificates; default: none"},
    {"ENTRAIN_TLS_KEY", "path", "PEM file with the private key of ENTRAIN_TLS_CERT"},
    {"ENTRAIN_TLS_CA", "path",
     "PEM file with the authorities that sign the certificates of all ranks"},
    {"ENTRAIN_INSECURE", "0 or 1",
     "1: ucx may use UCX's TCP, and a process without a key or certificates may send plain "
     "traffic to other hosts; default: 0"},
    {"ENTRAIN_CRC", "0 or 1",
     "1: tcp adds CRC32C to each frame of a connection without TLS, if one of the two ranks "
     "sets it; default: 0"},
    {"ENTRAIN_NCCL_LIBRARY", "path",
     "the NCCL library for collectives on device memory; default: libnccl.so.2, if installed"},
    {"ENTRAIN_LOG", "level", "error, warning, info or debug; default: warning"},
    {"ENTRAIN_FLIGHT_CALLS", "0 to 65536",
     "the number of calls that the flight recorder of a communicator keeps, rounded up to a power "
     "of two; 0: no recorder; default: 64"},
    {"ENTRAIN_FLIGHT_DIR", "directory",
     "where flight dumps are written when a communicator fails and on ENTRAIN_FLIGHT_SIGNAL; "
     "default: none are written"},
    {"ENTRAIN_FLIGHT_SIGNAL", "USR1 or USR2",
     "the signal on which a process writes a flight dump to ENTRAIN_FLIGHT_DIR, which must be "
     "set; default: none"},
    {"ENTRAIN_CUDA_LIBRARY", "path", "the CUDA driver; default: libcuda.so.1"},
    {"ENTRAIN_LIBRARY", "path",
     "the libentrain.so that the Python package loads; default: the one in the package, else "
     "that of the system"},
    {"ENTRAIN_RESTARTS", "count",
     "how often entrain-run --elastic has restarted this rank (entrain-run sets the variable); "
     "above 0, entrain_comm_create_from_env joins the communicator of the other ranks; "
     "default: none"},
    {"ENTRAIN_FAULT", "NAME=VALUE,...",
     "a slower network, emulated for tests: rate=12.5MB/s, latency=200us, jitter=50us, "
     "seed=1, cut=30s, ranks=0,3, transports=tcp; default: none"},
};

// Splits "1.5M" into 1.5 and "M".
bool SplitNumber(absl::string_view text, double& number, absl::string_view& unit) {
  text = absl::StripAsciiWhitespace(text);
  const size_t end = text.find_first_not_of("0123456789.");
  unit = end == absl::string_view::npos ? absl::string_view() : text.substr(end);
  return absl::SimpleAtod(text.substr(0, end), &number);
}

// Returns the number of letters that must be inserted, removed or replaced to turn one text into the
// other (Levenshtein).
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

absl::Span<const EnvVariable> EnvTable() {
  return kEnvironment;
}

std::vector<std::string> UnknownVariables() {
  std::vector<std::string> sentences;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const absl::string_view text(*entry);
    const absl::string_view name = text.substr(0, text.find('='));
    if (!absl::StartsWith(name, "ENTRAIN_")) {
      continue;
    }
    const EnvVariable* const nearest =
        std::min_element(std::begin(kEnvironment), std::end(kEnvironment),
                         [name](const EnvVariable& a, const EnvVariable& b) {
                           return Distance(name, a.name) < Distance(name, b.name);
                         });
    if (name != nearest->name) {
      sentences.push_back(absl::StrCat(name, ": no such setting, so it has no effect; ",
                                       nearest->name, " is the most similar name"));
    }
  }
  return sentences;
}

void WarnOfUnknownVariables() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const std::string& sentence : UnknownVariables()) {
      ENTRAIN_LOG(kWarning, sentence);
    }
  });
}

absl::Status ApplyLogLevel() {
  const auto text = GetEnv("ENTRAIN_LOG");
  if (!text) {
    return absl::OkStatus();
  }
  constexpr const char* kNames[] = {"error", "warning", "info", "debug"};
  for (int level = 0; level < 4; ++level) {
    if (*text == kNames[level]) {
      SetLogLevel(static_cast<LogLevel>(level));
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("ENTRAIN_LOG: \"", *text, "\" is none of error, warning, info, debug"));
}

std::optional<std::string> GetEnv(const char* name) {
  const char* const value =
      std::getenv(name);  // NOLINT(concurrency-mt-unsafe): the library never writes the environment
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

absl::StatusOr<std::optional<int64_t>> GetEnvInt(const char* name) {
  const std::optional<std::string> text = GetEnv(name);
  if (!text) {
    return std::optional<int64_t>();
  }
  int64_t value = 0;
  if (!absl::SimpleAtoi(*text, &value)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": \"", *text, "\" is not an integer"));
  }
  return std::optional<int64_t>(value);
}

absl::StatusOr<int64_t> ParseUnits(absl::string_view text, absl::Span<const NamedUnit> units,
                                   absl::string_view what) {
  double number = 0;
  absl::string_view unit;
  if (SplitNumber(text, number, unit)) {
    for (const NamedUnit& u : units) {
      const double value = number * u.factor;
      if (unit == u.name && value < 9.2e18) {
        return static_cast<int64_t>(value);
      }
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not ", what));
}

absl::StatusOr<int64_t> ParseSize(absl::string_view text) {
  constexpr NamedUnit kUnits[] = {
      {"", 1}, {"K", 1024}, {"M", 1024.0 * 1024}, {"G", 1024.0 * 1024 * 1024}};
  return ParseUnits(text, kUnits, "a size such as 64, 64K, 1.5M or 2G");
}

absl::StatusOr<int64_t> ParseDuration(absl::string_view text) {
  constexpr NamedUnit kUnits[] = {{"", 1e9}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}};
  constexpr absl::string_view kWhat = "a duration such as 250ms, 30s, 5m or 2h, above 0";
  const absl::StatusOr<int64_t> ns = ParseUnits(text, kUnits, kWhat);
  if (ns.ok() && *ns <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not ", kWhat));
  }
  return ns;
}

absl::Status CopyStruct(const void* from, void* known, size_t known_size, const char* name) {
  if (from == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": is NULL"));
  }
  size_t size = 0;
  std::memcpy(&size, from, sizeof(size));
  if (size < sizeof(size)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": size is ", size, "; call its init function first"));
  }
  constexpr size_t kSane = 1 << 20;
  if (size > kSane) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": size ", size, " is absurd; call its init function first"));
  }
  if (size % sizeof(size) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": size ", size, " cuts a field; call its init function first"));
  }
  const auto* const bytes = static_cast<const unsigned char*>(from);
  for (size_t i = known_size; i < size; ++i) {
    if (bytes[i] != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": byte ", i, " of ", size, " is set, but this library knows ",
                       known_size, "; the caller is newer and uses what it lacks"));
    }
  }
  std::memcpy(known, from, size < known_size ? size : known_size);
  std::memcpy(known, &known_size, sizeof(known_size));
  return absl::OkStatus();
}

}  // namespace entrain
