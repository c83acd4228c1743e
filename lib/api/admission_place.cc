#include "lib/api/admission_place.h"

#include "absl/strings/str_cat.h"

#include "lib/api/arguments.h"
#include "lib/api/environment.h"
#include "lib/api/handles.h"
#include "lib/base/config.h"
#include "lib/base/status.h"
#include "lib/comm/launch/launcher.h"

namespace entrain::api {

absl::StatusOr<AdmissionPlace> AdmissionPlaceOf(bool admits, const entrain_store_t* store,
                                                const char* name, const char* usual,
                                                const Security& security) {
  if (!admits && (store != nullptr || name != nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat(store != nullptr ? absl::StrCat("admit_store: ", store->store->url())
                                      : absl::StrCat("admit_name: \"", name, "\""),
                     " has no effect without admit; set both"));
  }
  AdmissionPlace place;
  place.name = name == nullptr ? usual : name;
  ENTRAIN_RETURN_IF_ERROR(Annotate(CheckName(place.name), "admit_name"));
  if (store == nullptr) {
    place.store = [security](const Stop& stop) { return StoreFromEnvironment(security, stop); };
    return place;
  }
  if (store->store->IsOfFunctions()) {
    return absl::InvalidArgumentError(
        absl::StrCat("admit_store: ", store->store->url(),
                     " is made of functions, which no thread of the library may call"));
  }
  place.store = [opened = store->store](const Stop&) { return opened; };
  return place;
}

std::string IdentityOf(const char* identity) {
  std::string text = identity == nullptr ? "" : identity;
  if (const auto run = GetEnv(entrain::kRunId); run.has_value()) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", entrain::kRunId, "=", *run);
  }
  return text;
}

}  // namespace entrain::api
