#include "lib/store/curl_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace entrain {
namespace {

constexpr char kName[] = "libcurl.so.4";

absl::StatusOr<CurlLibrary> Load() {
  void* const handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("a store of etcd needs libcurl, which cannot be loaded: ", dlerror()));
  }
  CurlLibrary library;
  const char* missing = nullptr;
#define ENTRAIN_CURL_LOOK_UP(name)                                               \
  library.name = reinterpret_cast<decltype(library.name)>(dlsym(handle, #name)); \
  missing = library.name == nullptr ? #name : missing;
  ENTRAIN_CURL_FUNCTIONS(ENTRAIN_CURL_LOOK_UP)
#undef ENTRAIN_CURL_LOOK_UP
  if (missing != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(kName, " has no function ", missing));
  }
  if (library.curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    return absl::FailedPreconditionError(absl::StrCat(kName, " cannot be initialised"));
  }
  return library;
}

}  // namespace

absl::StatusOr<const CurlLibrary*> LoadCurl() {
  static const auto* const loaded = new absl::StatusOr<CurlLibrary>(Load());
  if (!loaded->ok()) {
    return loaded->status();
  }
  return &**loaded;
}

}  // namespace entrain
