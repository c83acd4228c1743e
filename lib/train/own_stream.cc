#include "lib/train/own_stream.h"

#include "lib/base/status.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<OwnStream>> OwnStream::Make(const ArraysAt& callers) {
  std::unique_ptr<OwnStream> stream(new OwnStream(callers));
  if (callers.device != nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(stream->own_.stream, callers.device->CreateStream());
  }
  return stream;
}

OwnStream::~OwnStream() {
  if (own_.device != nullptr) {
    own_.device->DestroyStream(own_.stream);
  }
}

absl::Status OwnStream::SetCallers(StreamHandle stream) {
  ENTRAIN_RETURN_IF_ERROR(SwitchStream(*own_.device, callers_.stream, stream));
  callers_.stream = stream;
  return absl::OkStatus();
}

absl::Status OwnStream::Order(StreamHandle later, StreamHandle earlier) {
  return own_.device == nullptr ? absl::OkStatus() : OrderStreams(*own_.device, later, earlier);
}

}  // namespace entrain
