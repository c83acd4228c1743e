#include "lib/comm/failure/survivor_messages.h"

namespace entrain {
namespace {

enum : uint8_t { kCalled = 1, kGivenUp = 2, kAsks = 4, kAny = 8 };

Writer Begin(uint32_t number, SurvivorMessageType type) {
  Writer out;
  out.Put(number).Put(type);
  return out;
}

}  // namespace

// ---- Decision

std::string SurvivorDecision::ToText(uint32_t number) const {
  Writer out = Begin(number, SurvivorMessageType::kDecision);
  WriteTo(&out);
  return out.Take();
}

void SurvivorDecision::WriteTo(Writer* out) const {
  out->Put(kind).Put(error).Put(static_cast<uint8_t>(any ? 1 : 0)).Put(int32_t{culprit}).Put(flag);
  members.WriteTo(out);
  for (const uint16_t context : contexts) {
    out->Put(context);
  }
}

bool SurvivorDecision::Read(Reader* in, int size) {
  kind = in->Get<SurvivorCallKind>();
  error = in->Get<Error>();
  any = in->Get<uint8_t>() != 0;
  culprit = in->Get<int32_t>();
  flag = in->Get<uint32_t>();
  members = RankSet::ReadFrom(in, size);
  const int count = members.count();
  for (int i = 0; i < count; ++i) {
    contexts.push_back(in->Get<uint16_t>());
  }
  return in->ok() && (kind == SurvivorCallKind::kAgree || kind == SurvivorCallKind::kShrink) &&
         error <= Error::kContexts && culprit >= -1 && culprit < size && count > 0;
}

// ---- Report

std::string SurvivorReport::ToText(uint32_t number) const {
  Writer out = Begin(number, SurvivorMessageType::kReport);
  out.Put(static_cast<uint8_t>((called ? kCalled : 0) | (given_up ? kGivenUp : 0) |
                               (asks ? kAsks : 0) | (any ? kAny : 0)))
      .Put(kind)
      .Put(flag)
      .Put(context);
  cut.WriteTo(&out);
  gone.WriteTo(&out);
  exclude.WriteTo(&out);
  out.Put(accepted.ballot.leader).Put(accepted.ballot.attempt);
  if (accepted.ballot.leader >= 0) {
    accepted.decision.WriteTo(&out);
  }
  return out.Take();
}

bool SurvivorReport::Read(Reader* in, int size) {
  const auto flags = in->Get<uint8_t>();
  called = (flags & kCalled) != 0;
  given_up = (flags & kGivenUp) != 0;
  asks = (flags & kAsks) != 0;
  any = (flags & kAny) != 0;
  kind = in->Get<SurvivorCallKind>();
  flag = in->Get<uint32_t>();
  context = in->Get<uint16_t>();
  cut = RankSet::ReadFrom(in, size);
  gone = RankSet::ReadFrom(in, size);
  exclude = RankSet::ReadFrom(in, size);
  SurvivorBallot& ballot = accepted.ballot;
  ballot.leader = in->Get<int32_t>();
  ballot.attempt = in->Get<uint32_t>();
  if (ballot.leader >= size || (ballot.leader >= 0 && !accepted.decision.Read(in, size))) {
    return false;
  }
  return in->Finished();
}

// ---- Proposal and acceptance

std::string SurvivorProposal::ToText(uint32_t number) const {
  Writer out = Begin(number, SurvivorMessageType::kProposal);
  out.Put(attempt);
  gone.WriteTo(&out);
  decision.WriteTo(&out);
  return out.Take();
}

bool SurvivorProposal::Read(Reader* in, int size) {
  attempt = in->Get<uint32_t>();
  gone = RankSet::ReadFrom(in, size);
  return decision.Read(in, size) && in->Finished();
}

std::string SurvivorAcceptance::ToText(uint32_t number) const {
  return Begin(number, SurvivorMessageType::kAcceptance).Put(attempt).Take();
}

bool SurvivorAcceptance::Read(Reader* in) {
  attempt = in->Get<uint32_t>();
  return in->Finished();
}

}  // namespace entrain
