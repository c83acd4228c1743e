// How two processes come to share a segment: over an abstract Unix socket, one dials, the other
// accepts.
//
//   dialer                                    listener
//   connect                                   accept
//   handshake (lib/net/handshake.h)   <--->   handshake           descriptors sent earlier are
//                                                                 thrown away
//   make the segment
//   card, segment, doorbell            --->   check the card and the segment
//                                             wait until Connect has been called here for this
//                                             peer: Admit
//   check the card                    <---    card, doorbell
//
// Afterwards the socket stays open, and its end is the end of the connection; memory is offered
// over it (peer_regions.h).
//
// Thread safety: none. Never blocks; Step is called from Poll.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/cpu_share.h"
#include "lib/net/handshake.h"
#include "lib/net/socket.h"
#include "transports/shm/peer_process.h"
#include "transports/shm/segment.h"
#include "transports/transport.h"

namespace entrain::shm {

// What this process brings to every introduction. Outlives them.
struct Self {
  PeerId id{};
  std::string key;
  Cookie cookie{};    // the peer reads it out of our memory, to see whether and from whom it can
  int doorbell = -1;  // eventfd
  size_t ring_bytes = 0;
  bool pull = true;  // false: never read the peer's memory
  CpuShare cpus;     // of this process
};

// What an introduction ends with.
struct Acquaintance {
  Fd socket, doorbell;  // doorbell: the peer's
  Segment segment;
  int side = 0;  // mine
  PeerProcess process;
  bool pull = false;  // the peer's memory can be read
  CpuShare cpus;      // the peer's
};

// A non-blocking, close-on-exec listening socket of a random abstract name, which is returned in
// `name`.
absl::StatusOr<Fd> ListenAbstract(std::string* name);
// Whether somebody listens there. A system call or three.
bool SomebodyListens(absl::string_view name);

class Introduction {
 public:
  Introduction(const Self* self, absl::string_view dial_name);
  Introduction(const Self* self, Fd accepted);

  // As far as it goes now. True: done, Take is next. An error ends it, and is given again.
  absl::StatusOr<bool> Step();
  // The listener's side may answer. Before or after the peer is known.
  void Admit() { admitted_ = true; }
  // The dialler's side has lost interest: go as far as to say who we are, then end with an error,
  // so that the peer does not wait for us.
  void Leave() { leaving_ = true; }
  bool dialer() const { return dialer_; }
  // Whether peer() has been proved.
  bool peer_known() const { return handshake_.done(); }
  const PeerId& peer() const { return handshake_.peer(); }
  // To be watched for input while it lasts; -1: not connected yet, the listener is busy: try again
  // in some milliseconds.
  int fd() const { return socket_.get(); }
  Acquaintance Take() { return std::move(result_); }

 private:
  enum class Stage { kDial, kHandshake, kOffer, kCard, kAdmission, kDone };
  absl::StatusOr<bool> StepOnce();
  absl::StatusOr<bool> Dial();
  absl::StatusOr<bool> ShakeHands();
  absl::StatusOr<bool> Offer();
  absl::StatusOr<bool> ReadCard();
  absl::StatusOr<bool> Answer();
  absl::Status SendCard(int with_segment);
  absl::Status CheckCard();
  // Reads until `inbox_` has `bytes`; false: not yet.
  absl::StatusOr<bool> Fill(size_t bytes, bool take_descriptors);

  const Self* const self_;
  const bool dialer_;
  const std::string name_;
  Handshake handshake_;
  Stage stage_;
  bool admitted_ = false, leaving_ = false;
  absl::Status failed_;
  Fd socket_;
  std::string inbox_;
  std::vector<Fd> descriptors_;
  Acquaintance result_;
};

}  // namespace entrain::shm
