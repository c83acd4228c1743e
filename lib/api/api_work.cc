// Implements the functions of collectives.h for batches and works.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

#include "include/entrain/collectives.h"
#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/base/status.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::Deadline;
using entrain::RefPtr;
using entrain::Work;

extern "C" {

entrain_status_t entrain_batch_create(entrain_comm_t* comm, entrain_batch_t** batch) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(batch, "batch"));
    *batch = new entrain_batch{.comm = comm->comm, .calls = {}};
    return absl::OkStatus();
  });
}

entrain_status_t entrain_batch_start(entrain_batch_t* batch, entrain_work_t** work) {
  return Guard(__func__, work == nullptr ? Does::kWait : Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(batch, "batch"));
    RefPtr<Work> started = batch->comm->StartAll(batch->calls);
    if (work != nullptr) {
      *work = ToHandle(std::move(started), /*background=*/false);
      return absl::OkStatus();
    }
    started->Wait(Deadline::Never());
    return started->status();
  });
}

void entrain_batch_destroy(entrain_batch_t* batch) {
  Destroy(__func__, batch, Does::kStart);
}

entrain_status_t entrain_work_notify(entrain_work_t* work, entrain_done_fn done, void* user) {
  return Guard(__func__, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(work, "work"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(reinterpret_cast<const void*>(done), "done"));
    return ToWork(work)->Notify(
        [done, user](const absl::Status& status) { done(entrain::ToCode(status), user); });
  });
}

entrain_status_t entrain_work_descriptor(entrain_work_t* work, int* fd) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(work, "work"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(fd, "fd"));
    ENTRAIN_ASSIGN_OR_RETURN(*fd, ToWork(work)->Descriptor());
    return absl::OkStatus();
  });
}

entrain_status_t entrain_work_test(entrain_work_t* work, int32_t* done) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(work, "work"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(done, "done"));
    const bool over = ToWork(work)->Test();
    *done = over ? 1 : 0;
    return over ? ToWork(work)->status() : absl::OkStatus();
  });
}

entrain_status_t entrain_work_wait(entrain_work_t* work, int64_t timeout_ns) {
  bool over = true;
  const entrain_status_t code = Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(work, "work"));
    if (!ToWork(work)->done()) {
      ENTRAIN_RETURN_IF_ERROR(CallbackScope::Check(timeout_ns == 0 ? Does::kStart : Does::kWait));
    }
    const Deadline give_up = timeout_ns < 0 ? Deadline::Never() : Deadline::After(timeout_ns);
    over = ToWork(work)->Wait(give_up, WaitsInBackground(work));
    return over ? ToWork(work)->status() : absl::OkStatus();
  });
  return over ? code : ENTRAIN_IN_PROGRESS;
}

entrain_status_t entrain_work_error(const entrain_work_t* work, entrain_error_t* error) {
  bool over = true;
  const entrain_status_t code = Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(work, "work"));
    over = ToWork(work)->done();
    if (!over) {
      return absl::OkStatus();
    }
    entrain_error_t record;
    ToRecord(ToWork(work)->status(), Reach::kByCode, &record);
    return WriteError(record, error);
  });
  return over ? code : ENTRAIN_IN_PROGRESS;
}

entrain_status_t entrain_work_info(const entrain_work_t* work, entrain_work_info_t* info) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(work, "work"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(info, "info"));
    const entrain::WorkInfo now = ToWork(work)->Info();
    entrain_work_info_t known;
    entrain_work_info_init(&known);
    known.sequence = now.sequence;
    known.tag = now.tag;
    known.elapsed_ns = entrain::Clock::Real().Now() - now.started_ns;
    known.done = ToWork(work)->done() ? 1 : 0;
    known.source = now.source;
    now.operation.copy(known.operation, sizeof(known.operation) - 1);
    now.comm.copy(known.comm, sizeof(known.comm) - 1);
    return WriteStruct(&known, sizeof(known), info, "entrain_work_info_t",
                       {{offsetof(entrain_work_info_t, operation), sizeof(known.operation)},
                        {offsetof(entrain_work_info_t, comm), sizeof(known.comm)}});
  });
}

void entrain_work_free(entrain_work_t* work) {
  if (work == nullptr || Forked()) {
    return;
  }
  const absl::Status status = NotNull(work, "the handle");
  if (!status.ok()) {
    LogRefused(__func__, status);
    return;
  }
  ToWork(work)->Release();
}

}  // extern "C"
