#include "lib/store/http_post.h"

#include <utility>

#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/net/fork_close.h"

namespace entrain {
namespace {

constexpr long kConnectMs = 2000;
constexpr size_t kMaxAnswer = size_t{64} << 20;

size_t Take(char* bytes, size_t, size_t count, void* user) {
  auto* const answer = static_cast<std::string*>(user);
  if (answer->size() + count > kMaxAnswer) {
    return 0;  // libcurl then fails the transfer
  }
  answer->append(bytes, count);
  return count;
}

curl_socket_t OpenSocket(void*, curlsocktype, curl_sockaddr* where) {
  Fd fd = OpenClosedOnFork(
      [&] { return socket(where->family, where->socktype | SOCK_CLOEXEC, where->protocol); });
  return fd.valid() ? fd.Release() : CURL_SOCKET_BAD;
}

int CloseSocket(void*, curl_socket_t fd) {
  CloseFd(fd);
  return 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpPost>> HttpPost::Open() {
  const auto curl = LoadCurl();
  if (!curl.ok()) {
    return curl.status();
  }
  CURLM* const multi = (*curl)->curl_multi_init();
  CURL* const easy = (*curl)->curl_easy_init();
  if (multi == nullptr || easy == nullptr) {
    (*curl)->curl_easy_cleanup(easy);
    (*curl)->curl_multi_cleanup(multi);
    return absl::ResourceExhaustedError(
        "libcurl cannot make a connection: no memory or descriptors");
  }
  return std::unique_ptr<HttpPost>(new HttpPost(**curl, multi, easy));
}

HttpPost::HttpPost(const CurlLibrary& curl, CURLM* multi, CURL* easy)
    : curl_(curl), multi_(multi), easy_(easy), error_(CURL_ERROR_SIZE, '\0') {
  // "Expect:" switches off a round trip before long bodies. Because of the last header, an etcd
  // member ends a watch if the member is cut off from the other members.
  for (const char* const header :
       {"Content-Type: application/json", "Expect:", "Grpc-Metadata-hasleader: true"}) {
    headers_ = curl_.curl_slist_append(headers_, header);
  }
  curl_.curl_easy_setopt(easy_, CURLOPT_HTTPHEADER, headers_);
  curl_.curl_easy_setopt(easy_, CURLOPT_POST, 1L);
  curl_.curl_easy_setopt(easy_, CURLOPT_PROTOCOLS_STR, "http");
  curl_.curl_easy_setopt(easy_, CURLOPT_NOPROXY, "*");
  curl_.curl_easy_setopt(easy_, CURLOPT_NOSIGNAL, 1L);
  curl_.curl_easy_setopt(easy_, CURLOPT_CONNECTTIMEOUT_MS, kConnectMs);
  curl_.curl_easy_setopt(easy_, CURLOPT_ERRORBUFFER, error_.data());
  curl_.curl_easy_setopt(easy_, CURLOPT_WRITEFUNCTION, &Take);
  curl_.curl_easy_setopt(easy_, CURLOPT_WRITEDATA, &answer_);
  curl_.curl_easy_setopt(easy_, CURLOPT_OPENSOCKETFUNCTION, &OpenSocket);
  curl_.curl_easy_setopt(easy_, CURLOPT_CLOSESOCKETFUNCTION, &CloseSocket);
}

HttpPost::~HttpPost() {
  Stop();
  curl_.curl_multi_cleanup(multi_);
  curl_.curl_easy_cleanup(easy_);
  curl_.curl_slist_free_all(headers_);
  curl_.curl_slist_free_all(resolved_);
}

void HttpPost::Start(const std::string& url, const std::string& resolved, std::string body) {
  Stop();
  body_ = std::move(body);
  answer_.clear();
  error_.assign(CURL_ERROR_SIZE, '\0');
  status_ = absl::OkStatus();
  code_ = 0;
  curl_.curl_easy_setopt(easy_, CURLOPT_ERRORBUFFER, error_.data());
  curl_.curl_easy_setopt(easy_, CURLOPT_URL, url.c_str());
  curl_.curl_slist_free_all(std::exchange(resolved_, nullptr));
  resolved_ = resolved.empty() ? nullptr : curl_.curl_slist_append(nullptr, resolved.c_str());
  curl_.curl_easy_setopt(easy_, CURLOPT_RESOLVE, resolved_);
  curl_.curl_easy_setopt(easy_, CURLOPT_POSTFIELDS, body_.data());
  curl_.curl_easy_setopt(easy_, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body_.size()));
  done_ = false;
  if (curl_.curl_multi_add_handle(multi_, easy_) != CURLM_OK) {
    End(CURLE_OUT_OF_MEMORY);
    return;
  }
  Step(0);
}

void HttpPost::Step(int ms) {
  if (ms > 0) {
    curl_.curl_multi_poll(multi_, nullptr, 0, ms, nullptr);
  }
  int running = 0, left = 0;
  curl_.curl_multi_perform(multi_, &running);
  while (CURLMsg* const message = curl_.curl_multi_info_read(multi_, &left)) {
    if (message->msg == CURLMSG_DONE && !done_) {
      End(message->data.result);
    }
  }
}

void HttpPost::Wake() {
  curl_.curl_multi_wakeup(multi_);
}

void HttpPost::Stop() {
  if (!done_) {
    curl_.curl_multi_remove_handle(multi_, easy_);
    done_ = true;
  }
}

void HttpPost::End(CURLcode result) {
  long code = 0;
  curl_.curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &code);
  code_ = static_cast<int>(code);
  if (result != CURLE_OK) {
    const char* const more = error_.c_str();
    status_ = absl::UnavailableError(*more != '\0' ? more : curl_.curl_easy_strerror(result));
  }
  Stop();
}

}  // namespace entrain
