// A tcp proxy that delays bytes. It has an address of its own. Bytes to and from the server behind
// it arrive later by a given time. The proxy can also alter a byte.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/net/listener.h"
#include "lib/net/socket.h"

namespace entrain {

class SlowWay {
 public:
  SlowWay(const Address& server, int64_t one_way_ns)
      : server_(server),
        one_way_ns_(one_way_ns),
        listener_(*OpenListener(*Address::FromHost("127.0.0.1", 0), {})),
        stop_(eventfd(0, EFD_CLOEXEC)),
        thread_(&SlowWay::Run, this) {}
  ~SlowWay() {
    const uint64_t one = 1;
    (void)!write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }
  const Address& address() const { return listener_.address; }
  // Changes one bit of the next bytes that come from either side.
  void AlterOnce() { alter_.store(true); }

 private:
  struct Piece {
    int64_t due_ns;
    std::string bytes;
  };
  struct Way {
    int from = -1, to = -1;
    std::deque<Piece> pieces;
    bool ended = false;  // `from` has ended
  };
  struct Pair {
    Fd client, server;
    Way there, back;
  };

  void Run() {
    while (true) {
      std::vector<pollfd> waited = {{stop_.get(), POLLIN, 0}, {listener_.fd.get(), POLLIN, 0}};
      for (const auto& pair : pairs_) {
        for (const Way* way : {&pair->there, &pair->back}) {
          waited.push_back({way->from, static_cast<short>(way->ended ? 0 : POLLIN), 0});
        }
      }
      poll(waited.data(), waited.size(), SleepMs());
      if ((waited[0].revents & POLLIN) != 0) {
        return;
      }
      AcceptAll();
      for (auto& pair : pairs_) {
        for (Way* way : {&pair->there, &pair->back}) {
          Read(*way);
          Write(*way);
        }
      }
      // The end of a connection is delayed like the bytes before it.
      std::erase_if(pairs_, [](const auto& pair) {
        return (pair->there.ended && pair->there.pieces.empty()) ||
               (pair->back.ended && pair->back.pieces.empty());
      });
    }
  }

  int SleepMs() const {
    int64_t due = Clock::Real().Now() + kSecond;
    for (const auto& pair : pairs_) {
      for (const Way* way : {&pair->there, &pair->back}) {
        due = way->pieces.empty() ? due : std::min(due, way->pieces.front().due_ns);
      }
    }
    return static_cast<int>(std::max<int64_t>(0, (due - Clock::Real().Now()) / kMillisecond + 1));
  }

  void AcceptAll() {
    while (true) {
      auto client = Accept(listener_.fd.get());
      if (!client.ok() || !client->valid()) {
        return;
      }
      auto server = Connect(server_, {Deadline::After(10 * kSecond)});
      if (!server.ok()) {
        continue;
      }
      auto pair = std::make_unique<Pair>();
      pair->client = *std::move(client);
      pair->server = *std::move(server);
      pair->there = {pair->client.get(), pair->server.get(), {}, false};
      pair->back = {pair->server.get(), pair->client.get(), {}, false};
      pairs_.push_back(std::move(pair));
    }
  }

  void Read(Way& way) {
    char bytes[16 << 10];
    while (!way.ended) {
      const auto got = ReadSome(way.from, bytes, sizeof(bytes));
      if (got.ok() && *got == 0) {
        return;
      }
      way.ended = !got.ok();
      if (got.ok() && alter_.exchange(false)) {
        bytes[*got / 2] ^= 1;
      }
      way.pieces.push_back(
          {Clock::Real().Now() + one_way_ns_, std::string(bytes, got.ok() ? *got : 0)});
    }
  }

  static void Write(Way& way) {
    while (!way.pieces.empty() && way.pieces.front().due_ns <= Clock::Real().Now()) {
      const std::string& bytes = way.pieces.front().bytes;
      (void)WriteFull(way.to, bytes.data(), bytes.size(), {Deadline::After(kSecond)});
      way.pieces.pop_front();
    }
  }

  const Address server_;
  const int64_t one_way_ns_;
  Listener listener_;
  Fd stop_;
  std::atomic<bool> alter_{false};
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::thread thread_;
};

}  // namespace entrain
