// The functions of libucp that this folder calls, looked up at run time. The build needs only UCX's
// headers, and links nothing with UCX.
#pragma once

#include <ucp/api/ucp.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace entrain::ucx {

#define ENTRAIN_UCX_FUNCTIONS(EACH)    \
  EACH(ucp_get_version)                \
  EACH(ucp_config_read)                \
  EACH(ucp_config_modify)              \
  EACH(ucp_config_release)             \
  EACH(ucp_init_version)               \
  EACH(ucp_cleanup)                    \
  EACH(ucp_worker_create)              \
  EACH(ucp_worker_destroy)             \
  EACH(ucp_worker_get_address)         \
  EACH(ucp_worker_release_address)     \
  EACH(ucp_worker_progress)            \
  EACH(ucp_worker_get_efd)             \
  EACH(ucp_worker_arm)                 \
  EACH(ucp_worker_set_am_recv_handler) \
  EACH(ucp_ep_create)                  \
  EACH(ucp_ep_flush_nbx)               \
  EACH(ucp_ep_close_nbx)               \
  EACH(ucp_am_send_nbx)                \
  EACH(ucp_dt_create_generic)          \
  EACH(ucp_dt_destroy)                 \
  EACH(ucp_request_check_status)       \
  EACH(ucp_request_free)               \
  EACH(ucs_status_string)

struct Library {
#define ENTRAIN_UCX_MEMBER(name) decltype(&::name) name = nullptr;
  ENTRAIN_UCX_FUNCTIONS(ENTRAIN_UCX_MEMBER)
#undef ENTRAIN_UCX_MEMBER
  unsigned major = 0, minor = 0;  // version of the loaded library

  // Returns kUnavailable, for example "`what`: Destination is unreachable".
  absl::Status Error(ucs_status_t status, absl::string_view what) const;
};

// Loads libucp.so.0 at the first call. Keeps it loaded, because at least one thread of UCX never
// ends. Returns kFailedPrecondition, with the loader's message, if the library cannot be loaded or
// is older than 1.13. Any thread may call this.
absl::StatusOr<const Library*> LoadLibrary();

}  // namespace entrain::ucx
