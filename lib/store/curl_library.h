// The functions of libcurl that the etcd store calls, found at run time. The library is not linked
// with libcurl. A build needs only libcurl's headers.
#pragma once

#include <curl/curl.h>

#include "absl/status/statusor.h"

namespace entrain {

#define ENTRAIN_CURL_FUNCTIONS(EACH) \
  EACH(curl_global_init)             \
  EACH(curl_easy_init)               \
  EACH(curl_easy_setopt)             \
  EACH(curl_easy_getinfo)            \
  EACH(curl_easy_cleanup)            \
  EACH(curl_easy_strerror)           \
  EACH(curl_slist_append)            \
  EACH(curl_slist_free_all)          \
  EACH(curl_multi_init)              \
  EACH(curl_multi_cleanup)           \
  EACH(curl_multi_add_handle)        \
  EACH(curl_multi_remove_handle)     \
  EACH(curl_multi_perform)           \
  EACH(curl_multi_info_read)         \
  EACH(curl_multi_poll)              \
  EACH(curl_multi_wakeup)

struct CurlLibrary {
#define ENTRAIN_CURL_MEMBER(name) decltype(&::name) name = nullptr;
  ENTRAIN_CURL_FUNCTIONS(ENTRAIN_CURL_MEMBER)
#undef ENTRAIN_CURL_MEMBER
};

// Loads libcurl.so.4 at the first call and keeps it loaded. Returns kFailedPrecondition, with the
// loader's message, if the library cannot be loaded or lacks a function (curl_multi_wakeup came
// with 7.68). Any thread may call this.
absl::StatusOr<const CurlLibrary*> LoadCurl();

}  // namespace entrain
