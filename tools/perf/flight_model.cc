#include "tools/perf/flight_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/text.h"
#include <nlohmann/json.hpp>

namespace entrain::perf {
namespace {

using Json = nlohmann::json;

std::string Text(const Json& object, const char* name) {
  return CleanText(object.at(name).get<std::string>());
}
template <typename Number>
Number NumberOr(const Json& object, const char* name, Number none) {
  const Json& value = object.at(name);
  return value.is_null() ? none : value.get<Number>();
}

RankCall CallFrom(const Json& json) {
  RankCall call;
  call.number = NumberOr<uint64_t>(json, "number", 0);
  call.tag = NumberOr<int64_t>(json, "tag", -1);
  call.operation = Text(json, "operation");
  call.peer = NumberOr(json, "peer", -1);
  call.message =
      call.operation == "send" || call.operation == "recv" || call.operation == "recv_any";
  call.arguments = Text(json, "arguments");
  call.descriptor = Text(json, "descriptor");
  call.algorithm = Text(json, "algorithm");
  call.state = Text(json, "state");
  call.started_s_ago = NumberOr(json, "started_s_ago", -1.0);
  call.state_s = NumberOr(json, "state_s", -1.0);
  call.receives_from = json.value("receives_from", std::vector<int>());
  call.sends_to = json.value("sends_to", std::vector<int>());
  return call;
}

void TakeStarted(const Json& json, RankDump* dump) {
  const auto tag = NumberOr<int64_t>(json, "tag", -1);
  if (json.contains("collectives")) {
    dump->collectives[tag] = json["collectives"].get<uint64_t>();
    return;
  }
  const bool sends = json.contains("sends_to");
  dump->messages[{tag, json.at(sends ? "sends_to" : "receives_from").get<int>(), sends}] =
      json.at("messages").get<uint64_t>();
}

RankDump DumpFrom(const Json& process, const Json& json) {
  RankDump dump;
  dump.host = Text(process, "host");
  dump.pid = process.at("pid").get<int64_t>();
  dump.unix_ms = process.at("unix_ms").get<int64_t>();
  dump.id = Text(json, "id");
  dump.name = Text(json, "name");
  dump.generation = json.at("generation").get<uint64_t>();
  dump.rank = json.at("rank").get<int>();
  dump.size = json.at("size").get<int>();
  dump.driver_answers = json.at("driver_answers").get<bool>();
  if (const Json& ended = json.at("ended"); !ended.is_null()) {
    dump.ended =
        RankError{Text(ended, "code"), Text(ended, "message"), NumberOr(ended, "rank", -1)};
  }
  for (const Json& member : json.at("members")) {
    dump.members.push_back({Text(member, "process"), Text(member, "host"),
                            Text(member, "transport"), Text(member, "address")});
  }
  for (const Json& started : json.at("started")) {
    TakeStarted(started, &dump);
  }
  for (const Json& call : json.at("calls")) {
    if (call.value("torn", false)) {
      ++dump.torn;
    } else {
      dump.calls.push_back(CallFrom(call));
    }
  }
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < dump.size; };
  const auto is_known = [&](const RankCall& call) {
    return std::all_of(call.receives_from.begin(), call.receives_from.end(), is_rank) &&
           std::all_of(call.sends_to.begin(), call.sends_to.end(), is_rank) &&
           call.peer < dump.size;
  };
  if (!is_rank(dump.rank) || static_cast<int>(dump.members.size()) != dump.size ||
      !std::all_of(dump.calls.begin(), dump.calls.end(), is_known)) {
    throw std::out_of_range("a rank is none of the communicator");
  }
  return dump;
}

// A process may have written several dumps. A dump with a call under way is better than one
// without; otherwise the later dump is better.
bool Better(const RankDump& a, const RankDump& b) {
  return std::pair(a.HasOpenCall(), a.unix_ms) > std::pair(b.HasOpenCall(), b.unix_ms);
}

void Place(const RankDump& dump, Job* job) {
  auto comm = std::find_if(job->comms.begin(), job->comms.end(),
                           [&](const JobComm& one) { return one.id == dump.id; });
  if (comm == job->comms.end()) {
    job->comms.push_back({dump.id, dump.name, dump.generation, dump.size, dump.members,
                          std::vector<const RankDump*>(static_cast<size_t>(dump.size))});
    comm = job->comms.end() - 1;
  }
  if (comm->size != dump.size) {
    throw std::out_of_range("two sizes of one communicator");
  }
  // The dump of a rank lacks the address of the rank itself (Member in lib/comm/peers.h), so this
  // entry is taken from another rank's dump.
  for (size_t r = 0; r < comm->members.size(); ++r) {
    if (comm->members[r].address.empty()) {
      comm->members[r] = dump.members[r];
    }
  }
  const RankDump*& place = comm->ranks[static_cast<size_t>(dump.rank)];
  place = place == nullptr || Better(dump, *place) ? &dump : place;
}

}  // namespace

std::string RankCall::Name() const {
  return absl::StrCat(operation, tag < 0 ? "" : absl::StrCat(" tag ", tag),
                      number == 0 ? "" : absl::StrCat(" #", number));
}

bool RankDump::HasOpenCall() const {
  return std::any_of(calls.begin(), calls.end(),
                     [](const RankCall& call) { return !call.over() && call.state != "failed"; });
}

const RankCall* RankDump::Collective(int64_t tag, uint64_t number) const {
  const auto found = std::find_if(calls.begin(), calls.end(), [&](const RankCall& call) {
    return !call.message && call.tag == tag && call.number == number;
  });
  return found == calls.end() ? nullptr : &*found;
}

const RankCall* RankDump::Message(int64_t tag, uint64_t number, int peer, bool sends) const {
  const auto found = std::find_if(calls.begin(), calls.end(), [&](const RankCall& call) {
    return call.message && call.tag == tag && call.number == number && call.peer == peer &&
           call.sends() == sends;
  });
  return found == calls.end() ? nullptr : &*found;
}

const RankCall* RankDump::Last(int64_t tag) const {
  const RankCall* last = nullptr;
  for (const RankCall& call : calls) {
    if (!call.message && call.tag == tag && (last == nullptr || call.number > last->number)) {
      last = &call;
    }
  }
  return last;
}

std::vector<int> JobComm::Missing() const {
  std::vector<int> missing;
  for (int r = 0; r < size; ++r) {
    if (ranks[static_cast<size_t>(r)] == nullptr) {
      missing.push_back(r);
    }
  }
  return missing;
}

const JobComm& Job::CommOf(const RankDump& dump) const {
  return *std::find_if(comms.begin(), comms.end(),
                       [&](const JobComm& comm) { return comm.id == dump.id; });
}

std::string Job::HostOf(const RankMember& member) const {
  for (const RankDump& dump : dumps) {
    if (dump.members[static_cast<size_t>(dump.rank)].host_id == member.host_id) {
      return dump.host;
    }
  }
  return member.host_id;
}

std::string Job::NameOf(const JobComm& comm, int rank) const {
  const RankMember& member = comm.members[static_cast<size_t>(rank)];
  const RankDump* const dump = comm.ranks[static_cast<size_t>(rank)];
  return absl::StrCat("rank ", rank, " of ", comm.name, " (host ", HostOf(member), ", ",
                      dump == nullptr ? "" : absl::StrCat("pid ", dump->pid, ", "),
                      member.address.empty() ? "" : absl::StrCat(member.address, ", "), "process ",
                      member.process.substr(0, 8), ")");
}

absl::StatusOr<Job> ReadJob(const std::vector<FlightFile>& files) {
  Job job;
  for (const FlightFile& file : files) {
    try {
      const Json json = Json::parse(file.text);
      if (json.at("entrain_flight").get<int>() != 1) {
        return absl::InvalidArgumentError(absl::StrCat(file.name, ": version ",
                                                       json["entrain_flight"].get<int>(),
                                                       " of the format, known is 1"));
      }
      for (const Json& comm : json.at("communicators")) {
        job.dumps.push_back(DumpFrom(json, comm));
        Place(job.dumps.back(), &job);
      }
    } catch (const std::exception& error) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.name, ": not a flight dump: ", CleanText(error.what())));
    }
  }
  for (const JobComm& comm : job.comms) {
    for (const RankDump* dump : comm.ranks) {
      if (dump != nullptr) {
        job.processes[dump->process()].push_back(dump);
      }
    }
  }
  return job;
}

}  // namespace entrain::perf
