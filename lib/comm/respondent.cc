#include "lib/comm/respondent.h"

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {

std::optional<Query> Query::From(Reader& reader) {
  Query query;
  query.nonce = reader.Get<uint32_t>();
  query.asked = reader.Get<Asked>();
  query.call.user_tag = reader.Get<uint32_t>();
  query.call.number = reader.Get<uint32_t>();
  query.theirs = reader.Get<Descriptor>();
  return reader.Finished() && query.asked <= Asked::kRecv ? std::optional(query) : std::nullopt;
}

void Respondent::To(const std::shared_ptr<const ContextOwner>& self, int rank, const Query& query) {
  if (funnel_.HasMade(rank, query.asked, query.call)) {
    Send(rank, query, Answer::kStarted, HoldsUp(query));
  } else if (const absl::Status excuse = Excuse(); !excuse.ok()) {
    Send(rank, query, Answer::kExcused, excuse);
  } else if (const auto other = engine_.WaitsElsewhere(self.get())) {
    const Deadline by = other->FindOut([this, self, rank, query](const absl::Status& why) {
      Send(rank, query,
           funnel_.HasMade(rank, query.asked, query.call) ? Answer::kStarted
           : why.ok()                                     ? Answer::kAbsent
                                                          : Answer::kExcused,
           why);
    });
    Send(rank, query, Answer::kElsewhere, absl::OkStatus(), by.Left(engine_.clock().Now()));
  } else {
    Send(rank, query, Answer::kAbsent, Instead());
  }
}

absl::Status Respondent::Instead() const {
  const CallWork* const oldest = open_.Oldest();
  return oldest == nullptr ? absl::OkStatus()
                           : absl::DeadlineExceededError(
                                 absl::StrCat("its oldest unfinished call is ", oldest->Name()));
}

absl::Status Respondent::HoldsUp(const Query& query) const {
  const int64_t now = engine_.clock().Now();
  const CallWork* const work =
      query.asked == Asked::kCollective ? open_.Collective(query.call) : nullptr;
  const Running running = work == nullptr ? Running() : open_.HeldUpByFunction(*work, now);
  return running.work == nullptr ? absl::OkStatus()
                                 : absl::DeadlineExceededError(words_.Words(running, now));
}

absl::Status Respondent::Excuse() {
  if (engine_.causes().told()) {
    return engine_.causes().cause();
  }
  const absl::Status inside = engine_.functions().Inside(OpenCalls::kLongRunNs);
  return inside.ok() ? inside
                     : WithBlame(inside, words_.BlameFor(nullptr, peers_.rank(), Phase::kReduce));
}

void Respondent::Send(int rank, const Query& query, Answer answer, const absl::Status& excuse,
                      int64_t more_ns) {
  if (funnel_.ended()) {
    return;  // the peer already knows why the communicator ended
  }
  const CallWork* const waits = open_.OldestCollective();
  const CallId instead = waits == nullptr
                             ? CallFunnel::kPing
                             : CallId{waits->wiring().user_tag, waits->wiring().call_number};
  peers_.SendSoon(rank, ControlKind::kAnswer,
                  Writer()
                      .Put(query.nonce)
                      .Put(answer)
                      .Put(more_ns)
                      .Put(instead.user_tag)
                      .Put(instead.number)
                      .PutText(EncodeStatus(excuse))
                      .Take());
  engine_.seat().NeedFlush();
}

}  // namespace entrain
