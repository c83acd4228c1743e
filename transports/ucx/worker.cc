#include "transports/ucx/worker.h"

#include <cstring>

#include "absl/strings/str_cat.h"

#include "lib/base/config.h"
#include "lib/base/status.h"
#include "transports/ucx/ways.h"
#include "transports/ucx/wire.h"

namespace entrain::ucx {
namespace {

constexpr int kTurns = 8;  // calls of UCX's progress per turn

// Settings of UCX that apply unless the environment sets them (UCX_`variable`). In 1.13,
// ucp_config_modify uses another name for a transport's setting, without the transport's prefix.
struct Setting {
  const char *variable, *name_in_1_13, *name, *value;
  const char* transports;  // transports that have the setting; null: UCX itself
};
constexpr char kMm[] = "posix,sysv";
constexpr Setting kSettings[] = {
    // If no socket reports a peer's death, UCX notices it by keep-alive. Within a second, there are
    // three rounds.
    {"KEEPALIVE_INTERVAL", "KEEPALIVE_INTERVAL", "KEEPALIVE_INTERVAL", "250ms", nullptr},
    // The caller's memory is never registered with UCX, so UCX need not know when this memory is
    // freed.
    {"MEMTYPE_CACHE", "MEMTYPE_CACHE", "MEMTYPE_CACHE", "n", nullptr},
    {"RCACHE_ENABLE", "RCACHE_ENABLE", "RCACHE_ENABLE", "n", nullptr},
    // Without this setting UCX does not use shared memory for endpoints that report failures.
    {"MM_ERROR_HANDLING", "MM_ERROR_HANDLING", "MM_ERROR_HANDLING", "y", kMm},
    // A packet is one fragment of less than 64 KiB, because UCX counts in 16 bits. A receiver has
    // 64 fragments in shared memory, and may add 128 more.
    {"MM_SEG_SIZE", "MM_SEG_SIZE", "MM_SEG_SIZE", "61K", kMm},
    {"MM_RX_BUFS_GROW", "MM_RX_BUFS_GROW", "MM_RX_BUFS_GROW", "128", kMm},
    {"TCP_RX_SEG_SIZE", "RX_SEG_SIZE", "TCP_RX_SEG_SIZE", "62K", "tcp"},
    {"TCP_TX_SEG_SIZE", "TX_SEG_SIZE", "TCP_TX_SEG_SIZE", "62K", "tcp"},
};

ucs_status_t OnMessage(void* arg, const void* header, size_t header_bytes, void* data, size_t bytes,
                       const ucp_am_recv_param_t* param) {
  Header packet;
  // Drops messages of other programs, and messages that arrive by UCX's own rendezvous. This
  // library does not use UCX's rendezvous.
  if (header_bytes == sizeof(packet) && (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
    std::memcpy(&packet, header, sizeof(packet));
    static_cast<Sink*>(arg)->OnPacket(packet, {static_cast<const std::byte*>(data), bytes});
  }
  return UCS_OK;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(const std::string& devices, Sink* sink) {
  ENTRAIN_ASSIGN_OR_RETURN(const Library* const library, LoadLibrary());
  std::unique_ptr<Worker> worker(new Worker(library));
  ENTRAIN_RETURN_IF_ERROR(worker->Open(devices, sink));
  return worker;
}

Worker::~Worker() {
  if (worker_ != nullptr) {
    library_->ucp_worker_destroy(worker_);
  }
  if (packed_ != 0) {
    library_->ucp_dt_destroy(packed_);
  }
  if (context_ != nullptr) {
    library_->ucp_cleanup(context_);
  }
}

absl::Status Worker::Configure(ucp_config_t* config, const std::string& devices) const {
  const auto set = [&](const char* variable, const char* name, const char* value) {
    if (GetEnv(absl::StrCat("UCX_", variable).c_str()).has_value()) {
      return absl::OkStatus();
    }
    const ucs_status_t status = library_->ucp_config_modify(config, name, value);
    return status == UCS_OK ? absl::OkStatus()
                            : library_->Error(status, absl::StrCat("UCX_", variable, "=", value));
  };
  const std::string tls = WaysOf(GetEnv("UCX_TLS")).tls;
  if (const ucs_status_t status = library_->ucp_config_modify(config, "TLS", tls.c_str());
      status != UCS_OK) {
    return library_->Error(status, absl::StrCat("UCX_TLS=", tls));
  }
  for (const Setting& setting : kSettings) {
    if (setting.transports == nullptr || Allows(tls, setting.transports)) {
      const bool old = library_->minor == 13;
      ENTRAIN_RETURN_IF_ERROR(
          set(setting.variable, old ? setting.name_in_1_13 : setting.name, setting.value));
    }
  }
  constexpr char kDevices[] = "NET_DEVICES";
  return devices.empty() ? absl::OkStatus() : set(kDevices, kDevices, devices.c_str());
}

absl::Status Worker::Open(const std::string& devices, Sink* sink) {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t read = library_->ucp_config_read(nullptr, nullptr, &config);
      read != UCS_OK) {
    return library_->Error(read, "reading the settings UCX_*");
  }
  const absl::Status configured = Configure(config, devices);
  ucs_status_t status = UCS_OK;
  if (configured.ok()) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    status = library_->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  }
  library_->ucp_config_release(config);
  ENTRAIN_RETURN_IF_ERROR(configured);
  if (status != UCS_OK) {
    return library_->Error(status, "ucp_init");
  }
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // several threads use the worker, but only one
                                                    // at a time
  status = library_->ucp_worker_create(context_, &params, &worker_);
  return status == UCS_OK ? Listen(sink) : library_->Error(status, "ucp_worker_create");
}

absl::Status Worker::Listen(Sink* sink) {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kPackets;
  handler.cb = OnMessage;
  handler.arg = sink;
  ucs_status_t status = library_->ucp_worker_set_am_recv_handler(worker_, &handler);
  if (status != UCS_OK) {
    return library_->Error(status, "ucp_worker_set_am_recv_handler");
  }
  status = library_->ucp_dt_create_generic(&kPacking, nullptr, &packed_);
  if (status != UCS_OK) {
    packed_ = 0;
    return library_->Error(status, "ucp_dt_create_generic");
  }
  status = library_->ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) {
    return library_->Error(status, "ucp_worker_get_efd");
  }
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  status = library_->ucp_worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) {
    return library_->Error(status, "ucp_worker_get_address");
  }
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  library_->ucp_worker_release_address(worker_, address);
  return absl::OkStatus();
}

bool Worker::Progress() {
  int turns = 0;
  while (turns < kTurns && library_->ucp_worker_progress(worker_) != 0) {
    ++turns;
  }
  return turns > 0;
}

}  // namespace entrain::ucx
