// A shell for a part of a communicator that a test calls alone. A call that the test does not expect fails it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "lib/comm/call_work.h"
#include "lib/comm/comm_shell.h"

namespace entrain {

class PlayedShell : public CommShell {
 public:
  std::shared_ptr<CommShell> Keep() override {
    return Unexpected<std::shared_ptr<CommShell>>("Keep");
  }
  RefPtr<CallWork> Submit(Admitted, CallBegin) override {
    return Unexpected<RefPtr<CallWork>>("Submit");
  }
  void StartWork(CallWork*) override { Unexpected<int>("StartWork"); }
  void NeedAttention() override { Unexpected<int>("NeedAttention"); }
  void Fail(const absl::Status& why) override { Unexpected<int>("Fail: " + why.ToString()); }
  void EndHere(const absl::Status& why) override { Unexpected<int>("EndHere: " + why.ToString()); }

 private:
  template <typename T>
  static T Unexpected(const std::string& call) {
    ADD_FAILURE() << "the part asks its shell: " << call;
    return T{};
  }
};

}  // namespace entrain
