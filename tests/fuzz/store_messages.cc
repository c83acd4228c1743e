// The encodings of lib/store: requests to a server, which are executed as a server does; entries,
// replies and news.
#include <map>
#include <optional>

#include "lib/base/status.h"
#include "lib/store/gathering.h"
#include "lib/store/request.h"
#include "tests/fuzz/target.h"

namespace entrain::fuzz {
namespace {

enum Kind : uint8_t { kRequests, kEntry, kReply, kNews, kKinds };

bool Same(const Entry& a, const Entry& b) {
  return a.rank == b.rank && a.size == b.size && a.serves == b.serves && a.parts == b.parts &&
         a.unable.code() == b.unable.code();
}

// A client of a server, which has joined at most one meeting.
struct Client {
  std::string meeting;
  int32_t rank = -1;
};

void Execute(const StoreRequest& request, uint64_t number, Client& client, StoreTable& table,
             Gatherings& meetings) {
  if (!IsOfMeeting(request.op)) {
    bool changed = false;
    const auto answer = table.Apply(request, number % 2 == 0 ? "a" : "b", &changed);
    const auto received = DecodeReply(EncodeReply(answer));
    FUZZ_CHECK(received.status().code() == answer.status().code());
    FUZZ_CHECK(!answer.ok() || *received == *answer);
    FUZZ_CHECK(!changed || answer.ok());
    return;
  }
  if (request.op == StoreOp::kJoin && client.rank < 0) {
    const auto entry = DecodeEntry(request.value);
    if (entry.ok() && meetings.Join(request.key, *entry, number, "the store").ok()) {
      client = {request.key, entry->rank};
      const Gathering& meeting = *meetings.Find(request.key);
      if (meeting.complete() && !meeting.over) {
        const auto news = DecodeNews(EncodeTable(meeting.Table()));
        FUZZ_CHECK(news.ok() && news->table == meeting.Table());
      }
    }
  } else if (client.rank >= 0 && request.op == StoreOp::kAbsent) {
    const std::vector<int> absent = meetings.Find(client.meeting)->Absent();
    const auto news = DecodeNews(EncodeAbsent(absent));
    FUZZ_CHECK(news.ok() && news->absent == absent);
  } else if (client.rank >= 0 && request.op == StoreOp::kFail) {
    const auto why = DecodeStatus(request.value);
    if (why && !why->ok() && meetings.Fail(client.meeting, *why)) {
      FUZZ_CHECK(DecodeNews(EncodeFailed(meetings.Find(client.meeting)->failure)).ok());
    }
  } else if (client.rank >= 0 && request.op == StoreOp::kFinish) {
    meetings.Finish(client.meeting, client.rank);
  }
}

void Requests(Input in) {
  StoreTable table;
  Gatherings meetings;
  Client clients[4];
  while (!in.empty()) {
    const uint8_t who = in.Byte();
    Client& client = clients[who % 4];
    if (who >= 0xf0) {  // the client is gone
      meetings.Leave(client.meeting, client.rank, true);
      client = Client();
      continue;
    }
    const auto request = DecodeRequest(in.Text());
    if (request.ok()) {
      const auto again = DecodeRequest(EncodeRequest(*request));
      FUZZ_CHECK(again.ok() && again->op == request->op && again->key == request->key &&
                 again->value == request->value && again->expected == request->expected &&
                 again->delta == request->delta);
      Execute(*request, who % 4, client, table, meetings);
    }
    FUZZ_CHECK(meetings.bytes() <= kMaxGatheringBytes);
  }
}

}  // namespace

void FuzzOne(absl::string_view input) {
  Input in(input);
  switch (in.Byte() % kKinds) {
    case kRequests:
      Requests(in);
      return;
    case kEntry:
      if (const auto entry = DecodeEntry(in.Rest()); entry.ok()) {
        const auto again = DecodeEntry(EncodeEntry(*entry));
        FUZZ_CHECK(again.ok() && Same(*entry, *again));
      }
      return;
    case kReply:
      if (const auto reply = DecodeReply(in.Rest()); reply.ok()) {
        FUZZ_CHECK(*DecodeReply(EncodeReply(reply)) == *reply);
      }
      return;
    default:
      if (const auto news = DecodeNews(in.Rest()); news.ok() && news->kind == NewsKind::kTable) {
        const auto again = DecodeNews(EncodeTable(news->table));
        FUZZ_CHECK(again.ok() && again->table == news->table);
      }
  }
}

std::vector<std::string> FuzzSeeds() {
  const Entry entry{
      .rank = 0, .size = 2, .serves = true, .parts = {"card", "settings", "host"}, .unable = {}};
  const Entry other{.rank = 1,
                    .size = 2,
                    .serves = false,
                    .parts = {"other card", "settings", "host"},
                    .unable = {}};
  const Entry unable{.rank = 1,
                     .size = 2,
                     .serves = false,
                     .parts = {},
                     .unable = absl::AbortedError("no memory")};
  const auto request = [](StoreOp op, absl::string_view key, absl::string_view value = "",
                          absl::string_view expected = "", int64_t delta = 0) {
    return EncodeRequest({op, std::string(key), std::string(value), std::string(expected), delta});
  };
  const auto requests = [] { return Script().Byte(kRequests); };
  return {
      requests()
          .Byte(0)
          .Text(request(StoreOp::kSet, "key", "5"))
          .Byte(1)
          .Text(request(StoreOp::kAdd, "key", "", "", 7))
          .Byte(0)
          .Text(request(StoreOp::kGet, "key"))
          .Byte(0)
          .Text(request(StoreOp::kCompareAndSet, "key", "new", "12"))
          .Byte(1)
          .Text(request(StoreOp::kTryGet, "absent"))
          .Byte(1)
          .Text(request(StoreOp::kDelete, "key"))
          .Take(),
      requests()
          .Byte(0)
          .Text(request(StoreOp::kJoin, "world", EncodeEntry(entry)))
          .Byte(0)
          .Text(request(StoreOp::kAbsent, "world"))
          .Byte(1)
          .Text(request(StoreOp::kJoin, "world", EncodeEntry(other)))
          .Byte(0)
          .Text(request(StoreOp::kFinish, "world"))
          .Byte(1)
          .Text(request(StoreOp::kFinish, "world"))
          .Take(),
      requests()
          .Byte(0)
          .Text(request(StoreOp::kJoin, "world", EncodeEntry(entry)))
          .Byte(0)
          .Text(request(StoreOp::kFail, "world", EncodeStatus(absl::AbortedError("enough"))))
          .Byte(1)
          .Text(request(StoreOp::kJoin, "world", EncodeEntry(unable)))
          .Byte(0xf0)
          .Take(),
      Script().Byte(kEntry).Raw(EncodeEntry(entry)).Take(),
      Script().Byte(kEntry).Raw(EncodeEntry(unable)).Take(),
      Script().Byte(kReply).Raw(EncodeReply(std::string("value"))).Take(),
      Script().Byte(kReply).Raw(EncodeReply(absl::NotFoundError("no key"))).Take(),
      Script().Byte(kNews).Raw(EncodeTable({entry.parts, other.parts})).Take(),
      Script().Byte(kNews).Raw(EncodeFailed(absl::AbortedError("enough"))).Take(),
      Script().Byte(kNews).Raw(EncodeAbsent({1, 3})).Take(),
      Script().Byte(kNews).Raw(EncodeServer(1)).Take(),
  };
}

}  // namespace entrain::fuzz
