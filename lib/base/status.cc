#include "lib/base/status.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

#include "lib/base/bytes.h"
#include "lib/base/text.h"

namespace entrain {
namespace {

constexpr absl::string_view kBlameUrl = "entrain/blame", kPeerEndedUrl = "entrain/peer-ended";
// Longer texts are cut when they are encoded. Otherwise the peer would reject the message.
constexpr size_t kMaxMessage = 2048, kMaxAddress = 256, kMaxOperation = 64, kMaxBlame = 1024;

struct CodeRow {
  absl::StatusCode inside;
  entrain_status_t outside;
  const char* name;
};
constexpr CodeRow kCodes[] = {
    {absl::StatusCode::kOk, ENTRAIN_OK, "ENTRAIN_OK"},
    {absl::StatusCode::kInvalidArgument, ENTRAIN_INVALID_ARGUMENT, "ENTRAIN_INVALID_ARGUMENT"},
    {absl::StatusCode::kFailedPrecondition, ENTRAIN_FAILED_PRECONDITION,
     "ENTRAIN_FAILED_PRECONDITION"},
    {absl::StatusCode::kUnimplemented, ENTRAIN_UNIMPLEMENTED, "ENTRAIN_UNIMPLEMENTED"},
    {absl::StatusCode::kResourceExhausted, ENTRAIN_RESOURCE_EXHAUSTED,
     "ENTRAIN_RESOURCE_EXHAUSTED"},
    {absl::StatusCode::kUnavailable, ENTRAIN_PEER_LOST, "ENTRAIN_PEER_LOST"},
    {absl::StatusCode::kDataLoss, ENTRAIN_MISMATCH, "ENTRAIN_MISMATCH"},
    {absl::StatusCode::kOutOfRange, ENTRAIN_STALE_GENERATION, "ENTRAIN_STALE_GENERATION"},
    {absl::StatusCode::kDeadlineExceeded, ENTRAIN_TIMED_OUT, "ENTRAIN_TIMED_OUT"},
    {absl::StatusCode::kAborted, ENTRAIN_ABORTED, "ENTRAIN_ABORTED"},
    {absl::StatusCode::kInternal, ENTRAIN_INTERNAL, "ENTRAIN_INTERNAL"},
};

std::string EncodeBlame(const Blame& b) {
  Writer out;
  out.Put(b.rank)
      .Put(b.world_rank)
      .PutRaw(b.peer_id.data(), b.peer_id.size())
      .PutText(absl::string_view(b.address).substr(0, kMaxAddress))
      .PutText(absl::string_view(b.operation).substr(0, kMaxOperation))
      .Put(b.tag)
      .Put(b.sequence)
      .Put(b.generation)
      .Put(b.phase)
      .Put(b.sys_errno)
      .Put(b.elapsed_ns)
      .Put(b.deadline_ns)
      .Put(b.bytes_done)
      .Put(b.late_ranks)
      .Put(static_cast<uint32_t>(std::min(b.late.size(), Blame::kMaxLate)));
  for (size_t i = 0; i < std::min(b.late.size(), Blame::kMaxLate); ++i) {
    out.Put(b.late[i]);
  }
  return out.Take();
}

bool DecodeBlame(absl::string_view bytes, Blame& b) {
  Reader reader(bytes);
  b.rank = reader.Get<int32_t>();
  b.world_rank = reader.Get<int32_t>();
  const absl::string_view id = reader.GetRaw(b.peer_id.size());
  if (reader.ok()) {
    std::memcpy(b.peer_id.data(), id.data(), id.size());
  }
  b.address = CleanText(reader.GetText(kMaxAddress));
  b.operation = CleanText(reader.GetText(kMaxOperation));
  b.tag = reader.Get<int64_t>();
  b.sequence = reader.Get<uint64_t>();
  b.generation = reader.Get<uint64_t>();
  b.phase = reader.Get<Phase>();
  b.sys_errno = reader.Get<int32_t>();
  b.elapsed_ns = reader.Get<int64_t>();
  b.deadline_ns = reader.Get<int64_t>();
  b.bytes_done = reader.Get<int64_t>();
  b.late_ranks = reader.Get<int32_t>();
  const auto late = reader.Get<uint32_t>();
  if (late > Blame::kMaxLate || b.late_ranks < static_cast<int32_t>(late)) {
    return false;
  }
  for (uint32_t i = 0; i < late; ++i) {
    b.late.push_back(reader.Get<int32_t>());
  }
  return reader.Finished();
}

absl::StatusCode CodeOfErrno(int error) {
  switch (error) {
    case ENOMEM:
    case ENFILE:
    case EMFILE:
    case ENOSPC:
    case ENOBUFS:
    case EAGAIN:
      return absl::StatusCode::kResourceExhausted;
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ENOTCONN:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
    case ESRCH:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kNone:
      return "none";
    case Phase::kBootstrap:
      return "bootstrap";
    case Phase::kConnect:
      return "connect";
    case Phase::kCheck:
      return "check";
    case Phase::kTransfer:
      return "transfer";
    case Phase::kReduce:
      return "reduce";
  }
  return "unknown";
}

absl::Status WithBlame(absl::Status status, const Blame& blame) {
  if (!status.ok()) {
    status.SetPayload(kBlameUrl, absl::Cord(EncodeBlame(blame)));
  }
  return status;
}

Blame BlameOf(const absl::Status& status) {
  Blame blame;
  const auto payload = status.GetPayload(kBlameUrl);
  if (!payload || !DecodeBlame(std::string(*payload), blame)) {
    return Blame();
  }
  return blame;
}

bool HasBlame(const absl::Status& status) {
  return status.GetPayload(kBlameUrl).has_value();
}

absl::Status Annotate(const absl::Status& status, absl::string_view prefix) {
  if (status.ok()) {
    return status;
  }
  absl::Status result(status.code(), absl::StrCat(prefix, ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& value) { result.SetPayload(url, value); });
  return result;
}

absl::Status ErrnoStatus(int error, absl::string_view what) {
  char text[128];
  Blame blame;
  blame.sys_errno = error;
  // The GNU variant of strerror_r returns a pointer to the text. The text is not always in `text`.
  const char* const reason = strerror_r(error, text, sizeof(text));
  return WithBlame(absl::Status(CodeOfErrno(error), absl::StrCat(what, ": ", reason)), blame);
}

absl::Status AsPeerEnded(absl::Status status) {
  status.SetPayload(kPeerEndedUrl, absl::Cord());
  return status;
}

bool IsPeerEnded(const absl::Status& status) {
  return status.GetPayload(kPeerEndedUrl).has_value();
}

entrain_status_t ToCode(const absl::Status& status) {
  for (const CodeRow& row : kCodes) {
    if (row.inside == status.code()) {
      return row.outside;
    }
  }
  return ENTRAIN_INTERNAL;
}

absl::StatusCode FromCode(entrain_status_t code) {
  for (const CodeRow& row : kCodes) {
    if (row.outside == code) {
      return row.inside;
    }
  }
  return absl::StatusCode::kInternal;
}

const char* CodeName(entrain_status_t code) {
  if (code == ENTRAIN_IN_PROGRESS) {
    return "ENTRAIN_IN_PROGRESS";
  }
  for (const CodeRow& row : kCodes) {
    if (row.outside == code) {
      return row.name;
    }
  }
  return "ENTRAIN_?";
}

std::string EncodeStatus(const absl::Status& status) {
  const absl::string_view message = status.message().substr(0, kMaxMessage);
  return Writer()
      .Put(ToCode(status))
      .PutText(message)
      .PutText(HasBlame(status) ? EncodeBlame(BlameOf(status)) : std::string())
      .Take();
}

std::optional<absl::Status> DecodeStatus(absl::string_view bytes) {
  Reader reader(bytes);
  const auto code = reader.Get<entrain_status_t>();
  const absl::string_view message = reader.GetText(kMaxMessage);
  const absl::string_view blame_bytes = reader.GetText(kMaxBlame);
  Blame blame;
  if (!reader.Finished() || (!blame_bytes.empty() && !DecodeBlame(blame_bytes, blame))) {
    return std::nullopt;
  }
  absl::Status status(FromCode(code), CleanText(message, kMaxMessage));
  return blame_bytes.empty() ? status : WithBlame(std::move(status), blame);
}

}  // namespace entrain
