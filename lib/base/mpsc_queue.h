// A lock-free intrusive queue of many producers and one consumer (Vyukov's).
//
// Thread safety: Push and Empty from any thread; Pop from one thread at a time.
//
// Invariants:
// 1 Nodes come out in the order in which their Push exchanged head_.
// 2 While a Push is between its two steps, Pop may return null although nodes are in the queue.
//   After its second step the producer wakes the consumer, so no node is forgotten.
#pragma once

#include <atomic>

namespace entrain {

// Base class of a node. A node is in one queue at a time.
struct MpscNode {
  std::atomic<MpscNode*> next{nullptr};
};

class MpscQueue {
 public:
  MpscQueue() : head_(&stub_), tail_(&stub_) {}

  void Push(MpscNode* node) {
    node->next.store(nullptr, std::memory_order_relaxed);
    // Acquire-release: orders this node after the node before it, whichever thread pushed the
    // earlier node.
    MpscNode* const before = head_.exchange(node, std::memory_order_acq_rel);
    // Release: pairs with the acquire in Pop, so that Pop sees the producer's writes to the node.
    before->next.store(node, std::memory_order_release);
  }

  // Returns the oldest node, or null.
  MpscNode* Pop() {
    MpscNode* tail = tail_.load(std::memory_order_relaxed);       // only this thread writes it
    MpscNode* next = tail->next.load(std::memory_order_acquire);  // pairs with the release in Push
    if (tail == &stub_) {
      if (next == nullptr) {
        return nullptr;
      }
      tail = next;
      tail_.store(tail, std::memory_order_relaxed);
      next = tail->next.load(std::memory_order_acquire);
    }
    if (next != nullptr) {
      tail_.store(next, std::memory_order_relaxed);
      return tail;
    }
    if (tail != head_.load(std::memory_order_acquire)) {
      return nullptr;  // a push is under way
    }
    Push(&stub_);
    next = tail->next.load(std::memory_order_acquire);
    if (next == nullptr) {
      return nullptr;
    }
    tail_.store(next, std::memory_order_relaxed);
    return tail;
  }

  // Returns true if every node that was pushed has been popped. Never returns true while the queue
  // holds a node whose Push happened before this call. A result of false may be out of date. Any
  // thread may call this.
  bool Empty() const {
    // The stub may be the newest node while older nodes wait before it, because Pop appends the
    // stub when it reaches the node that looks last. Acquire: pairs with the exchange in Push that
    // appended the stub, so this thread sees the stores to tail_ that Pop made earlier. If head_
    // and tail_ both point to the stub, no node lies between them.
    return head_.load(std::memory_order_acquire) == &stub_ &&
           tail_.load(std::memory_order_relaxed) == &stub_;
  }

 private:
  MpscNode stub_;
  std::atomic<MpscNode*> head_;  // the newest
  std::atomic<MpscNode*> tail_;  // the oldest; written by the popper, read also by Empty
};

}  // namespace entrain
