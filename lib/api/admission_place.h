// The place where newcomers apply (option admit): the fields admit_store and admit_name of the
// configs of EDiT and ACCO.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "include/entrain/store.h"
#include "lib/store/store.h"
#include "lib/train/applicants.h"

namespace entrain::api {

struct AdmissionPlace {
  OpenStoreFn store;
  std::string name;
};

// `store` and `name` are these fields, which may be NULL. If `store` is NULL, the launcher's store
// is used and is opened when it is needed. If `name` is NULL, the name is `usual`. If `admits` is
// false, both fields must be NULL.
absl::StatusOr<AdmissionPlace> AdmissionPlaceOf(bool admits, const entrain_store_t* store,
                                                const char* name, const char* usual,
                                                const Security& security);

}  // namespace entrain::api
