#include "lib/store/request.h"

#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "lib/base/bytes.h"
#include "lib/base/status.h"
#include "lib/base/text.h"

namespace entrain {
namespace {

absl::string_view OpName(StoreOp op) {
  switch (op) {
    case StoreOp::kSet:
      return "set";
    case StoreOp::kGet:
      return "get";
    case StoreOp::kTryGet:
      return "try-get";
    case StoreOp::kAdd:
      return "add";
    case StoreOp::kCompareAndSet:
      return "compare-and-set";
    case StoreOp::kJoin:
      return "join";
    case StoreOp::kAbsent:
      return "absent";
    case StoreOp::kFail:
      return "fail";
    case StoreOp::kFinish:
      return "finish";
    case StoreOp::kDelete:
      return "delete";
  }
  return "?";
}

bool IsKnown(StoreOp op) {
  return op >= StoreOp::kSet && op <= StoreOp::kDelete;
}

// Returns one short printable line, since keys and values may hold any bytes.
std::string Quote(absl::string_view text) {
  constexpr size_t kShown = 64;
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kShown)),
                      text.size() > kShown ? "..." : "", "\"");
}

absl::StatusOr<std::string> Sum(const StoreRequest& request, const std::string* old) {
  int64_t value = 0;
  if (old != nullptr && !old->empty() && !absl::SimpleAtoi(*old, &value)) {
    return absl::InvalidArgumentError(absl::StrCat("add to key ", Quote(request.key), ": it holds ",
                                                   Quote(*old), ", no integer"));
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(value, request.delta, &sum)) {
    return absl::InvalidArgumentError(absl::StrCat("add of ", request.delta, " to key ",
                                                   Quote(request.key), ", which holds ", value,
                                                   ": past the range of 64 bits"));
  }
  return absl::StrCat(sum);
}

}  // namespace

std::string Describe(absl::string_view url, const StoreRequest& request) {
  return absl::StrCat("store ", url, ": ", OpName(request.op), " of key ", Quote(request.key));
}

absl::Status CheckRequest(const StoreRequest& request) {
  if (!IsKnown(request.op)) {
    return absl::InvalidArgumentError(
        absl::StrCat("store: unknown operation ", static_cast<int>(request.op)));
  }
  if (request.key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("store: ", OpName(request.op), ": empty key"));
  }
  if (request.key.size() > kMaxStoreKey) {
    return absl::InvalidArgumentError(absl::StrCat("store: key ", Quote(request.key), " of ",
                                                   request.key.size(), " bytes; at most ",
                                                   kMaxStoreKey));
  }
  const size_t largest = std::max(request.value.size(), request.expected.size());
  if (largest > kMaxStoreValue) {
    return absl::InvalidArgumentError(absl::StrCat("store: value of key ", Quote(request.key),
                                                   " of ", largest, " bytes; at most ",
                                                   kMaxStoreValue));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ValueAfter(const StoreRequest& request, const std::string* old) {
  switch (request.op) {
    case StoreOp::kSet:
      return request.value;
    case StoreOp::kAdd:
      return Sum(request, old);
    case StoreOp::kCompareAndSet:
      return !IsRefused(request, old) ? request.value : old == nullptr ? std::string() : *old;
    default:
      return absl::InternalError(absl::StrCat(OpName(request.op), " writes nothing"));
  }
}

bool IsRefused(const StoreRequest& request, const std::string* old) {
  return request.op == StoreOp::kCompareAndSet &&
         (old == nullptr ? absl::string_view() : absl::string_view(*old)) != request.expected;
}

size_t StoreTable::CostOf(const std::string& key, size_t bytes) {
  constexpr size_t kKeyBytes = 128;  // for bookkeeping
  return key.size() + bytes + kKeyBytes;
}

void StoreTable::Refund(const std::string& key, const Held& old) {
  const size_t freed = CostOf(key, old.value.size());
  const auto payer = of_client_.find(old.client);
  payer->second -= freed;
  if (payer->second == 0) {
    of_client_.erase(payer);
  }
  bytes_ -= freed;
}

absl::Status StoreTable::Charge(const std::string& key, size_t bytes, absl::string_view client,
                                const Held* old) {
  const size_t more = CostOf(key, bytes);
  const size_t freed = old == nullptr ? 0 : CostOf(key, old->value.size());
  const auto account = of_client_.find(client);
  const size_t had = account == of_client_.end() ? 0 : account->second;
  const size_t all = bytes_ - freed + more;
  const size_t own = had - (old != nullptr && old->client == client ? freed : 0) + more;
  if (all > kMaxTableBytes || own > kMaxClientBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("store: value of key ", Quote(key), " of ", bytes, " bytes: ",
                     all > kMaxTableBytes
                         ? absl::StrCat("all values together may have ", kMaxTableBytes)
                         : absl::StrCat("those of one client together may have ", kMaxClientBytes),
                     " bytes"));
  }
  if (old != nullptr) {
    Refund(key, *old);
  }
  of_client_[std::string(client)] += more;
  bytes_ += more;
  return absl::OkStatus();
}

absl::StatusOr<std::string> StoreTable::Apply(const StoreRequest& request, absl::string_view client,
                                              bool* changed) {
  *changed = false;
  const auto found = values_.find(request.key);
  const std::string* old = found == values_.end() ? nullptr : &found->second.value;
  if (request.op == StoreOp::kGet || request.op == StoreOp::kTryGet) {
    if (old == nullptr) {
      return absl::NotFoundError(absl::StrCat("store: no key ", Quote(request.key)));
    }
    return *old;
  }
  if (request.op == StoreOp::kDelete) {
    if (old != nullptr) {
      Refund(request.key, found->second);
      values_.erase(found);
    }
    return std::string();
  }
  ENTRAIN_ASSIGN_OR_RETURN(std::string value, ValueAfter(request, old));
  if (!IsRefused(request, old)) {
    ENTRAIN_RETURN_IF_ERROR(
        Charge(request.key, value.size(), client, old == nullptr ? nullptr : &found->second));
    values_[request.key] = {value, std::string(client)};
    *changed = true;
  }
  return value;
}

std::string EncodeRequest(const StoreRequest& request) {
  Writer out;
  out.Put(request.op).PutText(request.key).PutText(request.value).PutText(request.expected);
  out.Put(request.delta);
  return out.Take();
}

absl::StatusOr<StoreRequest> DecodeRequest(absl::string_view bytes) {
  Reader in(bytes);
  StoreRequest request;
  request.op = in.Get<StoreOp>();
  request.key = std::string(in.GetText(kMaxStoreKey));
  request.value = std::string(in.GetText(kMaxStoreValue));
  request.expected = std::string(in.GetText(kMaxStoreValue));
  request.delta = in.Get<int64_t>();
  if (!in.Finished()) {
    return absl::InvalidArgumentError("store: malformed request");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckRequest(request));
  return request;
}

std::string EncodeReply(const absl::StatusOr<std::string>& answer) {
  constexpr size_t kMaxMessage = 4096;
  Writer out;
  out.Put(static_cast<uint8_t>(answer.status().code()));
  out.PutText(answer.ok() ? absl::string_view(*answer)
                          : answer.status().message().substr(0, kMaxMessage));
  return out.Take();
}

absl::StatusOr<std::string> DecodeReply(absl::string_view bytes) {
  Reader in(bytes);
  const auto code = in.Get<uint8_t>();
  const absl::string_view text = in.GetText(kMaxStoreValue);
  if (!in.Finished() || code > static_cast<uint8_t>(absl::StatusCode::kUnauthenticated)) {
    return absl::DataLossError("malformed reply");
  }
  if (code == 0) {
    return std::string(text);
  }
  return absl::Status(static_cast<absl::StatusCode>(code), CleanText(text));
}

Deadline LastWordBy(Deadline by, int64_t most_ns) {
  return std::min(Deadline::After(most_ns), Deadline::From(by.at_ns, 230 * kMillisecond));
}

absl::StatusOr<std::string> RequestStore::Checked(const StoreRequest& request, const Stop& stop) {
  ENTRAIN_RETURN_IF_ERROR(CheckRequest(request));
  return Do(request, stop);
}

absl::Status RequestStore::Set(absl::string_view key, absl::string_view value, const Stop& stop) {
  StoreRequest request;
  request.op = StoreOp::kSet;
  request.key = std::string(key);
  request.value = std::string(value);
  return Checked(request, stop).status();
}

absl::StatusOr<std::string> RequestStore::Get(absl::string_view key, const Stop& stop) {
  StoreRequest request;
  request.op = StoreOp::kGet;
  request.key = std::string(key);
  return Checked(request, stop);
}

absl::StatusOr<std::string> RequestStore::TryGet(absl::string_view key, const Stop& stop) {
  StoreRequest request;
  request.op = StoreOp::kTryGet;
  request.key = std::string(key);
  return Checked(request, stop);
}

absl::StatusOr<int64_t> RequestStore::Add(absl::string_view key, int64_t delta, const Stop& stop) {
  StoreRequest request;
  request.op = StoreOp::kAdd;
  request.key = std::string(key);
  request.delta = delta;
  ENTRAIN_ASSIGN_OR_RETURN(const std::string text, Checked(request, stop));
  int64_t number = 0;
  if (!absl::SimpleAtoi(text, &number)) {
    return absl::DataLossError(
        absl::StrCat(Describe(url(), request), ": the answer is no number: ", Quote(text)));
  }
  return number;
}

absl::StatusOr<std::string> RequestStore::CompareAndSet(absl::string_view key,
                                                        absl::string_view expected,
                                                        absl::string_view desired,
                                                        const Stop& stop) {
  StoreRequest request;
  request.op = StoreOp::kCompareAndSet;
  request.key = std::string(key);
  request.expected = std::string(expected);
  request.value = std::string(desired);
  return Checked(request, stop);
}

absl::Status RequestStore::Delete(absl::string_view key, const Stop& stop) {
  StoreRequest request;
  request.op = StoreOp::kDelete;
  request.key = std::string(key);
  return Checked(request, stop).status();
}

absl::StatusOr<std::unique_ptr<StoreMeeting>> RequestStore::Join(absl::string_view key, int rank,
                                                                 int size,
                                                                 const absl::StatusOr<Parts>& mine,
                                                                 const Stop& stop) {
  StoreRequest request;
  request.op = StoreOp::kJoin;
  request.key = std::string(key);
  ENTRAIN_RETURN_IF_ERROR(CheckRequest(request));
  Entry entry;
  entry.rank = rank;
  entry.size = size;
  entry.parts = mine.ok() ? *mine : Parts();
  entry.unable = mine.status();
  ENTRAIN_RETURN_IF_ERROR(CheckEntry(entry));
  return Join(request.key, entry, stop);
}

}  // namespace entrain
