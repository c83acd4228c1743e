#include "transports/shm/pull_transfer.h"

#include <algorithm>
#include <cstring>

namespace entrain::shm {

PullTransfer::Step PullTransfer::Copy(const PeerProcess& process, Bytes into, size_t most) {
  const size_t left = into.size() - bytes_;
  const Bytes piece = into.subspan(bytes_, std::min(most, left));
  if (reads() && !piece.empty()) {
    return Read(process, piece, piece.size() == left);
  }
  if (!piece.empty()) {
    std::memcpy(piece.data(), mapped_ + bytes_, piece.size());
  }
  bytes_ += piece.size();
  return piece.size() == left ? Step::kWhole : Step::kPiece;
}

// Proves only the last piece: if that piece comes from the peer, the earlier pieces do too.
PullTransfer::Step PullTransfer::Read(const PeerProcess& process, Bytes piece, bool last) {
  size_t got = 0;
  const uint64_t from = address_ + bytes_;
  const PeerProcess::Read read =
      last ? process.ReadMemoryProved(from, piece, &got) : process.ReadMemory(from, piece, &got);
  bytes_ += got;
  switch (read) {
    case PeerProcess::Read::kSome:
      return last && got == piece.size() ? Step::kWhole : Step::kPiece;
    case PeerProcess::Read::kForbidden:
      return Step::kForbidden;
    case PeerProcess::Read::kUnreadable:
      return Step::kUnreadable;
    case PeerProcess::Read::kGone:
      break;
  }
  return Step::kGone;
}

}  // namespace entrain::shm
