// A lock-free intrusive queue with many producers and one consumer (Vyukov's algorithm).
//
// Thread safety: any thread may call Push and Empty. Only one thread at a time may call Pop.
//
// Invariants:
// 1 Nodes come out in the order in which their Push calls exchanged head_.
// 2 While a Push is between its two steps, Pop may return null although the queue holds nodes. A
//   producer must therefore wake the consumer after Push.
#pragma once

#include <atomic>

namespace entrain {

// Base class of a node. A node must not be in two queues at once.
struct MpscNode {
  std::atomic<MpscNode*> next{nullptr};
};

class MpscQueue {
 public:
  MpscQueue() : head_(&stub_), tail_(&stub_) {}

  void Push(MpscNode* node) {
    node->next.store(nullptr, std::memory_order_relaxed);
    // Acquire-release: the push of the previous node, which may be by another thread, happens
    // before this push.
    MpscNode* const before = head_.exchange(node, std::memory_order_acq_rel);
    // Release: pairs with the acquire load in Pop, so that the consumer sees the producer's writes
    // to the node.
    before->next.store(node, std::memory_order_release);
  }

  // Returns the oldest node. Returns null if the queue is empty or a Push is between its two steps.
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
      return nullptr;  // a Push is between its two steps
    }
    Push(&stub_);
    next = tail->next.load(std::memory_order_acquire);
    if (next == nullptr) {
      return nullptr;
    }
    tail_.store(next, std::memory_order_relaxed);
    return tail;
  }

  // Returns true if every pushed node has been popped. Never returns true if a node is in the queue
  // whose Push happened before this call. If the result is false, it may be out of date. Any thread
  // may call this.
  bool Empty() const {
    // head_ alone is not enough: Pop appends the stub when it reaches the last node, so older nodes
    // may lie before the stub. If head_ and tail_ both point to the stub, no node lies between.
    //
    // Acquire: pairs with the exchange in Push that appended the stub. So this thread sees the
    // stores to tail_ that Pop made before.
    return head_.load(std::memory_order_acquire) == &stub_ &&
           tail_.load(std::memory_order_relaxed) == &stub_;
  }

 private:
  MpscNode stub_;
  std::atomic<MpscNode*> head_;  // the newest
  std::atomic<MpscNode*> tail_;  // the oldest; written in Pop, also read in Empty
};

}  // namespace entrain
