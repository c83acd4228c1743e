#include "lib/device/nccl/nccl_library.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/config.h"
#include "lib/base/status.h"
#include "lib/device/nccl/communicator_handle.h"
#include "lib/device/nccl/nccl_functions.h"
#include "lib/device/nccl/nccl_offload.h"

namespace entrain {
namespace nccl {
namespace {

class NcclLibrary final : public OffloadLibrary {
 public:
  explicit NcclLibrary(const Functions& functions) : functions_(functions) {}

  const char* name() const override { return "nccl"; }
  std::string version() const override { return VersionText(functions_.version); }

  int64_t ScratchBytes(const Call& call) const override { return nccl::ScratchBytes(call); }

  absl::StatusOr<std::string> NewId() override {
    UniqueId id;
    ENTRAIN_RETURN_IF_ERROR(functions_.Check(functions_.ncclGetUniqueId(&id), "ncclGetUniqueId"));
    return std::string(id.bytes, sizeof(id.bytes));
  }

  absl::StatusOr<std::unique_ptr<Offload>> Join(const std::string& id, int rank, int size,
                                                Device& device) override {
    if (id.size() != sizeof(UniqueId)) {
      return absl::InvalidArgumentError(
          absl::StrCat("an id of ", id.size(), " bytes is none of NCCL's"));
    }
    UniqueId unique;
    std::memcpy(unique.bytes, id.data(), sizeof(unique.bytes));
    ENTRAIN_ASSIGN_OR_RETURN(std::shared_ptr<CommunicatorHandle> handle,
                             CommunicatorHandle::Join(functions_, unique, rank, size, device));
    return std::unique_ptr<Offload>(
        std::make_unique<NcclOffload>(functions_, std::move(handle), rank, size, device));
  }

 private:
  const Functions functions_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OffloadLibrary>> LoadNccl(const std::string& file) {
  ENTRAIN_ASSIGN_OR_RETURN(const Functions functions, Functions::Load(file));
  return std::unique_ptr<OffloadLibrary>(std::make_unique<NcclLibrary>(functions));
}

}  // namespace nccl

absl::StatusOr<OffloadLibrary*> OpenNccl() {
  static const auto* const library = new absl::StatusOr<std::unique_ptr<OffloadLibrary>>(
      nccl::LoadNccl(GetEnv("ENTRAIN_NCCL_LIBRARY").value_or("libnccl.so.2")));
  if (!library->ok()) {
    return library->status();
  }
  return (*library)->get();
}

}  // namespace entrain
