#include "lib/comm/agree.h"

#include <vector>

#include "absl/strings/str_format.h"

#include "lib/base/status.h"

namespace entrain {

absl::Status AgreeOn(Communicator& comm, absl::string_view group,
                     absl::Span<const NamedValue> values, const CallOptions& options) {
  const size_t count = values.size();
  std::vector<double> mine, all(count * static_cast<size_t>(comm.size()));
  for (const NamedValue& value : values) {
    mine.push_back(value.value);
  }
  ENTRAIN_RETURN_IF_ERROR(
      comm.AllGather(mine.data(), all.data(), static_cast<int64_t>(count), DType::kF64, options));
  for (size_t i = count; i < all.size(); ++i) {
    const double first = all[i % count];
    if (all[i] != first) {
      return absl::DataLossError(absl::StrFormat("%s: %.15g on rank 0, %.15g on rank %d of %s",
                                                 values[i % count].name, first, all[i], i / count,
                                                 group));
    }
  }
  return absl::OkStatus();
}

}  // namespace entrain
