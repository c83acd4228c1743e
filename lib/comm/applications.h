// The store keys and records by which processes ask to be taken into a communicator, and the class
// with which a member takes them in (used by growth.cc). The newcomer's side is joining.cc.
//
// An application is a meeting of two ranks in the store (lib/store/store.h). The newcomer is rank 1
// and waits. A member joins as rank 0 when it wants to take the newcomer in. If one of the two
// dies, the store tells the other. The member can also refuse the newcomer through the meeting.
// Both stay in this meeting until the newcomer is a member.
//
// Keys. All of them begin with "entrain/NAME#grow/":
//   calls            counter of the calls of Grow
//   tickets          counter of applications. The newcomer that raises it to T gets ticket T
//   seen             counter of the applications that members have looked at, in ticket order
//   apply/T          the meeting of the newcomer with ticket T and a member
//   B                base of the keys of one call of Grow. The newcomer gets it from rank 0
//   B/here/T         set by the newcomer with ticket T to show that it lives. Only then is the
//                    newcomer put on a roster
//   B/A/roster       the newcomers of attempt A, with their ranks
//   B/A              the meeting of attempt A. All ranks of the new communicator join it
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/store/store.h"
#include "transports/transport.h"

namespace entrain {

// The time that an invited newcomer has to answer. A newcomer that is waiting in the store answers
// within milliseconds.
constexpr int64_t kAnswerInvitationNs = 2 * kSecond;

class GrowKeys {
 public:
  explicit GrowKeys(absl::string_view comm);
  std::string Calls() const { return prefix_ + "calls"; }
  std::string Tickets() const { return prefix_ + "tickets"; }
  std::string Seen() const { return prefix_ + "seen"; }
  std::string Application(int64_t ticket) const;
  // Returns the base of the keys of one call of Grow: `call` is its number in the process `id`.
  std::string Base(const PeerId& id, uint64_t call) const;
  static std::string Here(absl::string_view base, int64_t ticket);
  static std::string Attempt(absl::string_view base, int attempt);
  static std::string Roster(absl::string_view base, int attempt);

 private:
  const std::string prefix_;
};

// The record that a newcomer publishes about itself.
struct Application {
  PeerId id{};
  std::string settings;  // SharedSettings::ToText; the members decide whether links are probed
  std::string tuning;    // the tuning's source, for errors

  Parts ToParts() const;
  static absl::StatusOr<Application> FromParts(const Parts& parts);
};

// The newcomers of one attempt. Rank members + i is the newcomer with tickets[i].
struct Roster {
  uint64_t generation = 0;  // the generation of the new communicator
  int32_t members = 0;
  bool probe = false;    // the ranks measure their links
  int64_t limit_ns = 0;  // the time limit of the attempt
  std::vector<int64_t> tickets = {};

  int size() const { return members + static_cast<int>(tickets.size()); }
  int RankOf(int64_t ticket) const;  // -1: not on the roster
  std::string Encode() const;
  static absl::StatusOr<Roster> Decode(absl::string_view bytes);
};

// The members' values, with which a member judges an application.
struct Terms {
  std::string comm;             // the communicator's name
  std::vector<PeerId> members;  // by rank
  Application own;              // a member's own settings
};
// Returns the error with which a member refuses the application, or OK. `others`: the newcomers
// that have been accepted already.
absl::Status Judge(const Application& application, const Terms& terms,
                   const std::vector<PeerId>& others);
// Returns true if a newcomer that got this error must not apply again.
bool IsRefusal(const absl::Status& status);

// Returns how many applications to the communicator `comm` no member has looked at. Also counts the
// applications of processes that have died meanwhile.
absl::StatusOr<int64_t> CountApplications(Store& store, absl::string_view comm, const Stop& stop);

// Waits until `key` is set and returns its value. Returns the meeting's error if the meeting fails
// first.
absl::StatusOr<std::string> AwaitBeside(StoreMeeting& meeting, Store& store, const std::string& key,
                                        const Stop& stop);

// The newcomers that a member takes in, in one call of Grow. The destructor tells the newcomers
// that were not taken in, and they apply again. Only one thread at a time may use the object.
class Intake {
 public:
  Intake(std::shared_ptr<Store> store, Terms terms, std::string base);

  // Waits until `until` for `min` newcomers, invites up to `max`, and keeps those that answer. If
  // there are fewer than `min` applications, invites none. Returns only errors of the store.
  absl::Status Collect(int min, int max, Deadline until, const Stop& stop);
  int size() const { return static_cast<int>(newcomers_.size()); }
  // Publishes the roster of an attempt; fills in roster.tickets.
  absl::Status Announce(int attempt, Roster roster, const Stop& stop);
  // Returns an error if a newcomer has died, and blames the newcomer's rank. Otherwise returns OK.
  // Never blocks.
  absl::Status Check() const;
  // Refuses the newcomer that has this rank.
  void Refuse(int rank, const absl::Status& why);
  // Must be called when the newcomers have become members. Removes the keys of this call.
  void Finish(const Stop& stop);

 private:
  struct Newcomer {
    int64_t ticket;
    PeerId id;
    std::unique_ptr<StoreMeeting> meeting;
  };
  absl::Status Invite(int64_t count, const Stop& stop);
  // Returns the newcomer's application. If the newcomer cannot be taken in, tells it the reason and
  // returns the reason.
  absl::StatusOr<Application> Hear(StoreMeeting& meeting, const Stop& stop) const;
  std::vector<PeerId> ids() const;

  const std::shared_ptr<Store> store_;
  const Terms terms_;
  const GrowKeys keys_;
  const std::string base_;
  std::vector<Newcomer> newcomers_;
  std::vector<std::string> used_keys_;
};

}  // namespace entrain
