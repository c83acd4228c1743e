#include "lib/train/edit/round_closer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/train/edit/rendezvous.h"
#include "lib/train/worker/timed_call.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

constexpr int64_t kRingTag = 1, kTickTag = 2;
// A ring may come after any length of time.
constexpr int64_t kForever = std::numeric_limits<int64_t>::max() / 4;
constexpr int64_t kCloseNs = kSecond;
constexpr size_t kNumbers = sizeof(Attendance) / sizeof(int64_t);
constexpr size_t kOffer = sizeof(FragmentWait) / sizeof(int64_t);

Call OneNumber(CallKind kind, int root, uint64_t* number, int64_t limit_ns) {
  Call call;
  call.kind = kind;
  call.dtype = DType::kU64;
  call.root = root;
  call.count = 1;
  (kind == CallKind::kSend ? call.in : call.out) = {number, sizeof(*number)};
  call.options = TimedCall(limit_ns, kRingTag, true);
  return call;
}

}  // namespace

RoundCloser::RoundCloser(std::unique_ptr<ReplicaWorld> world, const ClosingRule& rule,
                         int64_t timeout_ns)
    : world_(std::move(world)),
      rule_(rule),
      timeout_ns_(timeout_ns > 0 ? timeout_ns : world_->comm()->timeout_ns()),
      numbers_(ReplicasOf(world_->places())),
      row_(RowOf(world_->mine().replica)),
      replicas_(numbers_.size()),
      fragments_(static_cast<size_t>(rule.fragments)) {
  BeginSessions();
}

RoundCloser::~RoundCloser() {
  former_.End("replaced by one with newcomers");
  calls_.End("destroyed");
}

// ---- Calls on a communicator

absl::Status RoundCloser::Calls::Ring(int to, int64_t limit_ns) {
  ENTRAIN_ASSIGN_OR_RETURN(RefPtr<Work> ring,
                           comm->Start(OneNumber(CallKind::kSend, to, &numbers->rung, limit_ns)));
  rings.push_back(std::move(ring));
  return absl::OkStatus();
}

// Blocks until the last rings have been received. The wait is short, because every rank receives
// rings soon (Listen). After an abort no call is under way.
void RoundCloser::Calls::AwaitRings() {
  for (const RefPtr<Work>& ring : rings) {
    ring->Wait(Deadline::Never(), true);
  }
  rings.clear();
}

// Errors are ignored, because an error ends the receive of the next rank too.
void RoundCloser::Calls::SendLastRing(int64_t limit_ns) {
  AwaitRings();
  numbers->rung = 0;  // no session
  if (comm->size() > 1) {
    Ring((comm->rank() + 1) % comm->size(), limit_ns).IgnoreError();
  }
}

void RoundCloser::Calls::End(absl::string_view why) {
  if (listening) {
    rings.push_back(std::move(listening));
    listening = {};
  }
  if (std::any_of(rings.begin(), rings.end(), [](const auto& call) { return !call->Test(); })) {
    comm->Abort(why);
  }
  AwaitRings();
}

size_t RoundCloser::RowOf(int replica) const {
  return static_cast<size_t>(std::lower_bound(numbers_.begin(), numbers_.end(), replica) -
                             numbers_.begin());
}

void RoundCloser::Arrive(uint64_t flags) {
  since_ns_.store(Clock::Real().Now(), std::memory_order_relaxed);
  flags_.store(static_cast<int64_t>(flags & (kLeaving | kInsist)), std::memory_order_relaxed);
  arrivals_.fetch_add(1, std::memory_order_release);  // see Mine
}

void RoundCloser::Offer(int fragment, int64_t due_ns) {
  FragmentOffer& offer = fragments_[static_cast<size_t>(fragment)];
  if (offer.since_ns.load(std::memory_order_relaxed) == 0) {
    offer.due_ns.store(due_ns, std::memory_order_relaxed);
    offer.since_ns.store(Clock::Real().Now(), std::memory_order_release);
  }
}

void RoundCloser::Withdraw(int fragment) {
  fragments_[static_cast<size_t>(fragment)].since_ns.store(0, std::memory_order_release);
}

bool RoundCloser::offers() const {
  return std::any_of(fragments_.begin(), fragments_.end(), [](const FragmentOffer& offer) {
    return offer.since_ns.load(std::memory_order_acquire) != 0;
  });
}

// Writes this rank's message of a tick: its attendance, and its offers.
void RoundCloser::Fill(std::vector<int64_t>* message) const {
  const Attendance mine = Mine();
  std::memcpy(message->data(), &mine, sizeof(mine));
  const int64_t now_ns = Clock::Real().Now();
  for (size_t fragment = 0; fragment < fragments_.size(); ++fragment) {
    const int64_t since_ns = fragments_[fragment].since_ns.load(std::memory_order_acquire);
    const int64_t due_ns = fragments_[fragment].due_ns.load(std::memory_order_relaxed);
    const FragmentWait wait = {
        .waited_ns = since_ns == 0 ? 0 : std::max<int64_t>(1, now_ns - since_ns),
        .slack_ns = due_ns - now_ns - round_ns_.load(std::memory_order_relaxed)};
    std::memcpy(message->data() + kNumbers + fragment * kOffer, &wait, sizeof(wait));
  }
}

Attendance RoundCloser::Mine() const {
  Attendance mine;
  mine.arrivals = arrivals_.load(std::memory_order_acquire);  // see Arrive
  mine.flags = flags_.load(std::memory_order_relaxed);
  mine.has_anchors = ready_.load(std::memory_order_acquire) ? 1 : 0;  // see SetReady
  const bool waits = mine.arrivals > replicas_[row_].arrivals;
  mine.waited_ns = waits ? Clock::Real().Now() - since_ns_.load(std::memory_order_relaxed) : 0;
  return mine;
}

// Receives the rings that have arrived, and posts a receive for the next ring.
void RoundCloser::Listen() {
  if (closed_ || world_->comm()->size() == 1) {
    return;  // no other rank rings
  }
  // Test also makes the calls progress. If the engine has no thread of its own, nothing else does
  // so here.
  while (!calls_.listening || (calls_.listening->Test() && calls_.listening->status().ok())) {
    heard_ = calls_.listening ? std::max(heard_, calls_.numbers->received) : heard_;
    absl::StatusOr<RefPtr<Work>> work =
        calls_.comm->Start(OneNumber(CallKind::kRecvAny, -1, &calls_.numbers->received, kForever));
    if (!work.ok()) {
      return;  // the communicator has ended; the next arrival returns its error
    }
    calls_.listening = *std::move(work);
  }
}

absl::Status RoundCloser::Ring() {
  Worker::Doing("rendezvous: calling the other replicas", timeout_ns_);
  calls_.AwaitRings();
  calls_.numbers->rung = session_ + 1;
  for (int rank = 0; rank < calls_.comm->size(); ++rank) {
    if (rank != calls_.comm->rank()) {
      ENTRAIN_RETURN_IF_ERROR(calls_.Ring(rank, timeout_ns_));
    }
  }
  return absl::OkStatus();
}

bool RoundCloser::Called() {
  Listen();
  in_session_ = in_session_ || heard_ > session_;
  return in_session_;
}

// Decides from the messages of all ranks: told_, and `waits`.
Closing RoundCloser::Decide(absl::Span<const FragmentWait> waits) const {
  Closing closing = CloseRound(rule_, told_, world_->places(), replicas_);
  if (closing.kind == Closing::Kind::kWait && rule_.fragments > 0) {
    closing = CloseFragment(rule_, told_, waits, world_->places(), replicas_);
  }
  return closing;
}

absl::StatusOr<Closing> RoundCloser::Tick() {
  if (pending_) {
    return last_;
  }
  if (!Called()) {
    ENTRAIN_RETURN_IF_ERROR(Ring());
    in_session_ = true;
  }
  const size_t width = kNumbers + fragments_.size() * kOffer;
  std::vector<int64_t> mine(width), all(width * told_.size());
  Fill(&mine);
  const CallOptions options = TimedCall(timeout_ns_, kTickTag, true);
  Worker::Doing("rendezvous: which replicas have come", options.timeout_ns);
  ENTRAIN_RETURN_IF_ERROR(world_->comm()->AllGather(
      mine.data(), all.data(), static_cast<int64_t>(width), DType::kI64, options));
  std::vector<FragmentWait> waits(told_.size() * fragments_.size());
  for (size_t rank = 0; rank < told_.size(); ++rank) {
    std::memcpy(static_cast<void*>(&told_[rank]), &all[rank * width], sizeof(Attendance));
    if (!fragments_.empty()) {
      std::memcpy(static_cast<void*>(&waits[rank * fragments_.size()]),
                  &all[rank * width + kNumbers], fragments_.size() * sizeof(FragmentWait));
    }
  }
  last_ = Decide(waits);
  pending_ = last_.kind != Closing::Kind::kWait;
  ++ticks_;
  missed_ = replicas_[row_].missed;
  Attend(last_, &replicas_);
  if (!last_.others_wait) {
    in_session_ = false;
    ++session_;
  }
  return last_;
}

absl::Status RoundCloser::CheckWait() {
  const Attendance mine = Mine();
  const auto me = static_cast<size_t>(world_->comm()->rank());
  const int64_t waited_ns = std::min(mine.waited_ns, Clock::Real().Now() - patient_since_ns_);
  if (pending_ || waited_ns <= timeout_ns_ || told_[me].arrivals < mine.arrivals) {
    return absl::OkStatus();  // judges only an arrival that a tick has reported
  }
  std::set<int> missing;
  Blame blame;
  for (size_t rank = 0; rank < told_.size(); ++rank) {
    const int replica = world_->places()[rank].replica;
    if (told_[rank].arrivals <= replicas_[RowOf(replica)].arrivals) {
      blame.rank = missing.empty() ? static_cast<int32_t>(rank) : blame.rank;
      missing.insert(replica);
    }
  }
  const absl::Status why = absl::DeadlineExceededError(
      absl::StrCat("the round was not closed within ", timeout_ns_ / kMillisecond,
                   " ms: these replicas have not come: ", absl::StrJoin(missing, ", ")));
  if (blame.rank >= 0) {
    blame.peer_id = world_->comm()->Members()[static_cast<size_t>(blame.rank)].id;
    blame.elapsed_ns = waited_ns;
    blame.deadline_ns = timeout_ns_;
    impatient_ = true;
    world_->comm()->EndWith(WithBlame(why, blame));
  }
  return why;
}

// ---- Replicas are lost or join

// Drops the rows of replicas that are lost, and adds rows for newcomers.
void RoundCloser::SetRows(const std::vector<int>& replicas) {
  std::vector<Attended> rows;
  std::vector<bool> decided;
  for (const int replica : replicas) {
    const size_t row = RowOf(replica);
    const bool known = row < numbers_.size() && numbers_[row] == replica;
    rows.push_back(known ? replicas_[row] : Attended());
    decided.push_back(known && last_.kind != Closing::Kind::kWait && last_.replicas[row]);
  }
  replicas_ = std::move(rows);
  if (last_.kind != Closing::Kind::kWait) {
    last_.replicas = std::move(decided);
  }
  numbers_ = replicas;
  row_ = RowOf(world_->mine().replica);
}

// Begins to use a new communicator. A rank whose arrival has not been answered will ring again.
void RoundCloser::BeginSessions() {
  calls_.comm = world_->comm();
  told_.assign(world_->places().size(), Attendance());
  in_session_ = false;
  session_ = heard_ = 0;
  Listen();
}

void RoundCloser::Close() {
  closed_ = true;
  calls_.SendLastRing(timeout_ns_);
  Worker::Doing("leaving: the last message of another replica", kCloseNs + kSecond);
  if (calls_.listening) {
    // All ranks call Close. If the previous rank dies before it has called Close, this wait ends
    // without the last ring. The destructor then ends the communicator.
    calls_.listening->Wait(Deadline::After(kCloseNs));
  }
}

void RoundCloser::Adopt(std::shared_ptr<Communicator> larger,
                        const std::vector<ReplicaPlace>& places) {
  former_.End("replaced by one with newcomers");
  former_ = std::exchange(calls_, Calls());
  former_.SendLastRing(timeout_ns_);
  SetRows(ReplicasOf(places));
  world_->Adopt(std::move(larger), places);
  BeginSessions();
}

void RoundCloser::Join(int64_t ticks, const std::map<int, Attended>& members) {
  ticks_ = ticks;
  for (const auto& [replica, attended] : members) {
    replicas_[RowOf(replica)] = attended;
  }
}

// ---- After a loss

absl::Status RoundCloser::GoOn(const ReplicaWorld& left) {
  const std::shared_ptr<Communicator> all = left.comm();
  calls_.End("replaced after a loss");
  SetRows(ReplicasOf(left.places()));
  Worker::Doing("after a loss: making the group that closes rounds", all->timeout_ns());
  ENTRAIN_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> comm, all->Split(0, all->rank()));
  world_->Adopt(std::move(comm), left.places());
  BeginSessions();

  std::vector<int64_t> ticks(static_cast<size_t>(all->size()));
  const CallOptions options = TimedCall(timeout_ns_, -1, true);
  Worker::Doing("after a loss: which rounds are closed", options.timeout_ns);
  ENTRAIN_RETURN_IF_ERROR(all->AllGather(&ticks_, ticks.data(), 1, DType::kI64, options));
  const auto least = std::min_element(ticks.begin(), ticks.end());
  const auto most = std::max_element(ticks.begin(), ticks.end());
  if (*most > *least + 1) {
    return absl::DataLossError(absl::StrCat(
        "after a loss: rank ", most - ticks.begin(), " of those left has decided ", *most,
        " times about rounds, rank ", least - ticks.begin(), " ", *least, " times"));
  }
  if (*most > *least) {
    ENTRAIN_RETURN_IF_ERROR(ShareDecision(*all, static_cast<int>(most - ticks.begin())));
  }
  patient_since_ns_ = impatient_ ? patient_since_ns_ : Clock::Real().Now();
  return absl::OkStatus();
}

// Collective over `all`. Rank `from` has finished the last tick and sends its decision. Ranks that
// have not finished this tick take over the decision.
absl::Status RoundCloser::ShareDecision(Communicator& all, int from) {
  const size_t rows = numbers_.size();
  std::vector<int64_t> record = {ticks_, static_cast<int64_t>(last_.kind),
                                 last_.others_wait ? 1 : 0, last_.fragment};
  const size_t head = record.size();
  for (size_t row = 0; row < rows; ++row) {
    const bool decided = last_.kind != Closing::Kind::kWait && last_.replicas[row];
    record.insert(record.end(), {replicas_[row].arrivals, replicas_[row].missed, decided ? 1 : 0});
  }
  const CallOptions options = TimedCall(timeout_ns_, -1, true);
  Worker::Doing("after a loss: the last decision about a round", options.timeout_ns);
  ENTRAIN_RETURN_IF_ERROR(
      all.Broadcast(record.data(), std::ssize(record), DType::kI64, from, options));
  if (ticks_ == record[0]) {
    return absl::OkStatus();
  }
  ticks_ = record[0];
  missed_ = replicas_[row_].missed;
  last_ = Closing();
  last_.kind = static_cast<Closing::Kind>(record[1]);
  last_.others_wait = record[2] != 0;
  last_.fragment = static_cast<int>(record[3]);
  for (size_t row = 0; row < rows; ++row) {
    const int64_t* const sent = &record[head + 3 * row];
    replicas_[row] = {.arrivals = sent[0], .missed = sent[1]};
    if (last_.kind != Closing::Kind::kWait) {
      last_.replicas.push_back(sent[2] != 0);
    }
  }
  pending_ = last_.kind != Closing::Kind::kWait;
  return absl::OkStatus();
}

}  // namespace entrain
