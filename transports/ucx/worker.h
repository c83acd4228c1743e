// The process's part of UCX: one context, one worker, and what both are set to. UCX's own settings
// (UCX_*) win over ours.
//
// Thread safety: none; the thread that drives the engine.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "transports/ucx/library.h"
#include "transports/ucx/ucx_packet.h"

namespace entrain::ucx {

// Where packets go. From Worker::Progress only.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void OnPacket(const Header& header, ConstBytes payload) = 0;
};

class Worker {
 public:
  // `devices`: what UCX_NET_DEVICES shall be if it is not set; empty: as UCX chooses. `sink`
  // outlives this.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const std::string& devices, Sink* sink);
  // All endpoints go with it.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const Library& ucx() const { return *library_; }
  ucp_worker_h handle() const { return worker_; }
  // As UCX publishes it: bytes.
  const std::string& address() const { return address_; }
  // Of payloads that are packed by calling back (wire.cc).
  ucp_datatype_t packed() const { return packed_; }
  // Readable while armed and something happened.
  int event_fd() const { return event_fd_; }
  // Whatever there is to do, within bounds; false: nothing.
  bool Progress();
  // False: there is something already.
  bool Arm() { return library_->ucp_worker_arm(worker_) == UCS_OK; }

 private:
  explicit Worker(const Library* library) : library_(library) {}
  absl::Status Open(const std::string& devices, Sink* sink);
  absl::Status Configure(ucp_config_t* config, const std::string& devices) const;
  absl::Status Listen(Sink* sink);

  const Library* const library_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_datatype_t packed_ = 0;
  std::string address_;
  int event_fd_ = -1;
};

}  // namespace entrain::ucx
