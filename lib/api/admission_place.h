// The store and the name under which newcomers apply (option admit): the fields admit_store and
// admit_name of entrain_edit_config_t and entrain_acco_config_t.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "include/entrain/store.h"
#include "lib/store/store.h"
#include "lib/train/elastic/applicants.h"

namespace entrain::api {

struct AdmissionPlace {
  OpenStoreFn store;
  std::string name;
};

// `store` and `name` are the values of the two fields. If `store` is NULL, AdmissionPlace::store
// opens the launcher's store. If `name` is NULL, the name is `usual`. If `admits` is false, both
// fields must be NULL.
absl::StatusOr<AdmissionPlace> AdmissionPlaceOf(bool admits, const entrain_store_t* store,
                                                const char* name, const char* usual,
                                                const Security& security);

// Returns the identity of a run: the caller's lines (may be null), and the job's id from the
// environment if there is one.
std::string IdentityOf(const char* identity);

}  // namespace entrain::api
