// Implements memory.h.
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"

#include "include/entrain/memory.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::SealedMemory;

namespace {

absl::Status CheckSize(size_t bytes) {
  return bytes > 0 && bytes <= size_t{std::numeric_limits<int64_t>::max() / 2}
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("bytes: ", bytes, " is no size of memory"));
}

}  // namespace

extern "C" {

entrain_status_t entrain_mem_alloc(entrain_comm_t* comm, size_t bytes, uint32_t flags,
                                   void** memory) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(memory, "memory"));
    ENTRAIN_RETURN_IF_ERROR(CheckSize(bytes));
    if ((flags & ~uint32_t{ENTRAIN_MEM_HUGE_PAGES}) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("flags: ", flags, " has bits that mean nothing"));
    }
    const auto pages = (flags & ENTRAIN_MEM_HUGE_PAGES) != 0 ? SealedMemory::Pages::kHuge
                                                             : SealedMemory::Pages::kUsual;
    ENTRAIN_ASSIGN_OR_RETURN(
        *memory, comm->comm->runtime().memory().Allocate(static_cast<int64_t>(bytes), pages));
    return absl::OkStatus();
  });
}

entrain_status_t entrain_mem_free(entrain_comm_t* comm, void* memory) {
  return Guard(__func__, Reach::kCall, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    return memory == nullptr ? absl::OkStatus() : comm->comm->runtime().memory().Free(memory);
  });
}

entrain_status_t entrain_mem_register(entrain_comm_t* comm, void* memory, size_t bytes,
                                      size_t* mapped) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(memory, "memory"));
    ENTRAIN_RETURN_IF_ERROR(CheckSize(bytes));
    if (bytes > std::numeric_limits<uintptr_t>::max() - reinterpret_cast<uintptr_t>(memory)) {
      return absl::InvalidArgumentError(
          absl::StrCat("bytes: ", bytes, " is more than lies behind memory"));
    }
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t moved, comm->comm->runtime().memory().Register(
                                                      {static_cast<std::byte*>(memory), bytes}));
    if (mapped != nullptr) {
      *mapped = static_cast<size_t>(moved);
    }
    return absl::OkStatus();
  });
}

entrain_status_t entrain_mem_deregister(entrain_comm_t* comm, void* memory) {
  return Guard(__func__, Reach::kCall, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    return memory == nullptr ? absl::OkStatus() : comm->comm->runtime().memory().Deregister(memory);
  });
}

}  // extern "C"
