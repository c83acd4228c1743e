#include "lib/comm/failure/respondent.h"

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {

std::string Query::ToText() const {
  Writer text;
  text.Put(nonce).Put(asked).Put(call.user_tag).Put(call.number);
  text.PutRaw(&theirs, sizeof(theirs));
  return text.text();
}

std::optional<Query> Query::From(Reader& reader) {
  Query query;
  query.nonce = reader.Get<uint32_t>();
  query.asked = reader.Get<Asked>();
  query.call.user_tag = reader.Get<uint32_t>();
  query.call.number = reader.Get<uint32_t>();
  query.theirs = reader.Get<Descriptor>();
  return reader.Finished() && query.asked <= Asked::kRecv ? std::optional(query) : std::nullopt;
}

Respondent::Reply Respondent::To(int rank, const Query& query, const Facts& facts) const {
  if (funnel_.HasMade(rank, query.asked, query.call)) {
    return {Answer::kStarted, HoldsUp(query, facts.now_ns)};
  }
  if (const absl::Status excuse = Excuse(facts); !excuse.ok()) {
    return {Answer::kExcused, excuse};
  }
  return facts.elsewhere ? Reply{Answer::kElsewhere, {}} : Reply{Answer::kAbsent, Instead()};
}

Respondent::Reply Respondent::After(int rank, const Query& query, const absl::Status& why) const {
  return {funnel_.HasMade(rank, query.asked, query.call) ? Answer::kStarted
          : why.ok()                                     ? Answer::kAbsent
                                                         : Answer::kExcused,
          why};
}

absl::Status Respondent::Instead() const {
  const CallWork* const oldest = open_.Oldest();
  return oldest == nullptr ? absl::OkStatus()
                           : absl::DeadlineExceededError(
                                 absl::StrCat("its oldest unfinished call is ", oldest->Name()));
}

absl::Status Respondent::HoldsUp(const Query& query, int64_t now_ns) const {
  const CallWork* const work =
      query.asked == Asked::kCollective ? open_.Collective(query.call) : nullptr;
  const Running running = work == nullptr ? Running() : open_.HeldUpByFunction(*work, now_ns);
  return running.work == nullptr ? absl::OkStatus()
                                 : absl::DeadlineExceededError(words_.Words(running, now_ns));
}

absl::Status Respondent::Excuse(const Facts& facts) const {
  if (causes_.told()) {
    return causes_.cause();
  }
  return facts.inside.ok()
             ? absl::OkStatus()
             : WithBlame(facts.inside, words_.BlameFor(nullptr, peers_.rank(), Phase::kReduce));
}

std::string Respondent::TextOf(const Query& query, const Reply& reply) const {
  const CallWork* const waits = open_.OldestCollective();
  const CallId instead = waits == nullptr
                             ? CallFunnel::kPing
                             : CallId{waits->wiring().user_tag, waits->wiring().call_number};
  return Writer()
      .Put(query.nonce)
      .Put(reply.answer)
      .Put(reply.more_ns)
      .Put(instead.user_tag)
      .Put(instead.number)
      .PutText(EncodeStatus(reply.excuse))
      .Take();
}

}  // namespace entrain
