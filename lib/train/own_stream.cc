#include "lib/train/own_stream.h"

#include "lib/base/status.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<OwnStream>> OwnStream::Make(const ArraysAt& callers) {
  std::unique_ptr<OwnStream> stream(new OwnStream(callers));
  if (callers.device != nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(stream->own_.stream, callers.device->CreateStream());
    ENTRAIN_ASSIGN_OR_RETURN(stream->mark_, callers.device->CreateEvent());
  }
  return stream;
}

OwnStream::~OwnStream() {
  if (own_.device != nullptr) {
    own_.device->DestroyEvent(mark_);
    own_.device->DestroyStream(own_.stream);
  }
}

absl::Status OwnStream::SetCallers(StreamHandle stream) {
  ENTRAIN_RETURN_IF_ERROR(CheckStream(*own_.device, stream));
  ENTRAIN_RETURN_IF_ERROR(Order(stream, callers_.stream));
  callers_.stream = stream;
  return absl::OkStatus();
}

// A mark that is put anew does not change what waits for it already.
absl::Status OwnStream::Order(StreamHandle later, StreamHandle earlier) {
  if (own_.device == nullptr) {
    return absl::OkStatus();
  }
  ENTRAIN_RETURN_IF_ERROR(own_.device->Record(mark_, earlier));
  return own_.device->AwaitEvent(later, mark_);
}

}  // namespace entrain
