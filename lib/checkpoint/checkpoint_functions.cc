#include "lib/checkpoint/checkpoint_functions.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "lib/base/callback_scope.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

const std::string& Name() {
  static const std::string* const name = new std::string(kFunctionsName);
  return *name;
}

// Calls `function`. Inside it, functions of the library that need the engine or may wait return an
// error (CallbackScope). A result other than 0 means that `function` has failed.
template <typename Function, typename... Arguments>
absl::Status Run(absl::string_view name, absl::string_view where, Function function,
                 Arguments... arguments) {
  const std::string scoped = absl::StrCat("the ", name, " of a checkpoint");
  const CallbackScope scope(scoped, Does::kLook);
  const int32_t code = function(arguments...);
  return code == 0 ? absl::OkStatus()
                   : absl::FailedPreconditionError(
                         absl::StrCat(Name(), ": ", name, " returned ", code, where));
}

absl::Status Lacks(const char* name) {
  return absl::InvalidArgumentError(absl::StrCat("functions: ", name, " is NULL"));
}

class FunctionTarget final : public CheckpointTarget {
 public:
  explicit FunctionTarget(const CheckpointFunctions& functions) : functions_(functions) {}
  const std::string& name() const override { return Name(); }
  absl::Status WriteAt(int64_t offset, ConstBytes bytes) override {
    return bytes.empty() ? absl::OkStatus()
                         : Run("write_at", absl::StrCat(" at byte ", offset), functions_.write_at,
                               functions_.user, offset, bytes.data(), bytes.size());
  }
  absl::Status Flush() override { return absl::OkStatus(); }
  absl::Status Publish(bool* done) override {
    const absl::Status status = Run("finish", "", functions_.finish, functions_.user);
    *done = status.ok();
    return status;
  }

 private:
  const CheckpointFunctions functions_;
};

class FunctionSource final : public CheckpointSource {
 public:
  explicit FunctionSource(const CheckpointFunctions& functions) : functions_(functions) {}
  const std::string& name() const override { return Name(); }
  int64_t size() const override { return functions_.bytes; }
  absl::Status ReadAt(int64_t offset, Bytes out) const override {
    return out.empty() ? absl::OkStatus()
                       : Run("read_at", absl::StrCat(" at byte ", offset), functions_.read_at,
                             functions_.user, offset, static_cast<void*>(out.data()), out.size());
  }

 private:
  const CheckpointFunctions functions_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointTarget>> TargetOf(const CheckpointFunctions& functions) {
  if (functions.write_at == nullptr || functions.finish == nullptr) {
    return Lacks(functions.write_at == nullptr ? "write_at" : "finish");
  }
  return std::make_unique<FunctionTarget>(functions);
}

absl::StatusOr<std::unique_ptr<const CheckpointSource>> SourceOf(
    const CheckpointFunctions& functions) {
  if (functions.read_at == nullptr) {
    return Lacks("read_at");
  }
  if (functions.bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("functions: bytes: ", functions.bytes, " is negative"));
  }
  return std::make_unique<FunctionSource>(functions);
}

}  // namespace entrain
