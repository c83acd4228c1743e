#include "lib/api/boundary.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

#include <pthread.h>

#include "absl/strings/str_cat.h"

#include "lib/base/config.h"

namespace entrain::api {
namespace {

// True in a forked child. The fork handler sets it before other code runs in the child.
std::atomic<bool> forked{false};

entrain_error_t EmptyRecord() {
  entrain_error_t record;
  entrain_error_init(&record);
  return record;
}

entrain_error_t& ThreadRecord() {
  thread_local entrain_error_t record = EmptyRecord();
  return record;
}

template <size_t kBytes>
void CopyText(absl::string_view text, char (&to)[kBytes]) {
  const size_t bytes = std::min(text.size(), kBytes - 1);
  std::copy_n(text.data(), bytes, to);  // not memcpy: an empty text may have a null address
  std::memset(to + bytes, 0, kBytes - bytes);
}

size_t SizeOfStruct(const void* given) {
  size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  return size;
}

int32_t ScopeOf(entrain_status_t code, Reach reach) {
  if (code >= 0) {
    return ENTRAIN_SCOPE_NONE;
  }
  const bool call = reach == Reach::kCall || code == ENTRAIN_INVALID_ARGUMENT ||
                    code == ENTRAIN_FAILED_PRECONDITION || code == ENTRAIN_UNIMPLEMENTED ||
                    code == ENTRAIN_RESOURCE_EXHAUSTED;
  return call ? ENTRAIN_SCOPE_CALL : ENTRAIN_SCOPE_COMM;
}

}  // namespace

void ToRecord(const absl::Status& status, Reach reach, entrain_error_t* record) {
  *record = EmptyRecord();
  const Blame blame = BlameOf(status);
  record->code = ToCode(status);
  record->scope = ScopeOf(record->code, reach);
  record->phase = static_cast<int32_t>(blame.phase);
  record->guilty_rank = blame.rank;
  record->guilty_world_rank = blame.world_rank;
  std::memcpy(record->peer_id.bytes, blame.peer_id.data(), sizeof(record->peer_id.bytes));
  record->generation = blame.generation;
  record->sequence = blame.sequence;
  record->tag = blame.tag;
  record->elapsed_ns = blame.elapsed_ns;
  record->deadline_ns = blame.deadline_ns;
  record->bytes_done = blame.bytes_done;
  record->sys_errno = blame.sys_errno;
  CopyText(blame.operation, record->operation);
  CopyText(blame.address, record->peer_address);
  CopyText(absl::string_view(status.message().data(), status.message().size()), record->text);
}

entrain_status_t Fail(const char* function, const absl::Status& status, Reach reach) {
  entrain_error_t& record = ThreadRecord();
  // The message of a failed operation already names it: "all_reduce #41: ...".
  const bool says_what = BlameOf(status).sequence != 0;
  ToRecord(says_what ? status : Annotate(status, function), reach, &record);
  return record.code;
}

const entrain_error_t& LastError() {
  return ThreadRecord();
}

bool Forked() {
  return forked.load(std::memory_order_relaxed);
}

absl::Status CheckProcess() {
  static const int registered = pthread_atfork(
      nullptr, nullptr, +[] { forked.store(true, std::memory_order_relaxed); });
  if (registered != 0) {
    return ErrnoStatus(registered, "pthread_atfork");
  }
  if (Forked()) {
    return absl::FailedPreconditionError(
        "this process was forked from one that used entrain; only exec is supported after fork");
  }
  return absl::OkStatus();
}

void WriteDefaults(const void* defaults, size_t known_size, void* to, size_t bytes) {
  if (to == nullptr || bytes < sizeof(bytes)) {
    return;
  }
  const size_t both = std::min(bytes, known_size);
  std::memcpy(to, defaults, both);
  std::memset(static_cast<char*>(to) + both, 0, bytes - both);
  std::memcpy(to, &bytes, sizeof(bytes));
}

absl::Status WriteStruct(const void* known, size_t known_size, void* to, const char* name,
                         std::initializer_list<LongField> long_fields) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(to, name));
  // CopyStruct makes the checks. Its copy is not used.
  std::string scratch(known_size, '\0');
  ENTRAIN_RETURN_IF_ERROR(CopyStruct(to, scratch.data(), known_size, name));
  const size_t size = SizeOfStruct(to);
  for (const LongField& field : long_fields) {
    if (size > field.begin && size < field.begin + field.bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": size ", size, " cuts a field; call its init function first"));
    }
  }
  std::memcpy(static_cast<char*>(to) + sizeof(size), static_cast<const char*>(known) + sizeof(size),
              std::min(size, known_size) - sizeof(size));
  return absl::OkStatus();
}

void WriteText(absl::string_view text, char* to, size_t bytes) {
  if (to != nullptr && bytes > 0) {
    const size_t count = std::min(bytes - 1, text.size());
    std::copy_n(text.begin(), count, to);
    to[count] = 0;
  }
}

absl::Status WriteError(const entrain_error_t& known, entrain_error_t* to) {
  return WriteStruct(&known, sizeof(known), to, "entrain_error_t",
                     {{offsetof(entrain_error_t, peer_id), sizeof(known.peer_id)},
                      {offsetof(entrain_error_t, operation), sizeof(known.operation)},
                      {offsetof(entrain_error_t, peer_address), sizeof(known.peer_address)},
                      {offsetof(entrain_error_t, text), sizeof(known.text)}});
}

}  // namespace entrain::api
