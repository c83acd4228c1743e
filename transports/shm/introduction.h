// The introduction: two processes connect over an abstract Unix socket, and establish a shared
// segment. One process dials, the other one accepts.
//
//   dialer                                    listener
//   connect                                   accept
//   handshake (lib/net/handshake.h)   <--->   handshake           descriptors sent earlier are
//                                                                 thrown away
//   make the segment
//   card, segment, doorbell            --->   check the card and the segment
//                                             wait until Connect has been called on this side for
//                                             the peer: Admit
//   check the card                    <---    card, doorbell
//
// Afterwards the socket stays open. When one side closes it, the connection has ended. Each side
// may also offer memory over this socket (peer_regions.h).
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

// The data of this process that all its introductions use. Must outlive all introductions.
struct Self {
  PeerId id{};
  std::string key;
  Cookie cookie{};    // the peer reads the cookie in this process's memory, as a proof that it can
                      // read this memory
  int doorbell = -1;  // eventfd
  size_t ring_bytes = 0;
  bool pull = true;  // false: never reads the peer's memory
  CpuShare cpus;     // CPU share of this process
};

// The result of an introduction.
struct Acquaintance {
  Fd socket, doorbell;  // doorbell: that of the peer
  Segment segment;
  int side = 0;  // this process's side
  PeerProcess process;
  bool pull = false;  // the peer's memory can be read
  CpuShare cpus;      // CPU share of the peer
};

// Returns a non-blocking, close-on-exec listening socket with a random abstract name, and the name.
absl::StatusOr<Fd> ListenAbstract(std::string* name);
// Returns true if a process listens at `name`. Costs up to three system calls.
bool SomebodyListens(absl::string_view name);

class Introduction {
 public:
  Introduction(const Self* self, absl::string_view dial_name);
  Introduction(const Self* self, Fd accepted);

  // Continues as far as possible without blocking. Returns true when the introduction is done. The
  // caller must then call Take. An error ends the introduction; later calls return the same error.
  absl::StatusOr<bool> Step();
  // Allows the listening side to answer. May be called before or after the peer is known.
  void Admit() { admitted_ = true; }
  // Gives up. Only for the dialling side. The introduction continues until the peer knows which
  // process dialled. Then the introduction ends with an error and closes the socket. So the peer
  // learns that it need not wait.
  void Leave() { leaving_ = true; }
  bool dialer() const { return dialer_; }
  // Returns true if the identity of peer() has been proved.
  bool peer_known() const { return handshake_.done(); }
  const PeerId& peer() const { return handshake_.peer(); }
  // Returns the socket to watch for input. Returns -1 if the socket is not connected yet because
  // the listener is busy; the caller must then call Step again after some milliseconds.
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
  // Reads until `inbox_` has `bytes` bytes. Returns false if fewer bytes have arrived so far.
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
