#include "lib/store/store.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "lib/store/request.h"

namespace entrain {

absl::StatusOr<std::shared_ptr<Store>> OpenStore(absl::string_view url, const Security& security,
                                                 const Stop& stop) {
  absl::string_view where = url;
  if (absl::ConsumePrefix(&where, "mem:")) {
    return OpenMemStore(where);
  }
  if (absl::ConsumePrefix(&where, "file:")) {
    return OpenFileStore(where, stop);
  }
  if (absl::ConsumePrefix(&where, "tcp://")) {
    return OpenTcpStore(where, security, stop);
  }
  if (absl::ConsumePrefix(&where, "local:")) {
    return OpenLocalStore(where, security, stop);
  }
  if (absl::ConsumePrefix(&where, "etcd://")) {
#if ENTRAIN_HAVE_ETCD
    return OpenEtcdStore(where, stop);
#else
    return absl::UnimplementedError(
        absl::StrCat("store URL \"", url, "\": this library was built without etcd"));
#endif
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "store URL \"", url,
      "\": expected mem:NAME, local:NAME, file:DIRECTORY, tcp://HOST:PORT[,HOST:PORT...] "
      "or etcd://HOST:PORT[,HOST:PORT...][/PREFIX]"));
}

}  // namespace entrain
