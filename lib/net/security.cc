#include "lib/net/security.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/net/interfaces.h"
#include "lib/net/key_file.h"

namespace entrain {
namespace {

std::string Setting(const std::string& given, const char* variable) {
  return given.empty() ? GetEnv(variable).value_or("") : given;
}

absl::StatusOr<bool> Flag(const char* variable, absl::string_view off, absl::string_view on) {
  const std::string text = GetEnv(variable).value_or("");
  if (text != on && text != off && !text.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(variable, " \"", text, "\": expected ", off, " or ", on));
  }
  return text == on;
}

// Returns true if both ends are on this host, so that the kernel delivers the bytes itself.
bool OnThisHost(const Address& peer) {
  return peer.IsLoopback() || IsLocal(peer);
}

}  // namespace

void Security::UseKey() {
  if (!key.empty()) {
    absl::StatusOr<std::shared_ptr<const TlsContext>> made = TlsContext::ForKey(key);
    if (made.ok()) {
      tls = *std::move(made);
    } else {
      // Connections that want TLS will fail with an error that names the reason.
      ENTRAIN_LOG(kError, "the key cannot be used for TLS: ", made.status().message());
    }
  }
}

Offer Security::OfferTo(const Address& peer) const {
  if (peer.IsAny()) {
    return {};
  }
  const bool able = !key.empty() || !files.empty();
  const bool leaves = !OnThisHost(peer);
  return {.tls = able ? leaves || within_host : leaves && !insecure,
          .certificates = !files.empty(),
          .checksums = checksums};
}

absl::StatusOr<Security> LoadSecurity(const SecurityPaths& given) {
  std::string key;
  if (const std::string path = Setting(given.key_file, "ENTRAIN_KEY_FILE"); !path.empty()) {
    ENTRAIN_ASSIGN_OR_RETURN(key, ReadKeyFile(path));
  }
  Security security(key);
  security.files = {.certificate = Setting(given.tls.certificate, "ENTRAIN_TLS_CERT"),
                    .key = Setting(given.tls.key, "ENTRAIN_TLS_KEY"),
                    .authorities = Setting(given.tls.authorities, "ENTRAIN_TLS_CA")};
  if (!security.files.empty()) {
    ENTRAIN_ASSIGN_OR_RETURN(security.tls, TlsContext::ForCertificates(security.files));
  }
  ENTRAIN_ASSIGN_OR_RETURN(security.within_host, Flag("ENTRAIN_TLS", "hosts", "all"));
  ENTRAIN_ASSIGN_OR_RETURN(security.insecure, Flag("ENTRAIN_INSECURE", "0", "1"));
  ENTRAIN_ASSIGN_OR_RETURN(security.checksums, Flag("ENTRAIN_CRC", "0", "1"));
  return security;
}

}  // namespace entrain
