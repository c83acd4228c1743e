// The state of each of the 2^16 context numbers of a process, in one byte each. The bytes are in
// pieces. A piece is allocated when one of its numbers is used for the first time. Numbers are used
// in ascending order, so most processes have only one piece.
//
// Thread safety: any thread. If a thread reads a state that another thread has set, it also sees
// what that thread wrote before Set.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "transports/transport.h"

namespace entrain {

class ContextStates {
 public:
  ContextStates() = default;
  ~ContextStates() {
    for (std::atomic<Piece*>& piece : pieces_) {
      delete piece.load(std::memory_order_relaxed);
    }
  }
  ContextStates(const ContextStates&) = delete;
  ContextStates& operator=(const ContextStates&) = delete;

  // Returns 0 if Set was never called for this number.
  uint8_t Of(Context context) const {
    const Piece* const piece = pieces_[context / kPiece].load(std::memory_order_acquire);
    return piece == nullptr ? 0 : (*piece)[context % kPiece].load(std::memory_order_acquire);
  }
  void Set(Context context, uint8_t state) {
    PieceOf(context)[context % kPiece].store(state, std::memory_order_release);  // pairs with Of
  }

 private:
  static constexpr size_t kPiece = 1024;
  using Piece = std::array<std::atomic<uint8_t>, kPiece>;

  Piece& PieceOf(Context context) {
    std::atomic<Piece*>& place = pieces_[context / kPiece];
    Piece* piece = place.load(std::memory_order_acquire);
    if (piece == nullptr) {
      auto made = std::make_unique<Piece>();
      // Release: a thread that loads the pointer must see the zeros. The exchange fails if another
      // thread has stored a pointer meanwhile.
      if (place.compare_exchange_strong(piece, made.get(), std::memory_order_acq_rel)) {
        piece = made.release();
      }
    }
    return *piece;
  }

  std::array<std::atomic<Piece*>, (1 << 16) / kPiece> pieces_{};
};

}  // namespace entrain
