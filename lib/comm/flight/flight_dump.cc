#include "lib/comm/flight/flight_dump.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "lib/base/status.h"
#include "lib/base/text.h"
#include "lib/comm/comm_core.h"

namespace entrain {
namespace {

std::string Hex(const void* bytes, size_t size) {
  return absl::BytesToHexString({static_cast<const char*>(bytes), size});
}

// Returns a JSON string. CleanText removes control characters and bytes that are not UTF-8.
std::string Text(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : CleanText(text)) {
    if (c == '"' || c == '\\') {
      quoted.push_back('\\');
    }
    quoted.push_back(c);
  }
  quoted.push_back('"');
  return quoted;
}
std::string NumberOr(int64_t number, int64_t none) {
  return number == none ? "null" : absl::StrCat(number);
}
std::string Seconds(int64_t ns) {
  return absl::StrFormat("%.6f", static_cast<double>(std::max<int64_t>(ns, 0)) * 1e-9);
}
std::string Ranks(const std::vector<int>& ranks) {
  return absl::StrCat("[", absl::StrJoin(ranks, ","), "]");
}
absl::string_view Bool(bool value) {
  return value ? "true" : "false";
}

// Builds the members of a JSON object, with the commas between them.
class Members {
 public:
  Members& Put(absl::string_view name, absl::string_view json) {
    absl::StrAppend(&text_, text_.empty() ? "" : ",", "\"", name, "\":", json);
    return *this;
  }
  std::string Object() const { return absl::StrCat("{", text_, "}"); }

 private:
  std::string text_;
};

template <typename Items, typename Each>
std::string List(const Items& items, Each each) {
  return absl::StrCat(
      "[\n   ",
      absl::StrJoin(items, ",\n   ",
                    [&](std::string* out, const auto& item) { absl::StrAppend(out, each(item)); }),
      "]");
}

std::string ToJson(const FlightMember& member) {
  return Members()
      .Put("process", Text(member.process))
      .Put("world_rank", NumberOr(member.world_rank, -1))
      .Put("host", Text(member.host))
      .Put("transport", Text(member.transport))
      .Put("address", Text(member.address))
      .Object();
}

std::string ToJson(const CallNumbers::Count& count) {
  Members members;
  members.Put("tag", NumberOr(count.tag, -1));
  if (count.peer < 0) {
    members.Put("collectives", absl::StrCat(count.used));
  } else {
    members.Put(count.sends ? "sends_to" : "receives_from", absl::StrCat(count.peer))
        .Put("messages", absl::StrCat(count.used));
  }
  return members.Object();
}

std::string ErrorJson(const absl::Status& ended) {
  const Blame blame = BlameOf(ended);
  const bool known = std::any_of(blame.peer_id.begin(), blame.peer_id.end(),
                                 [](uint8_t byte) { return byte != 0; });
  return Members()
      .Put("code", Text(CodeName(ToCode(ended))))
      .Put("message", Text(ended.message()))
      .Put("rank", NumberOr(blame.rank, -1))
      .Put("process", known ? Text(Hex(blame.peer_id.data(), blame.peer_id.size())) : "null")
      .Put("operation", Text(blame.operation))
      .Put("tag", NumberOr(blame.tag, -1))
      .Put("number", NumberOr(static_cast<int64_t>(blame.sequence), 0))
      .Put("phase", Text(PhaseName(blame.phase)))
      .Object();
}

std::string ToJson(const FlightComm::Recorded& recorded, int64_t now_ns) {
  const FlightEntry& entry = recorded.entry;
  if (entry.torn) {
    return R"({"torn":true})";
  }
  const FlightCall& call = entry.call;
  const Descriptor& descriptor = call.descriptor;
  const bool inlined = entry.mark == 0;
  const bool over = entry.state == FlightState::kDone || entry.state == FlightState::kFailed;
  Members members;
  members.Put("number", NumberOr(static_cast<int64_t>(call.number), 0))
      .Put("tag", NumberOr(call.tag, -1))
      .Put("operation", Text(NameOf(call.kind)))
      .Put("peer", IsMessage(call.kind) ? NumberOr(call.peer, -1) : "null")
      .Put("arguments", Text(ToString(descriptor)))
      .Put("descriptor", Text(Hex(&descriptor, sizeof(descriptor))))
      .Put("bytes", absl::StrCat(descriptor.count * SizeOf(static_cast<DType>(descriptor.dtype))))
      .Put("algorithm", Text(call.algorithm == nullptr ? "" : call.algorithm))
      .Put("path", inlined ? R"("inline")" : R"("executor")")
      .Put("state", Text(NameOf(entry.state)))
      .Put("started_s_ago", inlined ? "null" : Seconds(now_ns - call.started_ns))
      .Put("state_s",
           inlined ? "null" : Seconds(now_ns - std::max(entry.since_ns, call.started_ns)));
  if (!over) {
    members.Put("receives_from", Ranks(recorded.receives_from))
        .Put("sends_to", Ranks(recorded.sends_to));
  }
  return members.Object();
}

std::string ToJson(const FlightComm& comm, int64_t now_ns) {
  const auto plain = [](const auto& value) { return ToJson(value); };
  return Members()
      .Put("id", Text(comm.id))
      .Put("name", Text(comm.name))
      .Put("world", Text(comm.world))
      .Put("generation", absl::StrCat(comm.generation))
      .Put("rank", absl::StrCat(comm.rank))
      .Put("size", absl::StrCat(comm.members.size()))
      .Put("driver_answers", Bool(comm.driver_answers))
      .Put("ended", comm.ended.ok() ? "null" : ErrorJson(comm.ended))
      .Put("members", List(comm.members, plain))
      .Put("started", List(comm.started, plain))
      .Put("calls_submitted", absl::StrCat(comm.submitted))
      .Put("calls_inline", absl::StrCat(comm.inlined))
      .Put("calls", List(comm.calls, [now_ns](const auto& call) { return ToJson(call, now_ns); }))
      .Object();
}

}  // namespace

void AddOpen(const FlightLook& look, std::vector<FlightComm::Recorded>* calls) {
  for (const FlightOpen& open : look.open) {
    auto found = std::find_if(calls->begin(), calls->end(), [&](const auto& recorded) {
      return open.mark != 0 && recorded.entry.mark == open.mark;
    });
    if (found != calls->end() && found->entry.state == FlightState::kDone) {
      continue;
    }
    if (found == calls->end()) {
      // A later call has overwritten the entry of this call. So this call is older than all calls
      // in the list.
      FlightEntry entry;
      entry.call = open.call;
      entry.mark = open.mark == 0 ? ~uint64_t{0} : open.mark;
      entry.since_ns = open.call.started_ns;
      found = calls->insert(calls->begin(), {entry, {}, {}});
    }
    if (found->entry.state == FlightState::kFailed) {
      // since_ns is the time of the failure, not the time at which open.state began.
      found->entry.since_ns = open.call.started_ns;
    }
    found->entry.state = open.state;
    found->receives_from = open.receives_from;
    found->sends_to = open.sends_to;
  }
}

FlightComm Describe(const CommCore& core, const FlightLook& look) {
  const CoreConfig& config = core.config();
  FlightComm comm;
  comm.name = config.name;
  comm.world = config.world;
  comm.generation = config.generation;
  comm.rank = config.rank;
  for (size_t r = 0; r < config.members.size(); ++r) {
    const Member& member = config.members[r];
    comm.members.push_back({Hex(member.id.data(), member.id.size()), member.world_rank,
                            member.host_id, std::string(core.transport_to(static_cast<int>(r))),
                            r < look.addresses.size() ? look.addresses[r] : member.address});
  }
  // A process never uses a context number twice. All members know the context number of the first
  // member.
  comm.id = absl::StrCat(comm.members[0].process, "-", config.members[0].context);
  comm.ended = core.end().status();
  comm.driver_answers = look.answered;
  comm.started = core.funnel().counts();
  comm.submitted = core.flight().submitted();
  comm.inlined = core.flight().inlined();
  for (const FlightEntry& entry : core.flight().Read()) {
    comm.calls.push_back({entry, {}, {}});
  }
  AddOpen(look, &comm.calls);
  return comm;
}

std::string ToJson(const FlightDump& dump) {
  return absl::StrCat(
      Members()
          .Put("entrain_flight", "1")
          .Put("why", Text(dump.why))
          .Put("host", Text(dump.host))
          .Put("pid", absl::StrCat(dump.pid))
          .Put("unix_ms", absl::StrCat(dump.unix_ms))
          .Put("communicators",
               List(dump.comms, [&](const FlightComm& comm) { return ToJson(comm, dump.now_ns); }))
          .Object(),
      "\n");
}

}  // namespace entrain
