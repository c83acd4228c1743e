// Many threads push, one pops: an intrusive queue without locks (Vyukov's).
//
// Thread safety: Push and Empty from any thread; Pop from one thread at a time.
// Invariants:
//   1 Nodes come out in the order in which their Push exchanged head_.
//   2 Pop may answer null while a Push is between its two steps; that pusher's wake-up comes after
//   its second step, so
//     nothing is forgotten.
#pragma once

#include <atomic>

namespace entrain {

// Base of what can be queued; in one queue at a time.
struct MpscNode {
  std::atomic<MpscNode*> next{nullptr};
};

class MpscQueue {
 public:
  MpscQueue() : head_(&stub_), tail_(&stub_) {}

  void Push(MpscNode* node) {
    node->next.store(nullptr, std::memory_order_relaxed);
    // Acquire-release: orders this node after the one before it, whoever pushed that.
    MpscNode* const before = head_.exchange(node, std::memory_order_acq_rel);
    // Release: pairs with the acquire in Pop, which then sees what the pusher wrote to the node.
    before->next.store(node, std::memory_order_release);
  }

  // The oldest node, or null.
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

  // Whether nothing has been pushed that was not popped. Any thread. Never true while a node is in
  // the queue whose Push happened before; false may be out of date.
  bool Empty() const {
    // The stub may be the newest while older nodes wait before it: Pop appends it when it has
    // reached what looks like the last node. Acquire: pairs with the exchange in Push that appended
    // the stub; Pop's stores to tail_ before that are seen, so both being the stub means that
    // nothing is between.
    return head_.load(std::memory_order_acquire) == &stub_ &&
           tail_.load(std::memory_order_relaxed) == &stub_;
  }

 private:
  MpscNode stub_;
  std::atomic<MpscNode*> head_;  // the newest
  std::atomic<MpscNode*> tail_;  // the oldest; written by the popper, read also by Empty
};

}  // namespace entrain
