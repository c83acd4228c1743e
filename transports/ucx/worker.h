// UCX in this process: one context and one worker, with their settings. A user's own UCX settings
// (UCX_*) override those of this library.
//
// Thread safety: none; only the driver calls.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "transports/ucx/library.h"
#include "transports/ucx/ucx_packet.h"

namespace entrain::ucx {

// The receiver of packets. Called from Worker::Progress only.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void OnPacket(const Header& header, ConstBytes payload) = 0;
};

class Worker {
 public:
  // `devices` is the value of UCX_NET_DEVICES if the user has not set this variable. If `devices`
  // is empty, UCX chooses. `sink` must outlive the object.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const std::string& devices, Sink* sink);
  // Also destroys all endpoints.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const Library& ucx() const { return *library_; }
  ucp_worker_h handle() const { return worker_; }
  // Returns the worker's address in UCX's binary form.
  const std::string& address() const { return address_; }
  // Returns the type of payloads that UCX packs by callback (wire.cc).
  ucp_datatype_t packed() const { return packed_; }
  // Returns a descriptor that is readable if an event has happened since Arm returned true.
  int event_fd() const { return event_fd_; }
  // Does pending work of UCX, up to a limit. Returns false if there was no work.
  bool Progress();
  // Arms event_fd. Returns false if UCX already has work, so that the caller must not sleep.
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
