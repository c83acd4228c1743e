// One HTTP POST after the other, by libcurl, without waiting. Connections stay open between them.
// One thread at a time, except for Wake.
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
  // kFailedPrecondition: there is no libcurl.
  static absl::StatusOr<std::unique_ptr<HttpPost>> Open();
  ~HttpPost();
  HttpPost(const HttpPost&) = delete;
  HttpPost& operator=(const HttpPost&) = delete;

  // Begins a POST of `body`, and forgets the one before. `resolved`: empty, or the addresses of the
  // URL's host as libcurl's CURLOPT_RESOLVE takes them, so that libcurl looks up no name.
  void Start(const std::string& url, const std::string& resolved, std::string body);
  // Moves bytes, and waits up to `ms` milliseconds for some to come.
  void Step(int ms);
  // Ends a Step of another thread that waits, or the next one. Any thread.
  void Wake();
  // Ends the POST under way, and its connection with it.
  void Stop();

  // Returns true if no POST is under way: the whole answer is there, or an error.
  bool done() const { return done_; }
  // Once it is done: the connection's error (kUnavailable), else OK. An answer of any code is OK.
  const absl::Status& status() const { return status_; }
  int code() const { return code_; }
  // Returns the bytes of the answer that have come so far. The caller may take some away.
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
