// The protection of a process's connections: the pre-shared key, TLS, and where each of them is
// used.
//
// Connections between hosts use TLS if the process has a key or certificates. If it has neither,
// connections between hosts are plain if `insecure` is true, and otherwise refused. Connections
// within a host stay in the kernel's memory. They use TLS only if `within_host` is true. A key also
// guards every connection's handshake (handshake.h).
#pragma once

#include <memory>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/net/handshake.h"
#include "lib/net/socket.h"
#include "lib/net/tls_context.h"

namespace entrain {

struct Security {
  Security() = default;
  // Security by a key alone. An empty key means no security.
  template <typename Text,
            typename = std::enable_if_t<std::is_convertible_v<const Text&, absl::string_view>>>
  Security(const Text& the_key) : key(absl::string_view(the_key)) {  // NOLINT(runtime/explicit)
    UseKey();
  }

  // Returns true if all settings for connections are equal. Does not compare `checksums`.
  friend bool operator==(const Security& a, const Security& b) {
    return a.key == b.key && a.files == b.files && a.within_host == b.within_host &&
           a.insecure == b.insecure;
  }
  // Returns the offer of this side's hello to the other end of a connection. `peer` is the address
  // of the other end. The default address (0.0.0.0:0) stands for a local socket. A local socket
  // never uses TLS.
  Offer OfferTo(const Address& peer) const;
  // Returns true if plain traffic may go to another host. For transports that TLS cannot protect.
  bool MayLeaveHostPlain() const { return !key.empty() || insecure; }

  std::string key;  // empty: none
  TlsFiles files;   // files of the certificates; empty: none
  // TLS by certificates if `files` is not empty, otherwise by the key. Null: there are no
  // certificates and no key.
  std::shared_ptr<const TlsContext> tls;
  bool within_host = false;  // ENTRAIN_TLS=all
  bool insecure = false;     // ENTRAIN_INSECURE=1
  bool checksums = false;    // ENTRAIN_CRC=1

 private:
  void UseKey();
};

// The paths of the key and of the certificates, as a program gives them. If a path is empty, the
// path is taken from the environment.
struct SecurityPaths {
  std::string key_file;  // ENTRAIN_KEY_FILE
  TlsFiles tls;          // ENTRAIN_TLS_CERT, ENTRAIN_TLS_KEY, ENTRAIN_TLS_CA
};
// Reads the files, and ENTRAIN_TLS, ENTRAIN_INSECURE and ENTRAIN_CRC. kFailedPrecondition names a
// file that cannot be used. kInvalidArgument names a malformed setting, or says that only some of
// the three paths for TLS are given.
absl::StatusOr<Security> LoadSecurity(const SecurityPaths& given);

}  // namespace entrain
