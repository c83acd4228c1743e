// One rank of a world in which tests/matrix/matrix.py brings about a fault. Makes the calls of one
// phase. The victim stops at the phase, and the driver strikes. After an error the ranks that are
// left make a communicator of their own, and all ranks compare a sum. Each call's end goes to the
// driver as one line of JSON. Uses the C ABI only.
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <system_error>
#include <vector>

#include <entrain/entrain.h>
#include <entrain/optim.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/matrix/hooks.h"

namespace faults {
namespace {

constexpr size_t kElements = 3 << 19;  // of the call that is broken in its middle: 6 MiB
constexpr size_t kChecked = 10007;     // of the sum that all ranks compare
constexpr int64_t kMillisecond = 1000000;

struct Flags {
  int rank = 0, size = 3, victim = 0;
  std::string phase, store, directory;
  int64_t timeout_ns = 0;
  int proxy = 0;
};

// A text as JSON.
std::string Quoted(const char* text) {
  std::string out = "\"";
  for (; *text != '\0'; ++text) {
    const auto c = static_cast<unsigned char>(*text);
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += c < ' ' ? ' ' : *text;
  }
  return out + "\"";
}

// Returns for how long the machine let this process's threads wait for a core; 0 if the process can
// open no file.
int64_t WaitedForCoresNs() {
  int64_t sum = 0;
  std::error_code none;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", none)) {
    std::ifstream file(thread.path() / "schedstat");
    int64_t ran = 0, waited = 0;
    file >> ran >> waited;
    sum += waited;
  }
  return sum;
}

class Rank {
 public:
  explicit Rank(Flags flags) : flags_(std::move(flags)) {}
  int Run();

 private:
  // Tells the driver that this rank is affected by the victim in its next call.
  void Near() const { Tell(R"({"near": true})"); }
  bool is_victim() const { return flags_.rank == flags_.victim; }
  // Makes a call, and tells its end. Returns whether it succeeded.
  bool Call(const char* name, const std::function<entrain_status_t()>& call, int64_t limit_ns = 0);
  entrain_status_t Create(const char* name, int rank, int size);
  entrain_status_t Join();
  entrain_status_t Grow();
  // Adds floats whose sum depends on the order of the ranks, and tells the bits of the result.
  bool Check();
  bool Reduce(double from);
  bool Edit(bool save);
  bool Acco();
  bool Leave();
  bool MeetAndWork();
  void GoOn();

  const Flags flags_;
  entrain_runtime_t* runtime_ = nullptr;
  entrain_store_t* store_ = nullptr;
  entrain_comm_t* comm_ = nullptr;
};

bool Rank::Call(const char* name, const std::function<entrain_status_t()>& call, int64_t limit_ns) {
  const int64_t begin = NowNs();
  const entrain_status_t status = call();
  const int64_t end = NowNs();
  entrain_error_t error;
  entrain_error_init(&error);
  if (status < 0) {
    entrain_last_error_record(&error);
  }
  char head[256];
  std::snprintf(head, sizeof(head),
                R"({"call": "%s", "status": "%s", "begin": %.6f, "end": %.6f, "limit": %.6f, )"
                R"("guilty": %d, "phase": %d, )",
                name, entrain_status_name(status), static_cast<double>(begin) * 1e-9,
                static_cast<double>(end) * 1e-9,
                static_cast<double>(limit_ns > 0 ? limit_ns : flags_.timeout_ns) * 1e-9,
                error.guilty_rank, error.phase);
  Tell((head + (R"("operation": )" + Quoted(error.operation)) + R"(, "text": )" +
        Quoted(status < 0 ? error.text : "") + "}")
           .c_str());
  return status == ENTRAIN_OK;
}

entrain_status_t Rank::Create(const char* name, int rank, int size) {
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.runtime = runtime_;
  config.store = store_;
  config.name = name;
  config.rank = rank;
  config.world_size = size;
  config.timeout_ns = flags_.timeout_ns;
  return entrain_comm_create(&config, &comm_);
}

entrain_status_t Rank::Join() {
  entrain_join_config_t config;
  entrain_join_config_init(&config);
  config.runtime = runtime_;
  config.store = store_;
  config.timeout_ns = flags_.timeout_ns;
  config.wait_ns = 2 * flags_.timeout_ns;
  return entrain_comm_join(&config, &comm_);
}

entrain_status_t Rank::Grow() {
  entrain_grow_config_t config;
  entrain_grow_config_init(&config);
  config.store = store_;
  config.min_newcomers = 1;
  config.wait_ns = flags_.timeout_ns;
  entrain_comm_t* grown = nullptr;
  const entrain_status_t status = entrain_comm_grow(comm_, &config, &grown);
  if (grown != nullptr) {
    entrain_comm_destroy(comm_);
    comm_ = grown;
  }
  return status;
}

bool Rank::Check() {
  int32_t rank = 0, size = 0;
  entrain_comm_rank(comm_, &rank);
  entrain_comm_size(comm_, &size);
  std::vector<float> data(kChecked);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = 1.0f / static_cast<float>(3 + flags_.rank * 7 + static_cast<int>(i) % 1013);
  }
  if (!Call("check", [&] {
        return entrain_all_reduce(comm_, data.data(), data.data(), data.size(), ENTRAIN_F32,
                                  ENTRAIN_SUM, nullptr, nullptr);
      })) {
    return false;
  }
  uint64_t bits = 0xcbf29ce484222325u;
  for (const float value : data) {
    uint32_t word;
    std::memcpy(&word, &value, sizeof(word));
    bits = (bits ^ word) * 0x100000001b3u;
  }
  char line[128];
  std::snprintf(line, sizeof(line), R"({"size": %d, "rank": %d, "bits": "%016)" PRIx64 "\"}", size,
                rank, bits);
  Tell(line);
  return true;
}

// The victim's part of a reduction: stops when it has combined this part of its elements.
struct Combining {
  bool stops = false;
  size_t stop_at = 0, combined = 0;
  const char* phase = nullptr;
};

int32_t AddAndStop(void* dst, const void* src, size_t count, entrain_dtype_t /*dtype*/,
                   void* user) {
  auto* const combining = static_cast<Combining*>(user);
  auto* const sums = static_cast<float*>(dst);
  for (size_t i = 0; i < count; ++i) {
    sums[i] += static_cast<const float*>(src)[i];
  }
  combining->combined += count;
  if (combining->stops && combining->combined >= combining->stop_at) {
    Stop(combining->phase);
  }
  return 0;
}

// An all_reduce by a ring, in which each rank combines all but its own part. `from`: the part of
// this after which the victim stops.
bool Rank::Reduce(double from) {
  static Combining combining;  // the function may run longer than the call
  combining.phase = flags_.phase.c_str();
  combining.stops = is_victim();
  const size_t all =
      kElements / static_cast<size_t>(flags_.size) * static_cast<size_t>(flags_.size - 1);
  combining.stop_at = static_cast<size_t>(from * static_cast<double>(all));
  Near();
  entrain_call_options_t options;
  entrain_call_options_init(&options);
  entrain_reduction_user(AddAndStop, &combining, 1, 1, &options.reduction);
  static std::vector<float> data(kElements, static_cast<float>(flags_.rank + 1));
  const bool ok = Call("all_reduce", [&] {
    return entrain_all_reduce(comm_, data.data(), data.data(), data.size(), ENTRAIN_F32,
                              ENTRAIN_REDUCTION, &options, nullptr);
  });
  entrain_reduction_destroy(options.reduction);
  return ok;
}

constexpr int kLayers = 3;
constexpr size_t kLayerElements = 40000;
// The time for agreeing on the ranks that are left: 250 ms, by which ranks may begin after the
// deadline of a call, and 500 ms, for which they wait for a rank that does not answer
// (entrain_comm_shrink; the deadline is 2 s or less).
constexpr int64_t kAgreementNs = (250 + 500) * kMillisecond;

// Rounds of EDiT over ranks that are a replica each. The victim stops in the second round, in the
// middle of its layers, or in the save behind it.
bool Rank::Edit(bool save) {
  static const std::vector<size_t> counts(kLayers, kLayerElements);
  static std::vector<float> params(kLayers * kLayerElements), grads(params.size());
  entrain_mesh_t* mesh = nullptr;
  entrain_shard_t* shard = nullptr;
  entrain_edit_t* edit = nullptr;
  bool ok = Call("edit_create", [&]() -> entrain_status_t {
    entrain_mesh_config_t mesh_config;
    entrain_mesh_config_init(&mesh_config);
    entrain_shard_config_t shard_config;
    entrain_shard_config_init(&shard_config);
    shard_config.layers = kLayers;
    shard_config.layer_counts = counts.data();
    entrain_edit_config_t config;
    entrain_edit_config_init(&config);
    config.outer_optimizer = ENTRAIN_OUTER_SGD;
    config.outer_momentum = 0.5;
    config.on_loss = ENTRAIN_ON_LOSS_FINISH;
    entrain_status_t status = entrain_mesh_create(comm_, &mesh_config, &mesh);
    if (status == ENTRAIN_OK) {
      status = entrain_shard_create(mesh, &shard_config, &shard);
    }
    if (status == ENTRAIN_OK) {
      status = entrain_shard_bind(shard, params.data(), grads.data(), ENTRAIN_F32);
    }
    config.shard = shard;
    return status == ENTRAIN_OK ? entrain_edit_create(mesh, &config, &edit) : status;
  });
  for (int round = 0; round < 4 && ok; ++round) {
    if (round == 2) {
      Near();
    }
    for (size_t i = 0; i < params.size() && round > 0; ++i) {  // the first makes the anchors
      params[i] += 1.0f / static_cast<float>(100 + flags_.rank * 31 + static_cast<int>(i) % 997);
    }
    ok = Call(
        "edit_round",
        [&] {
          int32_t syncing = 0;
          entrain_status_t status = round == 0 ? ENTRAIN_OK : entrain_edit_end_step(edit);
          if (status == ENTRAIN_OK) {
            status = entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr);
          }
          for (int layer = 0; layer < kLayers && status == ENTRAIN_OK; ++layer) {
            if (!save && round == 2 && layer == 1 && is_victim()) {
              Stop(flags_.phase.c_str());
            }
            status = entrain_edit_wait_layer(edit, layer);
          }
          return status;
        },
        flags_.timeout_ns + kAgreementNs);
    if (ok && save && round == 2) {
      if (is_victim()) {
        StopAt(Place::kNewFile, flags_.phase.c_str());
      }
      entrain_checkpoint_config_t config;
      entrain_checkpoint_config_init(&config);
      config.save_dir = flags_.directory.c_str();
      config.full_state_dict = 0;  // each rank writes a file
      ok = Call("edit_save", [&] { return entrain_edit_save(edit, &config, nullptr, nullptr); });
    }
  }
  entrain_edit_info_t info;
  entrain_edit_info_init(&info);
  if (ok && entrain_edit_info(edit, &info) == ENTRAIN_OK) {
    int32_t lost = -1;
    if (info.losses > 0) {
      entrain_edit_loss(edit, 0, &lost, nullptr, nullptr, 0);
    }
    char line[160];
    std::snprintf(line, sizeof(line),
                  R"({"replicas": %d, "lost": %d, "anchor": "%016)" PRIx64 "\"}", info.replicas,
                  lost, info.anchor_checksum);
    Tell(line);
  }
  entrain_edit_destroy(edit);
  entrain_shard_destroy(shard);
  entrain_mesh_destroy(mesh);
  return ok;
}

// Rounds of ACCO. The victim stops in the third round, before it hands over its gradients.
bool Rank::Acco() {
  static std::vector<float> params(kLayers * kLayerElements);
  entrain_acco_t* acco = nullptr;
  entrain_optim_t* optim = nullptr;
  void* gradients = nullptr;
  bool ok = Call("acco_create", [&]() -> entrain_status_t {
    entrain_optim_config_t rule;
    entrain_optim_config_init(&rule);
    entrain_status_t status = entrain_optim_create(&rule, &optim);
    entrain_acco_config_t config;
    entrain_acco_config_init(&config);
    config.params = params.data();
    config.count = params.size();
    config.optim = optim;
    config.limit = 4;  // commits, of two rounds each
    if (status == ENTRAIN_OK) {
      status = entrain_acco_create(comm_, &config, &acco);
    }
    return status == ENTRAIN_OK ? entrain_acco_gradients(acco, &gradients) : status;
  });
  int32_t finished = 0;
  for (int round = 0; ok && finished == 0; ++round) {
    for (size_t i = 0; i < params.size(); ++i) {
      static_cast<float*>(gradients)[i] += 1e-3f * static_cast<float>(flags_.rank + 1);
    }
    if (round == 2 && is_victim()) {
      Stop(flags_.phase.c_str());
    } else if (round == 2) {
      Near();
    }
    ok = Call(
        "acco_round",
        [&] {
          const entrain_status_t status = entrain_acco_add(acco, 1, 1);
          return status == ENTRAIN_OK ? entrain_acco_install(acco, &finished) : status;
        },
        2 * flags_.timeout_ns);  // the round in progress, and the counts of the next
  }
  entrain_acco_destroy(acco);
  entrain_optim_destroy(optim);
  return ok;
}

// The victim leaves while the others are in a call.
bool Rank::Leave() {
  // A rank that has made its communicator may leave while another one still makes it.
  if (!Call("barrier", [&] { return entrain_barrier(comm_, nullptr, nullptr); })) {
    return false;
  }
  if (!is_victim()) {
    Near();
    return Call("barrier", [&] { return entrain_barrier(comm_, nullptr, nullptr); });
  }
  StopAt(Place::kClose, flags_.phase.c_str());
  Call("destroy", [&] {
    entrain_comm_destroy(comm_);
    entrain_runtime_destroy(runtime_);
    return ENTRAIN_OK;
  });
  comm_ = nullptr;
  runtime_ = nullptr;
  Stop(flags_.phase.c_str());
  return true;
}

bool Rank::MeetAndWork() {
  const std::string& phase = flags_.phase;
  const bool joins = phase == "join";
  if (is_victim() && (phase == "connect" || joins)) {
    StopAt(Place::kConnection, phase.c_str());
  } else if (is_victim() && phase == "handshake") {
    StopAt(Place::kFirstSend, phase.c_str());
  }
  if (joins && is_victim()) {
    return Call(
        "join", [&] { return Join(); }, 2 * flags_.timeout_ns);
  }
  if (!Call("create",
            [&] { return Create("world", flags_.rank, flags_.size - (joins ? 1 : 0)); })) {
    return false;
  }
  if (joins) {
    // The time for waiting, and the time for the rest.
    return Call(
        "grow", [&] { return Grow(); }, 2 * flags_.timeout_ns);
  }
  if (phase == "wait") {
    if (is_victim()) {
      Stop(phase.c_str());
    }
    return Reduce(2);
  }
  return phase == "first byte"   ? Reduce(0)
         : phase == "middle"     ? Reduce(0.5)
         : phase == "last byte"  ? Reduce(1)
         : phase == "exchange"   ? Edit(/*save=*/false)
           : phase == "checkpoint" ? Edit(/*save=*/true)
           : phase == "commit" ? Acco()
         : phase == "leave"      ? Leave()
                                 : true;
}

// After an error: with the ranks that are left.
void Rank::GoOn() {
  entrain_comm_t* next = nullptr;
  if (comm_ != nullptr && flags_.phase == "join" &&
      entrain_comm_error(comm_, nullptr) == ENTRAIN_OK) {
    return;
  }
  // A creation may fail on one rank and have succeeded on another one.
  const bool creates =
      flags_.phase == "bootstrap" || flags_.phase == "connect" || flags_.phase == "handshake";
  if (comm_ != nullptr && !creates) {
    Call("shrink", [&] { return entrain_comm_shrink(comm_, nullptr, &next); });
    entrain_comm_destroy(comm_);
    comm_ = next;
    return;
  }
  entrain_comm_destroy(comm_);
  comm_ = nullptr;
  if (!is_victim()) {
    const int rank = flags_.rank - (flags_.rank > flags_.victim ? 1 : 0);
    Call("create again", [&] { return Create("again", rank, flags_.size - 1); });
  }
}

int Rank::Run() {
  if (flags_.proxy != 0) {
    UseProxy(flags_.proxy, flags_.rank);
  }
  entrain_runtime_config_t config;
  entrain_runtime_config_init(&config);
  bool ok = Call("start", [&]() -> entrain_status_t {
    const entrain_status_t status = entrain_runtime_create(&config, &runtime_);
    return status == ENTRAIN_OK
               ? entrain_store_open(flags_.store.c_str(), flags_.timeout_ns, &store_)
               : status;
  });
  ok = ok && MeetAndWork();
  if (ok && comm_ != nullptr) {
    ok = Check();
  }
  if (!ok && runtime_ != nullptr && store_ != nullptr) {
    GoOn();
    if (comm_ != nullptr) {
      Check();
    }
  }
  char line[96];
  std::snprintf(line, sizeof(line), R"({"done": true, "waited": %.6f})",
                static_cast<double>(WaitedForCoresNs()) * 1e-9);
  Tell(line);
  // No rank leaves while another needs it.
  while (true) {
    char end = 0;
    const ssize_t got = read(STDIN_FILENO, &end, 1);
    if (got <= 0 || end == '\n') {
      break;
    }
  }
  Call("destroy", [&] {
    entrain_comm_destroy(comm_);
    entrain_store_destroy(store_);
    entrain_runtime_destroy(runtime_);
    return ENTRAIN_OK;
  });
  return 0;
}

Flags Parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* const value = argv[i + 1];
    if (name == "--rank") {
      flags.rank = std::atoi(value);
    } else if (name == "--size") {
      flags.size = std::atoi(value);
    } else if (name == "--victim") {
      flags.victim = std::atoi(value);
    } else if (name == "--phase") {
      flags.phase = value;
    } else if (name == "--store") {
      flags.store = value;
    } else if (name == "--directory") {
      flags.directory = value;
    } else if (name == "--timeout-ms") {
      flags.timeout_ns = std::atoll(value) * kMillisecond;
    } else if (name == "--proxy") {
      flags.proxy = std::atoi(value);
    } else {
      std::fprintf(stderr, "fault_rank: unknown flag %s\n", argv[i]);
      std::exit(2);
    }
  }
  return flags;
}

// Prints the transports that work here.
int ListTransports() {
  for (const char* const name : {"shm", "tcp", "ucx"}) {
    entrain_runtime_config_t config;
    entrain_runtime_config_init(&config);
    config.transports = name;
    entrain_runtime_t* runtime = nullptr;
    if (entrain_runtime_create(&config, &runtime) == ENTRAIN_OK) {
      std::puts(name);
      entrain_runtime_destroy(runtime);
    }
  }
  return 0;
}

}  // namespace
}  // namespace faults

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--transports") == 0) {
    return faults::ListTransports();
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  faults::KeepLinesApart();
  faults::Rank rank(faults::Parse(argc, argv));
  return rank.Run();
}
