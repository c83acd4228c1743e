#include "lib/comm/create/creation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/create/probe.h"
#include "lib/comm/failure/failure_words.h"

namespace entrain {
namespace {

// The record that each rank sends to all other ranks in MeetAll. `inside`: the rank's slowest link
// to ranks of its own host. `across`: the rank's slowest link to ranks of other hosts.
struct MeetRecord {
  struct Side {
    uint64_t link;  // a value of the enum Link
    LinkSpeed speed;
  };
  Side inside, across;
};

// The tag of the call in which ranks compare their round trips.
constexpr int64_t kSitesTag = Tag::kUntagged - 1;

constexpr absl::string_view kProbe = "probe", kCreating = "creating the communicator";
// The time limit for a failed rank to tell the other ranks.
constexpr int64_t kTellNs = 2 * kSecond;

Link LinkOf(Medium medium, bool apart) {
  switch (medium) {
    case Medium::kProcess:
      return Link::kInproc;
    case Medium::kHostMemory:
      return Link::kShm;
    case Medium::kFabric:
      return apart ? Link::kFabricAcross : Link::kFabricInside;
    case Medium::kNetwork:
      break;
  }
  return apart ? Link::kTcpAcross : Link::kTcpInside;
}

// If a rank has no links on a side (inside or across), it reports this speed. Worsen with this
// speed changes nothing.
constexpr LinkSpeed kFastest{0, 1e9, 1e9};

void Worsen(const MeetRecord::Side& other, MeetRecord::Side* side) {
  side->link = std::max(side->link, other.link);
  side->speed.Worsen(other.speed);
}

bool Known(const MeetRecord::Side& side, Link least, Link most) {
  const LinkSpeed& speed = side.speed;
  return side.link >= static_cast<uint64_t>(least) && side.link <= static_cast<uint64_t>(most) &&
         speed.latency_us >= 0 && speed.latency_us < 1e9 && speed.gbs > 0 && speed.host_gbs > 0;
}

// Checks the lengths of the texts that a card contains.
absl::Status CheckTexts(const CommOptions& options) {
  constexpr size_t kMaxText = 1000;
  for (const auto& [name, text] :
       {std::pair("algorithms", &options.algorithms), std::pair("tuning", &options.tuning),
        std::pair("host_id", &options.runtime->host_id())}) {
    if (text->size() > kMaxText) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": longer than ", kMaxText, " bytes"));
    }
  }
  return absl::OkStatus();
}

// Starts the runtime and makes this rank's card. On an error no context number is reserved.
absl::StatusOr<Preparation> Prepare(const CommOptions& options) {
  ENTRAIN_ASSIGN_OR_RETURN(SharedSettings settings, SettingsOf(options));
  ENTRAIN_RETURN_IF_ERROR(options.runtime->EnsureStarted(options.store->host(), options.rank));
  ENTRAIN_ASSIGN_OR_RETURN(Card card,
                           MakeCard(*options.runtime, settings, options.rank, options.cpus));
  return Preparation{.runtime = options.runtime,
                     .name = options.name,
                     .settings = std::move(settings),
                     .card = std::move(card),
                     .timeout_ns = options.timeout_ns,
                     .silence_ns = options.silence_ns,
                     .limit_ns = options.timeout_ns};
}

}  // namespace

std::string SharedSettings::ToText() const {
  return absl::StrCat("algorithms=", entrain::ToText(overrides),
                      "; determinism=", NameOf(determinism), "; tuning=", tuning->Fingerprint(),
                      probe ? " probed" : "");
}

absl::StatusOr<SharedSettings> SettingsOf(const CommOptions& options) {
  ENTRAIN_RETURN_IF_ERROR(CheckTexts(options));
  SharedSettings settings;
  auto overrides = ParseOverrides(options.algorithms);
  if (!overrides.ok()) {
    return Annotate(overrides.status(), "algorithms");
  }
  settings.overrides = *std::move(overrides);
  settings.probe = options.tuning == kProbe;
  ENTRAIN_ASSIGN_OR_RETURN(settings.tuning, LoadTuning(settings.probe ? "" : options.tuning));
  settings.determinism = options.determinism;
  return settings;
}

SharedSettings SettingsOf(const CoreConfig& config) {
  return {config.overrides, config.tuning, config.determinism, config.probed};
}

absl::StatusOr<Card> MakeCard(Runtime& runtime, const SharedSettings& settings, int rank,
                              const CpuShare& cpus) {
  Engine& engine = runtime.engine();
  Card card;
  card.rank = rank;
  card.id = runtime.id();
  card.host_id = runtime.host_id();
  card.settings = settings.ToText();
  card.tuning = settings.tuning->source;
  card.cpus = cpus;
  card.answers = engine.seat().own_thread();
  for (const auto& transport : engine.transports()) {
    card.addresses.emplace_back(transport->traits().name, transport->address());
  }
  card.context = engine.ReserveContext();
  if (card.context == 0) {
    return absl::ResourceExhaustedError(
        "this process has created 65535 communicators, which is the limit");
  }
  return card;
}

namespace {

// Returns the record of this rank, whose host is `host_id`.
MeetRecord OwnLinks(CommCore& core, const std::string& host_id) {
  MeetRecord mine{{static_cast<uint64_t>(Link::kInproc), kFastest},
                  {static_cast<uint64_t>(Link::kFabricAcross), kFastest}};
  for (const Member& member : core.config().members) {
    if (member.endpoint == nullptr) {
      continue;
    }
    const bool apart = member.host_id != host_id;
    const Traits traits = core.engine().transports()[member.transport]->traits();
    Worsen({static_cast<uint64_t>(LinkOf(traits.medium, apart)),
            {static_cast<double>(traits.latency_ns) * 1e-3, traits.bytes_per_second * 1e-9,
             traits.host_bytes_per_second * 1e-9}},
           apart ? &mine.across : &mine.inside);
  }
  return mine;
}

// The record that each rank sends to all other ranks in FindSites, when all have connected.
struct WayRecord {
  int64_t longest_ns = 0;  // its longest round trip to another rank
  Paths::Near near;
};

// Returns a call by which every rank sends `mine` to every other rank. `all` gets the records by
// rank. The planner runs kCreate as an all-gather in which every rank sends to every other rank.
template <typename Record>
Call CallToShare(const Record& mine, std::vector<Record>* all, const CallOptions& options) {
  Call call;
  call.kind = CallKind::kCreate;
  call.in = {const_cast<Record*>(&mine), sizeof(mine)};
  call.out = {all->data(), static_cast<int64_t>(all->size() * sizeof(mine))};
  call.count = sizeof(mine);
  call.options = options;
  return call;
}

// Finds the sites (Paths::sites). Called only if a path may be long. Costs half a round trip.
absl::Status FindSites(CommCore& core, const CallOptions& options, Paths* paths) {
  WayRecord mine{.near = {.first = core.config().rank}};
  core.engine().seat().RunInDriver([&] {
    const std::vector<Member>& members = core.config().members;
    for (size_t r = 0; r < members.size(); ++r) {
      if (members[r].endpoint == nullptr) {
        continue;
      }
      const int64_t round_trip_ns = members[r].endpoint->round_trip_ns();
      mine.longest_ns = std::max(mine.longest_ns, round_trip_ns);
      if (round_trip_ns < kSiteRoundTrip) {
        mine.near.first = std::min(mine.near.first, static_cast<int64_t>(r));
        ++mine.near.count;
      }
    }
  });
  std::vector<WayRecord> all(static_cast<size_t>(core.size()));
  Call call = CallToShare(mine, &all, options);
  call.options.user_tag = kSitesTag;  // leaves the numbers of the caller's calls alone
  ENTRAIN_ASSIGN_OR_RETURN(const RefPtr<Work> work, core.Start(call, /*kick=*/true));
  work->Wait(Deadline::Never());  // the call has a deadline
  ENTRAIN_RETURN_IF_ERROR(work->status());
  std::vector<Paths::Near> near;
  int64_t longest_ns = 0;
  for (const WayRecord& one : all) {
    near.push_back(one.near);
    longest_ns = std::max(longest_ns, one.longest_ns);
  }
  paths->SetSites(near, longest_ns);
  return absl::OkStatus();
}

// Every two ranks exchange their MeetRecords. Then sets the core's paths to the slowest links of
// all ranks.
absl::Status MeetAll(CommCore& core, const std::string& host_id, const CallOptions& options,
                     StoreMeeting& meeting) {
  MeetRecord mine = OwnLinks(core, host_id);
  std::vector<MeetRecord> all(static_cast<size_t>(core.size()));
  ENTRAIN_ASSIGN_OR_RETURN(const RefPtr<Work> work,
                           core.Start(CallToShare(mine, &all, options), /*kick=*/true));
  // If a rank ends before it has connected, no path reports this. So check the meeting during the
  // wait.
  while (!work->Wait(Deadline::After(kLookNs))) {
    absl::Status failed = meeting.Check();
    if (!failed.ok()) {
      absl::Status told = failed;
      if (Blame blame = BlameOf(failed); blame.rank >= 0 && blame.rank < core.size()) {
        blame.peer_id = core.config().members[static_cast<size_t>(blame.rank)].id;
        failed = WithBlame(std::move(failed), blame);
        // A communicator never ends with some codes, for example kFailedPrecondition, or
        // kResourceExhausted of a rank without free descriptors. EndWith drops the blame of an
        // error with such a code. So change the code first.
        told = WithBlame(absl::Status(FailureWords::CodeHere(failed), failed.message()), blame);
      }
      core.EndWith(told);
      work->Wait(Deadline::Never());  // EndWith has ended the call
      return failed;
    }
  }
  ENTRAIN_RETURN_IF_ERROR(work->status());
  for (const MeetRecord& one : all) {
    if (!Known(one.inside, Link::kInproc, Link::kTcpInside) ||
        !Known(one.across, Link::kFabricAcross, Link::kTcpAcross)) {
      return absl::DataLossError("a rank tells of paths that this version does not know");
    }
    Worsen(one.inside, &mine.inside);
    Worsen(one.across, &mine.across);
  }
  Paths paths = {.inside = static_cast<Link>(mine.inside.link),
                 .cores = core.funnel().paths().cores,
                 .across = static_cast<Link>(mine.across.link),
                 .inside_speed = mine.inside.speed,
                 .across_speed = mine.across.speed};
  const bool apart = Crowd::Of(core.topology().host_of).hosts > 1;
  if (apart && paths.across == Link::kTcpAcross) {
    ENTRAIN_RETURN_IF_ERROR(FindSites(core, options, &paths));
  }
  core.SetPaths(paths);
  return absl::OkStatus();
}

// Does the part of creation that begins with the exchange of cards. If it fails, the caller must
// tell the other ranks.
absl::StatusOr<std::shared_ptr<Communicator>> Meet(Preparation prepared, StoreMeeting& meeting,
                                                   const Stop& stop) {
  const Card& card = prepared.card;
  const auto cards = ExchangeCards(meeting, stop);
  auto members = cards.ok() ? MembersFromCards(*prepared.runtime, *cards, card.rank)
                            : absl::StatusOr<std::vector<Member>>(cards.status());
  if (!members.ok()) {
    prepared.runtime->engine().ReleaseContext(card.context);
    return members.status();
  }
  for (int rank = 0; rank < prepared.parents; ++rank) {
    (*members)[static_cast<size_t>(rank)].parent_rank = rank;
  }
  SharedSettings& settings = prepared.settings;
  const auto core = CommCore::Make(
      prepared.runtime->shared_engine(), prepared.runtime->pool(),
      {prepared.name, card.rank, card.context, *std::move(members), std::move(settings.overrides),
       settings.tuning, Paths(), prepared.timeout_ns, prepared.name, settings.determinism,
       prepared.generation, settings.probe, prepared.silence_ns});
  core->engine().seat().RunInDriver([&] { core->Open(); });
  auto comm = std::make_shared<Communicator>(prepared.runtime, core);
  // In MeetAll every two ranks exchange messages. So after MeetAll this rank can reach all other
  // ranks.
  CallOptions barrier;
  barrier.deadline = stop.deadline;
  barrier.timeout_ns = prepared.limit_ns;
  if (const absl::Status met = MeetAll(*core, prepared.runtime->host_id(), barrier, meeting);
      !met.ok()) {
    return absl::StartsWith(met.message(), kCreating) ? met : Annotate(met, kCreating);
  }
  if (settings.probe) {
    const CallFunnel& funnel = core->funnel();
    const auto probed = ProbeLinks(*comm, funnel.model(), funnel.paths(), barrier);
    ENTRAIN_RETURN_IF_ERROR(Annotate(probed.status(), "probing links"));
    core->SetProbed(*probed);
  }
  return comm;
}

}  // namespace

void TellUnable(Store& store, const MeetingSeat& seat, const absl::Status& why, const Stop& stop) {
  const Stop brief{std::min(stop.deadline, Deadline::After(kTellNs)), stop.cancelled};
  store.Join(seat.key, seat.rank, seat.size, ForOthers(why, seat.rank), brief)
      .status()
      .IgnoreError();
}

std::string MeetingKey(absl::string_view name, int use) {
  return absl::StrCat("entrain/", name, "#", use);
}

absl::StatusOr<std::shared_ptr<Communicator>> MeetIn(Store& store, const MeetingSeat& seat,
                                                     absl::StatusOr<Preparation> prepared,
                                                     const Stop& stop) {
  if (!prepared.ok()) {
    TellUnable(store, seat, prepared.status(), stop);
    return prepared.status();
  }
  const std::shared_ptr<Runtime> runtime = prepared->runtime;
  const Context context = prepared->card.context;
  const int members = prepared->parents;
  auto meeting = store.Join(seat.key, seat.rank, seat.size, prepared->card.ToParts(), stop);
  if (!meeting.ok()) {
    runtime->engine().ReleaseContext(context);
    return meeting.status();
  }
  WatchedMeeting watched(**meeting, seat.watch);
  auto comm = Meet(*std::move(prepared), seat.watch ? watched : **meeting, stop);
  if (comm.ok()) {
    (*meeting)->Finish();
  } else {
    (*meeting)->Fail(ForOthers(comm.status(), seat.rank, members, seat.hurries));
  }
  return comm;
}

absl::StatusOr<std::shared_ptr<Communicator>> Communicator::Create(const CommOptions& options) {
  if (options.size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size: ", options.size, " is not positive"));
  }
  if (options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(absl::StrCat("rank: ", options.rank, " is not in [0, ",
                                                   options.size, "), the world's size"));
  }
  // Call NextUse before anything can fail on this rank alone. Otherwise, after a failure, this
  // rank's next attempt would use another key than the next attempts of the other ranks.
  const std::string key =
      MeetingKey(options.name, options.runtime->NextUse(options.store->url(), options.name));
  const Stop stop{Deadline::After(options.timeout_ns)};
  return MeetIn(*options.store, {.key = key, .rank = options.rank, .size = options.size},
                Prepare(options), stop);
}

absl::Status TellConnected(Communicator& grown, int members, const CallOptions& options) {
  uint8_t connected = 1;
  Call call;
  call.count = 1;
  call.options = options;
  if (grown.rank() >= members) {
    call.kind = CallKind::kRecv;
    call.out = {&connected, sizeof(connected)};
    return grown.Run(call);
  }
  call.kind = CallKind::kSend;
  call.in = {&connected, sizeof(connected)};
  for (int rank = members; rank < grown.size() && grown.rank() == 0; ++rank) {
    call.root = rank;
    grown.Run(call).IgnoreError();  // if a rank is lost, all these calls fail, and so does the next
  }
  return absl::OkStatus();
}

absl::Status ConfirmGrown(Communicator& grown, int members, bool well, int64_t timeout_ns) {
  const absl::Status ill = absl::AbortedError("a member does not know how the others fared");
  if (grown.size() > Survivors::kMostRanks) {
    return well ? absl::OkStatus() : ill;
  }
  uint32_t stands = well ? 1 : 0;
  ENTRAIN_RETURN_IF_ERROR(grown.Agree(&stands, timeout_ns));
  if (stands == 0) {
    return ill;
  }
  // A member whose agreement has timed out ends this communicator and keeps the old one. A newcomer
  // then does not use this communicator. A member that knows the result must go by it.
  const absl::Status ended = grown.status();
  return grown.rank() >= members && absl::IsAborted(ended) ? ended : absl::OkStatus();
}

absl::StatusOr<std::vector<Parts>> WatchedMeeting::Wait(const Stop& stop) {
  while (true) {
    const Stop slice{std::min(stop.deadline, Deadline::After(kLookNs)), stop.cancelled};
    auto table = base_.Wait(slice);
    // A timeout without blame means that the slice is over. A timeout with blame is the error of a
    // rank. All ranks get this error.
    const bool sliced = absl::IsDeadlineExceeded(table.status()) && !HasBlame(table.status());
    if (!sliced || stop.deadline.Passed(Clock::Real().Now())) {
      return table;
    }
    ENTRAIN_RETURN_IF_ERROR(Look());
  }
}

absl::Status WatchedMeeting::Check() {
  ENTRAIN_RETURN_IF_ERROR(base_.Check());
  return Look();
}

absl::Status WatchedMeeting::Look() {
  const absl::Status why = watch_();
  if (!why.ok()) {
    base_.Fail(why);
  }
  return why;
}

}  // namespace entrain
