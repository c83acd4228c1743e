// Arrays that belong to the caller and are part of a run's state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "lib/base/dtype.h"
#include "lib/checkpoint/manifest.h"
#include "lib/checkpoint/state_visitor.h"

namespace entrain {

class CallersArrays {
 public:
  // Does not copy the array: `data` must stay valid until this object is destroyed.
  absl::Status Add(absl::string_view name, Holder holder, DType dtype, void* data, int64_t count) {
    if (!IsArrayName(absl::StrCat("caller/", name)) || name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("name: \"", name, "\" is not 1 to 121 letters, digits and . _ - /"));
    }
    for (const Array& array : arrays_) {
      if (array.name == name) {
        return absl::InvalidArgumentError(
            absl::StrCat("name: there is an array \"", name, "\" already"));
      }
    }
    arrays_.push_back({std::string(name), holder, dtype, data, count});
    return absl::OkStatus();
  }
  void VisitState(StateVisitor& visitor) {
    for (const Array& array : arrays_) {
      visitor.Array(absl::StrCat("caller/", array.name), array.holder, array.dtype, array.data,
                    array.count);
    }
  }

 private:
  struct Array {
    std::string name;
    Holder holder;
    DType dtype;
    void* data;
    int64_t count;
  };
  std::vector<Array> arrays_;
};

}  // namespace entrain
