#include "lib/store/etcd_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "lib/base/json.h"
#include "lib/base/status.h"
#include "lib/base/text.h"

namespace entrain {
namespace {

using Json = nlohmann::json;

// If a member has not answered a request after this time, the client tries the next member. An
// election takes one to two seconds with etcd's default settings. The client does not wait for the
// election at one member.
constexpr int64_t kAnswerNs = 2 * kSecond;
constexpr int kRetryFirstMs = 10, kRetryMostMs = 500;
constexpr size_t kMaxIdle = 8;

// ---- JSON in the form of etcd's gateway: bytes are in base64, integers of 64 bits are texts, and
// a JSON member with the value 0 or "" may be missing.

// Returns the JSON member, or a null value if there is none.
const Json& At(const Json& object, const char* name) {
  static const auto* const none = new Json();
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : *none;
}

int64_t NumberAt(const Json& object, const char* name) {
  const Json& value = At(object, name);
  int64_t number = 0;
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  return value.is_string() && absl::SimpleAtoi(value.get_ref<const std::string&>(), &number)
             ? number
             : 0;
}

std::string TextAt(const Json& object, const char* name) {
  const Json& value = At(object, name);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::string BytesAt(const Json& object, const char* name) {
  std::string bytes;
  const Json& value = At(object, name);
  if (value.is_string()) {
    absl::Base64Unescape(value.get_ref<const std::string&>(), &bytes);
  }
  return bytes;
}

Json AsJson(const EtcdStep& step) {
  Json body = {{"key", absl::Base64Escape(step.key)}};
  if (step.kind == EtcdStep::Kind::kPut) {
    body["value"] = absl::Base64Escape(step.value);
    body["lease"] = absl::StrCat(step.lease);
    return {{"request_put", std::move(body)}};
  }
  if (step.kind == EtcdStep::Kind::kDelete) {
    return {{"request_delete_range", std::move(body)}};
  }
  if (!step.end.empty()) {
    body["range_end"] = absl::Base64Escape(step.end);
  }
  if (step.limit > 0) {
    body["limit"] = absl::StrCat(step.limit);
  }
  body["keys_only"] = step.rows == EtcdStep::Rows::kKeys;
  body["count_only"] = step.rows == EtcdStep::Rows::kCount;
  return {{"request_range", std::move(body)}};
}

Json AsJson(const std::vector<EtcdStep>& steps) {
  Json all = Json::array();
  for (const EtcdStep& step : steps) {
    all.push_back(AsJson(step));
  }
  return all;
}

std::string AsText(const EtcdTransaction& transaction) {
  Json compares = Json::array();
  for (const auto& [key, revision] : transaction.compares) {
    compares.push_back({{"target", "MOD"},
                        {"result", "EQUAL"},
                        {"key", absl::Base64Escape(key)},
                        {"mod_revision", absl::StrCat(revision)}});
  }
  return Json({{"compare", std::move(compares)},
               {"success", AsJson(transaction.then)},
               {"failure", AsJson(transaction.otherwise)}})
      .dump();
}

EtcdReply::Read ReadFrom(const Json& range) {
  EtcdReply::Read read;
  read.count = NumberAt(range, "count");
  const Json& rows = At(range, "kvs");
  for (const Json& row : rows.is_array() ? rows : Json::array()) {
    read.rows.push_back({BytesAt(row, "key"), BytesAt(row, "value"), NumberAt(row, "mod_revision"),
                         NumberAt(row, "lease")});
  }
  return read;
}

// Returns the error of an answer whose code is not 200, or whose body is an error. kUnavailable:
// another member may succeed.
absl::Status ErrorOf(int http, const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  const Json& error = At(json, "error");  // a text, or the error of a stream
  const std::string text =
      CleanText(error.is_object() ? TextAt(error, "message") : TextAt(json, "error"));
  if (text.empty()) {
    return absl::UnavailableError(absl::StrCat("HTTP status ", http));
  }
  switch (NumberAt(json, "code")) {  // codes of gRPC
    case 3:
      return absl::InvalidArgumentError(text);
    case 5:
      return absl::NotFoundError(text);
    case 8:
      return absl::ResourceExhaustedError(text);
    case 7:   // permission denied
    case 9:   // failed precondition
    case 12:  // unimplemented
    case 16:  // unauthenticated
      return absl::FailedPreconditionError(text);
    default:
      return absl::UnavailableError(text);
  }
}

absl::StatusOr<Json> Parsed(const absl::StatusOr<std::string>& body) {
  if (!body.ok()) {
    return body.status();
  }
  Json json = Json::parse(*body, nullptr, false);
  return json.is_object() ? absl::StatusOr<Json>(std::move(json))
                          : absl::DataLossError("etcd's answer is no JSON object");
}

}  // namespace

EtcdStep EtcdStep::Put(std::string key, std::string value, int64_t lease) {
  EtcdStep step;
  step.kind = Kind::kPut;
  step.key = std::move(key);
  step.value = std::move(value);
  step.lease = lease;
  return step;
}

EtcdStep EtcdStep::Read(std::string key, Rows rows) {
  return ReadRange(std::move(key), "", rows);
}

EtcdStep EtcdStep::ReadRange(std::string key, std::string end, Rows rows, int64_t limit) {
  EtcdStep step;
  step.key = std::move(key);
  step.end = std::move(end);
  step.rows = rows;
  step.limit = limit;
  return step;
}

EtcdStep EtcdStep::Delete(std::string key) {
  EtcdStep step;
  step.kind = Kind::kDelete;
  step.key = std::move(key);
  return step;
}

// ---- Requests

EtcdClient::EtcdClient(std::string url, std::vector<HostPort> members)
    : url_(std::move(url)), members_(std::move(members)), resolved_(members_.size()) {}

absl::StatusOr<std::unique_ptr<HttpPost>> EtcdClient::Take() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (idle_.empty()) {
    return HttpPost::Open();
  }
  std::unique_ptr<HttpPost> post = std::move(idle_.back());
  idle_.pop_back();
  return post;
}

void EtcdClient::Give(std::unique_ptr<HttpPost> post) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (idle_.size() < kMaxIdle) {
    idle_.push_back(std::move(post));
  }
}

std::string EtcdClient::UrlOf(size_t member, const char* path) const {
  return absl::StrCat("http://", members_[member].ToString(), path);
}

absl::StatusOr<std::string> EtcdClient::Resolved(size_t member, const Stop& stop) const {
  const HostPort& where = members_[member];
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (resolved_[member].has_value()) {
      return *resolved_[member];
    }
  }
  std::string found;
  if (!Address::FromHost(where.host, 0).ok()) {
    ENTRAIN_ASSIGN_OR_RETURN(const auto addresses, Resolve(where, stop));
    found = absl::StrCat(where.host, ":", where.port, ":",
                         absl::StrJoin(addresses, ",", [](std::string* out, const Address& one) {
                           absl::StrAppend(out, one.host());
                         }));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  resolved_[member] = found;
  return found;
}

absl::StatusOr<std::string> EtcdClient::AskOne(HttpPost* post, size_t member, const char* path,
                                               const std::string& body, const Stop& stop) const {
  const auto resolved = Resolved(member, stop);
  if (!resolved.ok()) {
    return absl::UnavailableError(resolved.status().message());
  }
  post->Start(UrlOf(member, path), *resolved, body);
  while (!post->done()) {
    if (!CheckStop(stop, "").ok()) {
      post->Stop();
      return absl::UnavailableError("no answer in time");
    }
    post->Step(StopSliceMs(stop));
  }
  if (!post->status().ok()) {
    std::lock_guard<std::mutex> lock(mutex_);
    resolved_[member].reset();  // the host may have a new address
    return post->status();
  }
  // etcd answers a keep-alive with a stream. The code of a stream is 200 even if its body is an
  // error.
  return post->code() == 200 && !absl::StartsWith(post->answer(), R"({"error":)")
             ? absl::StatusOr<std::string>(std::move(post->answer()))
             : ErrorOf(post->code(), post->answer());
}

absl::StatusOr<std::string> EtcdClient::Ask(const char* path, const std::string& body,
                                            const Stop& stop) const {
  ENTRAIN_ASSIGN_OR_RETURN(std::unique_ptr<HttpPost> post, Take());
  std::vector<std::string> said(members_.size());
  for (int sleep_ms = kRetryFirstMs;; sleep_ms = std::min(2 * sleep_ms, kRetryMostMs)) {
    for (size_t tried = 0; tried < members_.size(); ++tried) {
      size_t member = current_.load();
      auto answer = AskOne(post.get(), member, path, body, Sooner(stop, kAnswerNs));
      if (!absl::IsUnavailable(answer.status())) {
        Give(std::move(post));
        return answer;
      }
      said[member] = absl::StrCat(members_[member].ToString(), ": ", answer.status().message());
      current_.compare_exchange_strong(member, (member + 1) % members_.size());
      if (!CheckStop(stop, "").ok()) {
        break;
      }
    }
    if (!Pause(sleep_ms, stop)) {
      said.erase(std::remove(said.begin(), said.end(), ""), said.end());
      return CheckStop(stop, absl::StrJoin(said, "; "));
    }
  }
}

absl::StatusOr<EtcdReply> EtcdClient::Run(const EtcdTransaction& transaction,
                                          const Stop& stop) const {
  ENTRAIN_ASSIGN_OR_RETURN(const Json json, Parsed(Ask("/v3/kv/txn", AsText(transaction), stop)));
  EtcdReply reply;
  reply.compared = At(json, "succeeded") == true;
  reply.revision = NumberAt(At(json, "header"), "revision");
  const Json& responses = At(json, "responses");
  for (const Json& response : responses.is_array() ? responses : Json::array()) {
    if (const Json& range = At(response, "response_range"); range.is_object()) {
      reply.reads.push_back(ReadFrom(range));
    }
  }
  const std::vector<EtcdStep>& steps = reply.compared ? transaction.then : transaction.otherwise;
  const auto wanted = std::count_if(steps.begin(), steps.end(), [](const EtcdStep& step) {
    return step.kind == EtcdStep::Kind::kRead;
  });
  if (reply.revision <= 0 || static_cast<size_t>(wanted) != reply.reads.size()) {
    return absl::DataLossError("etcd's answer to a transaction is malformed");
  }
  return reply;
}

absl::StatusOr<EtcdReply> EtcdClient::Read(std::vector<EtcdStep> reads, const Stop& stop) const {
  EtcdTransaction transaction;
  transaction.then = std::move(reads);
  return Run(transaction, stop);
}

absl::StatusOr<int64_t> EtcdClient::Grant(int64_t seconds, const Stop& stop) const {
  const Json body = {{"TTL", absl::StrCat(seconds)}, {"ID", "0"}};
  ENTRAIN_ASSIGN_OR_RETURN(const Json json, Parsed(Ask("/v3/lease/grant", body.dump(), stop)));
  const int64_t lease = NumberAt(json, "ID");
  return lease != 0 ? absl::StatusOr<int64_t>(lease)
                    : absl::DataLossError("etcd has granted a lease without a number");
}

absl::Status EtcdClient::KeepAlive(int64_t lease, const Stop& stop) const {
  const Json body = {{"ID", absl::StrCat(lease)}};
  ENTRAIN_ASSIGN_OR_RETURN(const Json json, Parsed(Ask("/v3/lease/keepalive", body.dump(), stop)));
  return NumberAt(At(json, "result"), "TTL") > 0 ? absl::OkStatus()
                                                 : absl::NotFoundError("etcd: the lease has ended");
}

absl::Status EtcdClient::Revoke(int64_t lease, const Stop& stop) const {
  const Json body = {{"ID", absl::StrCat(lease)}};
  const absl::Status revoked = Ask("/v3/lease/revoke", body.dump(), stop).status();
  return absl::IsNotFound(revoked) ? absl::OkStatus() : revoked;
}

// ---- Watches

absl::StatusOr<std::unique_ptr<EtcdWatch>> EtcdClient::Watch() const {
  ENTRAIN_ASSIGN_OR_RETURN(std::unique_ptr<HttpPost> post, HttpPost::Open());
  return std::unique_ptr<EtcdWatch>(new EtcdWatch(*this, std::move(post)));
}

void EtcdWatch::Start(const std::string& key, int64_t revision) {
  member_ = client_.current_.load();
  std::optional<std::string> resolved;
  {
    std::lock_guard<std::mutex> lock(client_.mutex_);
    resolved = client_.resolved_[member_];
  }
  ended_ = !resolved.has_value();
  if (!ended_) {
    const Json body = {
        {"create_request",
         {{"key", absl::Base64Escape(key)}, {"start_revision", absl::StrCat(revision)}}}};
    post_->Start(client_.UrlOf(member_, "/v3/watch"), *resolved, body.dump());
  }
}

EtcdWatch::News EtcdWatch::Step(int ms) {
  if (ended_ || member_ != client_.current_.load()) {
    return News::kEnded;
  }
  post_->Step(ms);
  News news = News::kNone;
  std::string& answer = post_->answer();
  for (size_t end = answer.find('\n'); end != std::string::npos; end = answer.find('\n')) {
    const Json json = Json::parse(answer.substr(0, end), nullptr, false);
    answer.erase(0, end + 1);
    const Json& result = At(json, "result");
    if (const Json& events = At(result, "events"); events.is_array() && !events.empty()) {
      news = News::kChanged;
    }
    ended_ = ended_ || !result.is_object() || At(result, "canceled") == true;
  }
  ended_ = ended_ || post_->done();
  return news == News::kNone && ended_ ? News::kEnded : news;
}

}  // namespace entrain
