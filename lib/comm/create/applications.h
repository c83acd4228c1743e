// The store keys and records by which a process asks to join a communicator, and the class by which
// a member takes newcomers in. The code of the members is growth.cc. The code of the newcomer is
// joining.cc.
//
// An application is a meeting of two ranks in the store (lib/store/store.h). The newcomer is rank 1
// and waits. When a member wants to take the newcomer in, it joins the meeting as rank 0. If one of
// the two processes dies, the store tells the other process. The member can also refuse the
// newcomer through the meeting. The two processes stay in the meeting until the newcomer is a
// member of the communicator.
//
// Keys. Each key begins with "entrain/NAME#grow/", which is left out in this list:
//   calls            counter of the calls of Grow
//   tickets          counter of applications. A newcomer increments it, and the result is the
//                    newcomer's ticket T
//   seen             counter of the applications that members have read, in ticket order
//   replica          the number of ranks of a replica, set by the members of a training run
//   apply/T          the meeting of the newcomer with ticket T and a member
//   B                prefix of the keys of one call of Grow. The newcomer gets it from rank 0
//   B/here/T         set by the newcomer with ticket T to show that it is alive. Rank 0 puts the
//                    newcomer on a roster after that
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

// The time limit for the answer of an invited newcomer. A live newcomer answers within
// milliseconds.
constexpr int64_t kAnswerInvitationNs = 2 * kSecond;

class GrowKeys {
 public:
  explicit GrowKeys(absl::string_view comm);
  std::string Calls() const { return prefix_ + "calls"; }
  std::string Tickets() const { return prefix_ + "tickets"; }
  std::string Seen() const { return prefix_ + "seen"; }
  std::string Replica() const { return prefix_ + "replica"; }
  std::string Application(int64_t ticket) const;
  // Returns the base of the keys of one call of Grow. `id`: the process of rank 0. `call`: the
  // number of the call in that process.
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
  std::string settings;       // SharedSettings::ToText; the members decide whether links are probed
  std::string tuning;         // the tuning's source, for errors
  bool connect_only = false;  // see GrowOptions; the same on members and newcomers

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

// The values with which a member compares an application.
struct Terms {
  std::string comm;             // the communicator's name
  std::vector<PeerId> members;  // by rank
  Application own;              // a member's own settings
};
// Returns OK, or the error with which a member refuses the application. `others`: the newcomers
// that are already accepted.
absl::Status Judge(const Application& application, const Terms& terms,
                   const std::vector<PeerId>& others);
// Returns true if this error is final, so that the newcomer must not apply again.
bool IsRefusal(const absl::Status& status);

// Returns the number of applications to the communicator `comm` that no member has read yet. Also
// counts applications of processes that have died since.
absl::StatusOr<int64_t> CountApplications(Store& store, absl::string_view comm, const Stop& stop);

// Publishes the number of ranks of each replica of a training run, which admits whole replicas.
absl::Status SetRanksOfReplica(Store& store, absl::string_view comm, int ranks, const Stop& stop);
// Returns this number; 0 if no member has published it yet.
absl::StatusOr<int> RanksOfReplica(Store& store, absl::string_view comm, const Stop& stop);

// Waits until `key` is set and returns its value. Returns the meeting's error if the meeting fails
// first.
absl::StatusOr<std::string> AwaitBeside(StoreMeeting& meeting, Store& store, const std::string& key,
                                        const Stop& stop);

// The newcomers that a member takes in during one call of Grow. If newcomers have not become
// members, the destructor tells them, and they apply again. Only one thread at a time may use an
// Intake.
class Intake {
 public:
  Intake(std::shared_ptr<Store> store, Terms terms, std::string base);

  // Waits for `min` newcomers, at most until `until`. Invites up to `max` newcomers and keeps those
  // that answer. If there are fewer than `min` applications, invites no newcomer. Too few newcomers
  // are not an error: every error comes from the store.
  absl::Status Collect(int min, int max, Deadline until, const Stop& stop);
  int size() const { return static_cast<int>(newcomers_.size()); }
  // Publishes the roster of an attempt. Fills in roster.tickets.
  absl::Status Announce(int attempt, Roster roster, const Stop& stop);
  // If a newcomer has died, returns an error that blames the newcomer's rank. Otherwise returns OK.
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
  // Returns the newcomer's application. If the newcomer cannot be taken in, sends the reason to the
  // newcomer and returns the reason.
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
