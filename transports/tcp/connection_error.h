// Translates errors of a socket into messages for operators about the state of the peer.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace entrain {

// `doing` is, for example, "receiving". Returns kUnavailable if the connection is broken,
// kResourceExhausted if this process lacks a resource, otherwise kInternal.
absl::Status ConnectionError(int error, absl::string_view doing);
// Returns true if the error means that the connection is over. Returns false if it only means that
// no bytes can be moved now.
bool IsFatal(int error);

}  // namespace entrain
