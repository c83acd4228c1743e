// A communicator whose peers send any control messages (lib/comm, lib/engine/causes.h) and early
// messages, and are lost, while calls are under way. The endpoints and the clock are played.
#include <deque>

#include <sys/eventfd.h>

#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/plan/tuning.h"
#include "lib/net/socket.h"
#include "tests/fuzz/target.h"

namespace entrain::fuzz {
namespace {

constexpr int kRanks = 3, kMe = 1;
enum Action : uint8_t {
  kTell,
  kTellStructured,
  kCall,
  kTurn,
  kTime,
  kEnd,
  kEarly,
  kLose,
  kTellRuntime,
  kActions
};

// An endpoint that keeps its transfers until the input, a revocation or the close ends them.
class Peer final : public Endpoint {
 public:
  explicit Peer(std::vector<Peer*>* all) : all_(*all) { all_.push_back(this); }
  ~Peer() override { all_.erase(std::find(all_.begin(), all_.end(), this)); }
  void PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) override {
    posted_.push_back({envelope.tag.context(), done, static_cast<int64_t>(bytes.size()), {}});
  }
  void PostRecv(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint) override {
    posted_.push_back({envelope.tag.context(), done, static_cast<int64_t>(bytes.size()), {}});
  }
  bool HasEarly(Tag) const override { return false; }
  void SendControl(absl::string_view message) override {
    FUZZ_CHECK(message.size() <= static_cast<size_t>(kMaxControlBytes));
  }
  bool SendUrgent(absl::string_view message) override {
    FUZZ_CHECK(message.size() <= static_cast<size_t>(kMaxControlBytes));
    return true;
  }
  void Revoke(Context mine, Context theirs, const absl::Status& why) override {
    for (Posted& posted : posted_) {
      if (posted.context == mine || posted.context == theirs) {
        posted.end = why;
        posted.over = true;
      }
    }
  }
  void Close(const absl::Status& why) override { End(posted_.size(), why); }
  std::string peer_address() const override { return "played"; }

  // The next Poll completes the oldest transfers.
  void End(size_t count, const absl::Status& status) {
    for (size_t i = 0; i < posted_.size() && i < count; ++i) {
      posted_[i].end = posted_[i].over ? posted_[i].end : status;
      posted_[i].over = true;
    }
  }
  int Poll() {
    std::vector<Posted> due;
    for (size_t i = 0; i < posted_.size();) {
      if (posted_[i].over) {
        due.push_back(posted_[i]);
        posted_.erase(posted_.begin() + static_cast<ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    for (const Posted& posted : due) {
      posted.done->done(posted.done, posted.end, posted.end.ok() ? posted.bytes : 0);
    }
    return static_cast<int>(due.size());
  }

 private:
  struct Posted {
    Context context;
    Completion* done;
    int64_t bytes;
    absl::Status end;
    bool over = false;
  };
  std::vector<Peer*>& all_;
  std::deque<Posted> posted_;
};

class PlayedTransport final : public Transport {
 public:
  Traits traits() const override { return {"played", Medium::kNetwork, 20'000, 1e9, 1e9}; }
  std::string address() const override { return "here"; }
  bool Reaches(absl::string_view) const override { return true; }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerId&, absl::string_view) override {
    return std::make_unique<Peer>(&peers);
  }
  int Poll() override {
    int events = 0;
    for (size_t i = 0; i < peers.size(); ++i) {
      events += peers[i]->Poll();
    }
    return events;
  }
  bool Arm() override { return true; }
  int wait_fd() const override { return wake_.get(); }

  std::vector<Peer*> peers;

 private:
  const Fd wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

PeerId IdOf(int rank) {
  PeerId id{};
  id.fill(static_cast<uint8_t>(rank + 1));
  return id;
}

class Conversation {
 public:
  Conversation() {
    auto transport = std::make_unique<PlayedTransport>();
    transport_ = transport.get();
    engine_->AddTransport(std::move(transport));
    FUZZ_CHECK(engine_->status().ok());
    CoreConfig config;
    config.name = config.world = "c";
    config.rank = kMe;
    config.context = engine_->ReserveContext();
    config.tuning = BuiltinTuning();
    config.timeout_ns = 7 * kSecond;
    context_ = config.context;
    engine_->seat().RunInDriver([&] {
      for (int r = 0; r < kRanks; ++r) {
        Member member;
        member.id = IdOf(r);
        member.host_id = "host";
        member.context = static_cast<Context>(20 + r);
        member.world_rank = r;
        if (r != kMe) {
          member.endpoint = engine_->Connect(member.id, 0, "there").value();
          endpoints_.push_back(member.endpoint);
        }
        config.members.push_back(member);
      }
    });
    core_ = CommCore::Make(engine_, pool_, std::move(config));
    engine_->seat().RunInDriver([&] { core_->Open(); });
  }
  ~Conversation() {
    engine_->seat().RunInDriver([&] { core_->Leave("is over"); });
    engine_->Shutdown();
    for (const RefPtr<Work>& work : works_) {
      FUZZ_CHECK(work->done());
    }
  }

  void Act(Input& in) {
    const uint8_t action = in.Byte() % kActions;
    switch (action) {
      case kCall:
        Start(in);
        return;
      case kTurn:
        Turn();
        return;
      case kTime:
        clock_.Advance(int64_t{in.Byte()} * 40 * kMillisecond);
        Turn();
        return;
      default:
        break;
    }
    const size_t peer = in.Byte() % 2;
    Endpoint& from = *endpoints_[peer];
    engine_->seat().RunInDriver([&] {
      switch (action) {
        case kTell:
          Tell(from, in.Text());
          break;
        case kTellStructured:
          Tell(from, Structured(in));
          break;
        case kTellRuntime:
          engine_->OnControl(from, Writer().Put(Context{0}).Take() + std::string(in.Text()));
          break;
        case kEnd:
          static_cast<Peer&>(from).End(in.Byte() % 8, in.Byte() % 8 == 0
                                                          ? absl::UnavailableError("gone")
                                                          : absl::OkStatus());
          break;
        case kEarly: {
          const Tag tag(context_, in.Byte() % 2 == 0 ? Tag::kUntagged : in.Byte(), in.Byte() % 4,
                        in.Byte() % 2 == 0 ? 0 : 255);
          engine_->OnEarly(from, {tag, DescriptorOf(in)});
          break;
        }
        default:
          engine_->OnLost(from, absl::UnavailableError("the peer is gone"));
      }
    });
  }

 private:
  void Tell(Endpoint& from, absl::string_view text) {
    engine_->OnControl(from, Writer().Put(context_).PutRaw(text.data(), text.size()).Take());
  }
  static Descriptor DescriptorOf(Input& in) {
    Descriptor descriptor;
    descriptor.kind = static_cast<CallKind>(in.Byte() % 20);
    descriptor.dtype = in.Byte() % 24;
    descriptor.op = in.Byte() % 32;
    descriptor.flags = in.Byte();
    descriptor.root = in.Byte();
    descriptor.count = in.Byte();
    return descriptor;
  }
  // A message of the right form for its kind.
  static std::string Structured(Input& in) {
    Writer out;
    const auto kind = static_cast<ControlKind>(1 + in.Byte() % 7);
    const uint32_t tag = in.Byte() % 2 == 0 ? Tag::kUntagged : in.Byte();
    const uint32_t number = in.Byte() % 4;
    const auto put = [&](const Descriptor& descriptor) {
      out.PutRaw(&descriptor, sizeof(descriptor));
    };
    out.Put(kind);
    switch (kind) {
      case ControlKind::kAbort: {
        const std::string why = EncodeStatus(Why(in));
        out.PutRaw(why.data(), why.size());
        break;
      }
      case ControlKind::kQuery:
        out.Put(uint32_t{in.Byte()}).Put(static_cast<uint8_t>(in.Byte() % 4)).Put(tag).Put(number);
        put(DescriptorOf(in));
        break;
      case ControlKind::kAnswer:
        out.Put(uint32_t{in.Byte()})
            .Put(static_cast<uint8_t>(in.Byte() % 8))
            .Put(int64_t{in.Byte()} * kMillisecond)
            .Put(tag)
            .Put(number);
        out.PutText(EncodeStatus(Why(in)));
        break;
      case ControlKind::kLeave:
        break;
      case ControlKind::kRefused:
        out.Put(static_cast<uint8_t>(in.Byte() % 4))
            .Put(tag)
            .Put(number)
            .PutText(in.Take(in.Byte()));
        break;
      case ControlKind::kBallot:
        out.Put(tag).Put(number).Put(static_cast<uint8_t>(in.Byte() % 2));
        put(DescriptorOf(in));
        out.Put(static_cast<int32_t>(in.Byte() % 5) - 1);
        put(DescriptorOf(in));
        break;
      case ControlKind::kSurvivors: {
        out.Put(uint32_t{in.Byte() % 3u}).Put(static_cast<uint8_t>(in.Byte() % 5));
        const absl::string_view rest = in.Take(in.Byte());
        out.PutRaw(rest.data(), rest.size());
        break;
      }
    }
    return out.Take();
  }
  static absl::Status Why(Input& in) {
    const uint8_t how = in.Byte();
    if (how % 4 == 0) {
      return absl::OkStatus();
    }
    Blame blame;
    blame.rank = static_cast<int32_t>(in.Byte()) - 2;
    blame.peer_id = IdOf(in.Byte() % 4);
    blame.late = {in.Byte()};
    blame.late_ranks = in.Byte();
    return WithBlame(absl::Status(static_cast<absl::StatusCode>(1 + how % 16), in.Take(in.Byte())),
                     blame);
  }
  void Start(Input& in) {
    if (works_.size() > 16) {
      return;
    }
    Call call;
    constexpr CallKind kKinds[] = {CallKind::kAllReduce, CallKind::kBarrier, CallKind::kSend,
                                   CallKind::kRecv,      CallKind::kRecvAny, CallKind::kBroadcast};
    call.kind = kKinds[in.Byte() % std::size(kKinds)];
    call.dtype = DType::kI64;
    call.count = call.kind == CallKind::kBarrier ? 0 : in.Byte() % 8 == 0 ? 30'000 : 4;
    buffers_.emplace_back(static_cast<size_t>(2 * call.count));
    const BufferView first{buffers_.back().data(), 8 * call.count, MemoryKind::kHost};
    const BufferView second{buffers_.back().data() + call.count, 8 * call.count, MemoryKind::kHost};
    if (call.kind == CallKind::kSend) {
      call.in = first;
    } else if (call.kind == CallKind::kRecv || call.kind == CallKind::kRecvAny ||
               call.kind == CallKind::kBroadcast) {
      call.out = first;
    } else {
      call.in = first;
      call.out = second;
    }
    call.root = call.kind == CallKind::kRecvAny ? -1 : in.Byte() % 2 == 0 ? 0 : 2;
    call.options.user_tag = in.Byte() % 2 == 0 ? -1 : in.Byte() % 3;
    call.options.timeout_ns = kSecond;
    if (auto work = core_->Start(call, true); work.ok()) {
      works_.push_back(*std::move(work));
    }
  }
  void Turn() {
    engine_->seat().PollOnce();
    engine_->seat().RunInDriver([&] {
      if (core_->next_tick().Passed(clock_.Now())) {
        core_->OnTick(clock_.Now());
      }
    });
  }

  FakeClock clock_;
  std::shared_ptr<Engine> engine_ =
      std::make_shared<Engine>(SeatOptions{.clock = &clock_, .own_thread = false});
  PlayedTransport* transport_ = nullptr;
  BufferPool pool_{int64_t{1} << 20};
  Context context_ = 0;
  std::vector<Endpoint*> endpoints_;
  std::shared_ptr<CommCore> core_;
  std::deque<std::vector<int64_t>> buffers_;
  std::vector<RefPtr<Work>> works_;
};

}  // namespace

void FuzzOne(absl::string_view input) {
  Input in(input);
  Conversation conversation;
  for (int actions = 0; !in.empty() && actions < 100; ++actions) {
    conversation.Act(in);
  }
}

std::vector<std::string> FuzzSeeds() {
  const auto call = [](Script& script, int kind) -> Script& {
    return script.Byte(kCall).Byte(kind).Byte(1).Byte(0).Byte(0);
  };
  std::vector<std::string> seeds;
  for (int kind = 1; kind <= 6; ++kind) {
    Script script;
    call(script, 0);
    call(script, 3).Byte(kTurn).Byte(kTellStructured).Byte(0).Byte(kind - 1).Byte(0).Byte(0);
    script.Raw(std::string(24, '\x01'))
        .Byte(kTurn)
        .Byte(kTime)
        .Byte(50)
        .Byte(kTime)
        .Byte(50)
        .Byte(kTurn);
    seeds.push_back(script.Take());
  }
  Script lost, mismatch, cause;
  call(lost, 0).Byte(kTurn).Byte(kLose).Byte(0).Byte(kTurn).Byte(kTime).Byte(5).Byte(kTurn);
  call(mismatch, 1)
      .Byte(kTurn)
      .Byte(kEarly)
      .Byte(0)
      .Byte(0)
      .Byte(0)
      .Byte(0)
      .Raw(std::string(6, '\x03'))
      .Byte(kTurn)
      .Byte(kTime)
      .Byte(20);
  call(cause, 1)
      .Byte(kTellRuntime)
      .Byte(1)
      .Text(EncodeStatus(absl::UnavailableError("lost rank 2")));
  cause.Byte(kTurn).Byte(kLose).Byte(1).Byte(kTurn).Byte(kTime).Byte(5).Byte(kTurn);
  for (Script* script : {&lost, &mismatch, &cause}) {
    seeds.push_back(script->Take());
  }
  return seeds;
}

}  // namespace entrain::fuzz
