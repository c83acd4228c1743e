// The grammars of settings, addresses and variables. The first byte of an input selects the
// grammar, the rest is the text.
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "lib/base/call.h"
#include "lib/base/config.h"
#include "lib/base/status.h"
#include "lib/base/text.h"
#include "lib/comm/launch/launcher.h"
#include "lib/comm/launch/node_list.h"
#include "lib/comm/plan/overrides.h"
#include "lib/comm/plan/tuning.h"
#include "lib/net/interfaces.h"
#include "lib/net/keep_alive.h"
#include "lib/net/listener.h"
#include "lib/store/store.h"
#include "tests/fuzz/target.h"
#include "transports/settings.h"
#include "transports/shm/shm_transport.h"
#include "transports/tcp/tcp_address.h"
#include "transports/tcp/tcp_streams.h"
#include "transports/tcp/tcp_transport.h"
#if ENTRAIN_HAVE_UCX
#include "transports/ucx/ways.h"
#endif

namespace entrain::fuzz {
namespace {

using Text = absl::string_view;

// A refused text must give an error that the caller can show: a code for the caller's mistakes, and
// one line.
template <typename T>
void CheckRefusal(const absl::StatusOr<T>& result) {
  FUZZ_CHECK(absl::IsInvalidArgument(result.status()) ||
             absl::IsFailedPrecondition(result.status()));
  FUZZ_CHECK(!result.status().message().empty());
}

void CheckOverrides(Text text) {
  const auto overrides = ParseOverrides(text);
  if (!overrides.ok()) {
    return CheckRefusal(overrides);
  }
  for (const Override& one : *overrides) {
    FUZZ_CHECK(0 <= one.low && one.low <= one.high);
  }
  const auto again = ParseOverrides(ToText(*overrides));
  FUZZ_CHECK(again.ok() && ToText(*again) == ToText(*overrides));
}

void CheckTuning(Text text) {
  const auto tuning = ParseTuning(text, "a file");
  if (!tuning.ok()) {
    return CheckRefusal(tuning);
  }
  const auto again = ParseTuning(tuning->ToText(), "a file");
  FUZZ_CHECK(again.ok() && again->ToText() == tuning->ToText());
  for (int link = 0; link < kLinks; ++link) {
    const LinkFigures figures = tuning->FiguresFor({static_cast<Link>(link), 4, true});
    FUZZ_CHECK(figures.gbs > 0 && figures.host_gbs > 0 && figures.latency_us >= 0);
  }
}

void CheckFaultPlan(Text text) {
  const auto plan = ParseFaultPlan(text);
  if (!plan.ok()) {
    return CheckRefusal(plan);
  }
  FUZZ_CHECK(plan->bytes_per_second >= 0 && plan->latency_ns >= 0 && plan->jitter_ns >= 0 &&
             plan->cut_ns >= 0);
  FUZZ_CHECK(plan->bytes_per_second + plan->latency_ns + plan->jitter_ns + plan->cut_ns >= 0);
  (void)plan->IsFor(3);
  (void)plan->IsFor("tcp");
}

void CheckPorts(Text text) {
  const auto ports = ParsePorts(text);
  if (!ports.ok()) {
    return CheckRefusal(ports);
  }
  FUZZ_CHECK(ports->low <= ports->high && (ports->low > 0 || text.empty()));
}

void CheckKeepAlive(Text text) {
  const auto keep_alive = ParseKeepAlive(text);
  if (!keep_alive.ok()) {
    return CheckRefusal(keep_alive);
  }
  FUZZ_CHECK(keep_alive->interval_ns >= kSecond && keep_alive->interval_ns <= keep_alive->limit_ns);
}

void CheckAddress(Text text) {
  const auto address = Address::Parse(text);
  if (address.ok()) {
    const auto again = Address::Parse(address->ToString());
    FUZZ_CHECK(again.ok() && again->ToString() == address->ToString());
  } else {
    CheckRefusal(address);
  }
  const auto host = ParseHostPort(text);
  if (host.ok()) {
    const auto again = ParseHostPort(host->ToString());
    FUZZ_CHECK(again.ok() && again->host == host->host && again->port == host->port &&
               !host->host.empty());
  } else {
    CheckRefusal(host);
  }
}

void CheckInterfaceFilter(Text text) {
  static const auto& interfaces = *new std::vector<Interface>{
      {"lo", *Address::Parse("127.0.0.1:0")},     {"eth0", *Address::Parse("10.0.0.7:0")},
      {"eth1", *Address::Parse("192.168.3.4:0")}, {"eth1", *Address::Parse("[fd00::7]:0")},
      {"ib0", *Address::Parse("[fe80::1]:0")},
  };
  const auto chosen = ChooseAddress(text, interfaces, &interfaces[2].address);
  if (!chosen.ok()) {
    CheckRefusal(chosen);
  }
}

void CheckNodeList(Text text) {
  const auto nodes = ExpandNodeList(text);
  if (!nodes.ok()) {
    return CheckRefusal(nodes);
  }
  FUZZ_CHECK(!nodes->empty() && nodes->size() <= kMostNodes);
  for (const std::string& node : *nodes) {
    FUZZ_CHECK(!node.empty());
  }
}

// Only URLs that are opened without a connection, a look-up or a file.
void CheckStoreUrl(Text text) {
  const Stop over{Deadline{0}, nullptr};
  Text where = text;
  if (absl::ConsumePrefix(&where, "tcp://")) {
    for (const Text part : absl::StrSplit(where, ',')) {
      const auto host = ParseHostPort(part);
      if (!host.ok() || host->port == 0) {
        return CheckRefusal(OpenStore(text, "", over));
      }
    }
  } else if (absl::ConsumePrefix(&where, "local:")) {
    if (where.empty() || where.size() > 200) {
      CheckRefusal(OpenStore(text, "", over));
    }
  } else {
    const auto store = OpenStore(text, "", over);
    FUZZ_CHECK(store.ok() == (absl::StartsWith(text, "mem:") && text.size() > 4));
  }
}

void CheckTransports(Text text) {
  const auto names = ParseTransports(text);
  if (!names.ok()) {
    return CheckRefusal(names);
  }
  FUZZ_CHECK(!names->empty() &&
             std::set<std::string>(names->begin(), names->end()).size() == names->size());
}

void CheckTcpStreams(Text text) {
  const auto streams = ParseTcpStreams(text);
  if (!streams.ok()) {
    return CheckRefusal(streams);
  }
  FUZZ_CHECK(*streams >= 0 && *streams <= TcpStreams::kMost);
}

void CheckNumbers(Text text) {
  if (const auto size = ParseSize(text); size.ok()) {
    FUZZ_CHECK(*size >= 0);
  } else {
    CheckRefusal(size);
  }
  if (const auto duration = ParseDuration(text); duration.ok()) {
    FUZZ_CHECK(*duration > 0);
  } else {
    CheckRefusal(duration);
  }
  if (const auto determinism = ParseDeterminism(text); determinism.ok()) {
    FUZZ_CHECK(NameOf(*determinism) == text);
  } else {
    CheckRefusal(determinism);
  }
}

// NAME=VALUE, one a line.
void CheckLaunch(Text text) {
  std::map<std::string, std::string> variables;
  for (const Text line : absl::StrSplit(text, '\n')) {
    const std::pair<Text, Text> pair = absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (!pair.second.empty()) {
      variables.emplace(pair.first, pair.second);
    }
  }
  const auto look_up = [&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
  const auto process = [](const std::string&) -> absl::StatusOr<std::string> {
    return std::string("process");
  };
  const auto launch = DetectLaunch(look_up, process);
  if (!launch.ok()) {
    return CheckRefusal(launch);
  }
  FUZZ_CHECK(0 <= launch->rank && launch->rank < launch->size);
  FUZZ_CHECK(launch->local_size == 0 ||
             (launch->local_rank < launch->local_size && launch->local_size <= launch->size));
  FUZZ_CHECK(!launch->store_url.empty() && !launch->launcher.empty());
}

void CheckStatus(Text text) {
  const auto status = DecodeStatus(text);
  if (status) {
    const auto again = DecodeStatus(EncodeStatus(*status));
    FUZZ_CHECK(again && again->code() == status->code() && again->message() == status->message());
    FUZZ_CHECK(HasBlame(*again) == HasBlame(*status) &&
               BlameOf(*again).rank == BlameOf(*status).rank);
    FUZZ_CHECK(ToCode(*again) == ToCode(*status));
  }
}

void CheckCleaning(Text text) {
  const std::string clean = CleanText(text);
  FUZZ_CHECK(clean.size() <= kMaxForeignText && CleanText(clean) == clean);
  for (const char c : clean) {
    FUZZ_CHECK(static_cast<unsigned char>(c) >= ' ' && c != '\x7f');
  }
}

class NoEvents final : public Events {
 public:
  bool Accepts(Context) override { return false; }
  void OnEarly(Endpoint&, const Envelope&) override {}
  void OnControl(Endpoint&, absl::string_view) override {}
  void OnLost(Endpoint&, const absl::Status&) override {}
};

void CheckReaches(Text text) {
  static NoEvents& events = *new NoEvents;
  static Transport* const transport = [] {
    TransportConfig config;
    config.host_id = "host";
    return CreateShmTransport(config, &events).value().release();
  }();
  (void)transport->Reaches(text);
  if (const auto address = TcpAddress::Parse(text); address.ok()) {
    const auto again = TcpAddress::Parse(address->ToString());
    FUZZ_CHECK(again.ok() && again->ToString() == address->ToString());
  }
}

void CheckUcxTls(Text text) {
#if ENTRAIN_HAVE_UCX
  const ucx::Ways ways = ucx::WaysOf(std::string(text));
  // tcp has no authentication, so it must be asked for by name.
  FUZZ_CHECK(!ways.tcp || absl::StrContains(text, "tcp"));
#else
  (void)text;
#endif
}

struct Grammar {
  void (*check)(Text text);
  std::vector<const char*> examples;
};

const std::vector<Grammar>& Grammars() {
  static const auto& all = *new std::vector<Grammar>{
      {CheckOverrides, {"all_reduce:ring@1M-inf,broadcast:tree", "reduce_scatter:direct@0-64K"}},
      {CheckTuning,
       {"entrain-tuning 2\n# links\nlink shm ranks 4 crowded call_us 0.5 latency_us 0.3 message_us "
        "0.3 switch_us 0.8 gbs 9 "
        "host_gbs 20 reduce_gbs 12\nchoose shm ranks 4 crowded "
        "all_reduce:ring@128K-512K,broadcast:tree@8-4K\n",
        "entrain-tuning 2\nchoose tcp_across ranks 16 free all_reduce:ring\n"}},
      {CheckFaultPlan,
       {"rate=12.5MB/s,latency=200us,jitter=50us,seed=7,cut=30s,ranks=0,3,transports=tcp", "cut=0s",
        "rate=100Mbit/s"}},
      {CheckPorts, {"20000-20100", "4711", ""}},
      {CheckKeepAlive, {"8s/2s", "30", "1m/10s", ""}},
      {CheckAddress,
       {"10.0.0.1:80", "[fe80::1%1]:80", "[::1]:0", "node7:4711", "[::ffff:1.2.3.4]:9"}},
      {CheckInterfaceFilter, {"eth*,^eth1,ipv4", "10.0.0.0/8", "fd00::/8,ipv6", "^lo", "10.0.0.7"}},
      {CheckNodeList, {"node[01-03,07],gpu5", "a[1-2]b[3-4]", "host"}},
      {CheckStoreUrl, {"mem:a", "file:/x", "tcp://:1", "tcp://a:1,b:0", "local:", "http://x"}},
      {CheckTransports, {"shm,tcp", "", "ucx"}},
      {CheckTcpStreams, {"4", "", "auto", "16"}},
      {CheckNumbers, {"1.5M", "64K", "250ms", "2h", "rank_order", "algorithm"}},
      {CheckLaunch,
       {"RANK=3\nWORLD_SIZE=8\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=10.0.0.9\nMASTER_PORT="
        "29500\n"
        "TORCHELASTIC_RUN_ID=job7\nTORCHELASTIC_RESTART_COUNT=2",
        "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=1\nOMPI_COMM_"
        "WORLD_LOCAL_SIZE=2",
        "PMI_RANK=1\nPMI_SIZE=4\nENTRAIN_STORE=tcp://10.0.0.9:4711",
        "SLURM_PROCID=3\nSLURM_STEP_NUM_TASKS=8\nSLURM_LOCALID=1\nSLURM_JOB_ID=77\nSLURM_STEP_ID="
        "0\n"
        "SLURM_STEP_NODELIST=node[01-04]\nSLURM_STEP_RESV_PORTS=20000-20003"}},
      {CheckStatus, {}},
      {CheckCleaning, {"plain", "caf\xc3\xa9 \xe2\x80\xae\x1b[31m\n", "\xf0\x9f\x98\x80\xff"}},
      {CheckReaches, {"12/0/entrain-01/host", "127.0.0.1:4711#mark", "10.0.0.1:80"}},
      {CheckUcxTls, {"^sm", "tcp,sm", "all", "rc,ud"}},
  };
  return all;
}

}  // namespace

void FuzzOne(absl::string_view input) {
  Input in(input);
  const size_t grammar = in.Byte() % Grammars().size();
  Grammars()[grammar].check(in.Rest());
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (size_t i = 0; i < Grammars().size(); ++i) {
    for (const char* const text : Grammars()[i].examples) {
      seeds.push_back(Script().Byte(static_cast<int>(i)).Raw(text).Take());
    }
    if (Grammars()[i].check == CheckStatus) {
      Blame blame;
      blame.rank = 2;
      blame.address = "tcp 127.0.0.1:4711";
      blame.operation = "all_reduce";
      blame.late = {1, 2};
      seeds.push_back(Script()
                          .Byte(static_cast<int>(i))
                          .Raw(EncodeStatus(WithBlame(absl::UnavailableError("gone"), blame)))
                          .Take());
    }
    if (Grammars()[i].check == CheckTuning) {
      seeds.push_back(
          Script().Byte(static_cast<int>(i)).Raw(BuiltinTuning()->ToText().substr(0, 1000)).Take());
    }
  }
  return seeds;
}

}  // namespace entrain::fuzz
