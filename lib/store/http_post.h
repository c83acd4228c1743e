// Sends HTTP POSTs with libcurl, one after the other, without blocking. Connections stay open
// between two POSTs. Thread safety: one thread at a time, except for Wake.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/store/curl_library.h"

namespace entrain {

class HttpPost {
 public:
  // Returns kFailedPrecondition if there is no libcurl.
  static absl::StatusOr<std::unique_ptr<HttpPost>> Open();
  ~HttpPost();
  HttpPost(const HttpPost&) = delete;
  HttpPost& operator=(const HttpPost&) = delete;

  // Ends the previous POST, and begins a POST of `body`. If `resolved` is not empty, it has the
  // addresses of the URL's host in the form of CURLOPT_RESOLVE, and libcurl does not look up the
  // host.
  void Start(const std::string& url, const std::string& resolved, std::string body);
  // Sends and receives bytes. Waits up to `ms` milliseconds until some bytes can be sent or
  // received.
  void Step(int ms);
  // If a Step waits in another thread, makes this Step return. Otherwise makes the next Step return
  // at once. Any thread may call this.
  void Wake();
  // Ends the POST that is under way, and closes its connection.
  void Stop();

  // Returns true if no POST is under way: the whole answer or an error has come.
  bool done() const { return done_; }
  // Valid once the POST is done. Returns the connection's error (kUnavailable), or OK if an answer
  // came, with any HTTP code.
  const absl::Status& status() const { return status_; }
  int code() const { return code_; }
  // Returns the bytes of the answer that have arrived so far. The caller may remove bytes.
  std::string& answer() { return answer_; }

 private:
  HttpPost(const CurlLibrary& curl, CURLM* multi, CURL* easy);
  void End(CURLcode result);

  const CurlLibrary& curl_;
  CURLM* const multi_;
  CURL* const easy_;
  curl_slist* headers_ = nullptr;
  curl_slist* resolved_ = nullptr;
  std::string body_, answer_, error_;
  absl::Status status_;
  int code_ = 0;
  bool done_ = true;
};

}  // namespace entrain
