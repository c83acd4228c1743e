#include "lib/engine/engine.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <ctime>

#include <linux/futex.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/log.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr int64_t kIdleNapNs = 50 * kMillisecond;
constexpr uint32_t kPollsPerDeadlineCheck = 64;
constexpr int kPollsPerGiveUpCheck = 16;
constexpr uint32_t kQuietTakesPerPoll = 256;
constexpr size_t kMaxPremature = 4096;  // a bound on what peers can make us keep
// Of control messages between runtimes; communicators have others. Their text is a status; OK takes one back.
constexpr Context kOfRuntimes = 0;

void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, int64_t ns) {
  timespec t{static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, &t, nullptr,
          0);
}

void FutexWake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

absl::string_view KeyOf(const PeerId& id) {
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

}  // namespace

Engine::Engine(const EngineOptions& options)
    : clock_(*options.clock), own_thread_(options.own_thread) {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = wake_fd_;
  if (epoll_fd_ < 0 || wake_fd_ < 0 || epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &event) != 0) {
    status_ = ErrnoStatus(errno, "the engine cannot create its descriptors");
  }
}

void Engine::AddTransport(std::unique_ptr<Transport> transport) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = transport->wait_fd();
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, transport->wait_fd(), &event) != 0 && status_.ok()) {
    status_ =
        ErrnoStatus(errno, absl::StrCat("the engine cannot watch ", transport->traits().name));
  }
  transports_.push_back(std::move(transport));
}

void Engine::Start() {
  if (own_thread_) {
    // Signals belong to the program's own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { ThreadMain(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread_.native_handle(), "entrain");
  }
}

void Engine::Shutdown() {
  stopping_.store(true, std::memory_order_release);
  WakeThread();
  WakeDriver();
  if (thread_.joinable()) {
    thread_.join();
  }
  while (!TryTake(kCaller)) {
    sched_yield();
  }
  Poll();
  std::vector<std::shared_ptr<ContextOwner>> owners;
  for (auto& [context, owner] : owners_) {
    owners.push_back(owner);
  }
  for (auto& owner : owners) {
    owner->OnShutdown();
  }
  Poll();
  for (auto& path : paths_) {
    path->endpoint->Close(absl::AbortedError("the runtime was destroyed"));
  }
  Poll();  // runs the completions that Close left
  owners_.clear();
  closed_owners_.clear();
  retiring_.clear();
  paths_.clear();
  transports_.clear();
  // The word stays taken: nobody drives any more.
}

Engine::~Engine() {
  close(epoll_fd_);
  close(wake_fd_);
}

// ---- Who drives

bool Engine::TryTake(Driver who) {
  int expected = kFree;
  // Acquire: pairs with the release in Leave; this driver sees what the one before did.
  return driver_.load(std::memory_order_relaxed) == kFree &&
         driver_.compare_exchange_strong(expected, who, std::memory_order_acquire,
                                         std::memory_order_relaxed);
}

void Engine::Leave() {
  if (std::exchange(flush_, false)) {
    Poll();
  }
  driver_.store(kFree, std::memory_order_release);
  // Full fence: pairs with the one in SleepAsWaiter. Either the waiter that registers sees the word
  // free, or we see it registered and wake it.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (WakeOneWaiter()) {
    return;
  }
  if (open_works_.load(std::memory_order_relaxed) > 0 || !jobs_.Empty()) {
    WakeThread();
  }
  if (!own_thread_) {
    Kick();  // a job that was submitted after our last look has nobody else
  }
}

bool Engine::WakeOneWaiter() {
  if (waiter_count_.load(std::memory_order_relaxed) == 0) {
    return false;
  }
  absl::MutexLock lock(&waiters_mutex_);
  for (Waiter* waiter : waiters_) {
    if (!waiter->work->done()) {  // one that is done will not drive
      waiter->word.store(1, std::memory_order_release);
      FutexWake(waiter->word);
      return true;
    }
  }
  return false;
}

void Engine::WakeThread() {
  if (!own_thread_) {
    return;
  }
  // The thread reads the word before it tries to take over, so a change in between ends its nap at
  // once.
  thread_word_.fetch_add(1, std::memory_order_release);
  FutexWake(thread_word_);
  if (thread_in_epoll_.load(std::memory_order_relaxed)) {
    WakeDriver();
  }
}

void Engine::WakeDriver() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_fd_, &one, sizeof(one));
}

void Engine::DrainWakeFd() {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = read(wake_fd_, &count, sizeof(count));
}

void Engine::Submit(Job* job) {
  jobs_.Push(job);
  // Full fence: pairs with the one in SleepAsDriver. Either the sleeper sees the job, or we see
  // that it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (driver_sleeps_.load(std::memory_order_relaxed) ||
      thread_in_epoll_.load(std::memory_order_relaxed)) {
    WakeDriver();
  }
}

void Engine::Kick() {
  // Somebody who drives takes the job; it may have looked just before, so go on until the queue is
  // empty or driven.
  while (!jobs_.Empty() && TryTake(kCaller)) {
    Poll();
    Leave();
  }
}

void Engine::PollOnce() {
  if (TryTake(kCaller)) {
    Poll();
    if (!own_thread_) {
      CheckDeadlines();  // nobody else does
    }
    Leave();
  }
}

bool Engine::TakeIfQuiet() {
  if (open_works_.load(std::memory_order_relaxed) > 0 || !jobs_.Empty() || !TryTake(kCaller)) {
    return false;
  }
  // What was armed would have the peers ring at every message; and somebody may have asked us
  // something.
  if (armed_ || ++quiet_takes_ % kQuietTakesPerPoll == 0) {
    Poll();
  }
  return true;
}

void Engine::Stay(const Work& work) {
  DriveUntil(work, Deadline::Never(), /*background=*/false);
  Leave();
}

bool InlineBackoff::Wait() {
  if (!engine_.jobs_.Empty()) {
    return false;
  }
  const bool crowded = engine_.crowded();
  return backoff_.Spin(crowded) || backoff_.Yield(engine_.clock_.Now(), crowded);
}

void Engine::RunInDriver(absl::AnyInvocable<void()> body) {
  class Once final : public Job, public Work {
   public:
    Once(Engine* engine, absl::AnyInvocable<void()> what) : Work(engine), body(std::move(what)) {}
    void Run() override {
      body();
      Finish(absl::OkStatus());
      Release();
    }
    absl::AnyInvocable<void()> body;
  };
  auto work = RefPtr<Once>::Adopt(new Once(this, std::move(body)));
  work->AddRef();
  Submit(work.get());
  Await(*work, Deadline::Never(), false);
}

absl::StatusOr<std::shared_ptr<CallbackThread>> Engine::Callbacks() {
  absl::MutexLock lock(&callbacks_mutex_);
  if (callbacks_ == nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(callbacks_, CallbackThread::Start("entrain-done"));
  }
  return callbacks_;
}

// ---- The loop

int Engine::Poll() {
  int events = 0;
  armed_ = false;
  while (MpscNode* node = jobs_.Pop()) {
    static_cast<Job*>(node)->Run();
    ++events;
  }
  for (auto& transport : transports_) {
    events += transport->Poll();
  }
  AfterPoll();
  if (++polls_ % kPollsPerDeadlineCheck == 0) {
    CheckDeadlines();
  }
  return events;
}

void Engine::Flush() {
  for (auto& transport : transports_) {
    transport->Poll();  // its events are kept until after this turn's polls
  }
}

void Engine::AfterPoll() {
  while (!attention_.empty() || !control_.empty() || !lost_.empty()) {
    auto control = std::exchange(control_, {});
    for (auto& message : control) {
      DispatchControl(std::move(message));
    }
    auto lost = std::exchange(lost_, {});
    for (auto& [endpoint, why] : lost) {
      std::vector<std::shared_ptr<ContextOwner>> owners;
      for (auto& [context, owner] : owners_) {
        owners.push_back(owner);
      }
      for (auto& owner : owners) {
        owner->OnLost(*endpoint, why);
      }
    }
    auto attention = std::exchange(attention_, {});
    for (ContextOwner* owner : attention) {
      owner->Attend();
    }
  }
  closed_owners_.clear();
  if (!retiring_.empty()) {
    const auto unused = [this](const auto& region) { return Retire(*region).ok(); };
    retiring_.erase(std::remove_if(retiring_.begin(), retiring_.end(), unused), retiring_.end());
  }
}

void Engine::DispatchControl(ControlMessage message) {
  Reader reader(message.text);
  const auto context = reader.Get<Context>();
  if (reader.ok() && context == kOfRuntimes) {
    const auto path = path_of_endpoint_.find(message.from);
    const auto cause = DecodeStatus(absl::string_view(message.text).substr(sizeof(Context)));
    if (cause && path != path_of_endpoint_.end()) {
      path->second->cause = *cause;
      path->second->cause_at_ns = clock_.Now();
    }
    return;
  }
  const auto owner = owners_.find(context);
  if (reader.ok() && owner != owners_.end()) {
    const std::shared_ptr<ContextOwner> keep = owner->second;
    keep->OnControl(*message.from, absl::string_view(message.text).substr(sizeof(Context)));
  } else if (reader.ok() && Accepts(context) && premature_.size() < kMaxPremature) {
    premature_.push_back({context, message.from, {}, std::move(message.text)});
  }
}

Deadline Engine::NextTick() const {
  Deadline next;
  for (auto& [context, owner] : owners_) {
    next = std::min(next, owner->next_tick());
  }
  return next;
}

void Engine::NoteFunction(const void* who, absl::string_view name) {
  absl::MutexLock lock(&callbacks_mutex_);
  const auto is = [who](const Function& one) { return one.who == who; };
  functions_.erase(std::remove_if(functions_.begin(), functions_.end(), is), functions_.end());
  if (!name.empty()) {
    functions_.push_back({who, std::string(name), clock_.Now()});
  }
}

absl::Status Engine::InFunction(int64_t least_ns) {
  absl::MutexLock lock(&callbacks_mutex_);
  const int64_t ran_ns = functions_.empty() ? 0 : clock_.Now() - functions_.front().since_ns;
  return functions_.empty() || ran_ns < least_ns
             ? absl::OkStatus()
             : absl::DeadlineExceededError(
                   absl::StrFormat("it is in %s, which has not returned for %.3g s",
                                   functions_.front().name, static_cast<double>(ran_ns) * 1e-9));
}

// A done() that does not return holds up those behind it.
void Engine::TellOfCallback() {
  absl::MutexLock lock(&callbacks_mutex_);
  if (callbacks_ == nullptr) {
    return;
  }
  const CallbackThread::Running running = callbacks_->running();
  const int64_t ran_ns = Clock::Real().Now() - running.since_ns;
  if (running.since_ns != 0 && running.since_ns != told_of_callback_ns_ && ran_ns >= kSecond) {
    told_of_callback_ns_ = running.since_ns;
    ENTRAIN_LOG(kWarning, running.name, " has been running for ", ran_ns / kMillisecond, " ms; ",
                running.waiting, " more wait for it");
  }
}

void Engine::CheckDeadlines() {
  TellOfCallback();
  const int64_t now = clock_.Now();
  std::vector<std::shared_ptr<ContextOwner>> due;
  for (auto& [context, owner] : owners_) {
    if (owner->next_tick().Passed(now)) {
      due.push_back(owner);
    }
  }
  for (auto& owner : due) {
    owner->OnTick(now);
  }
  if (!due.empty()) {
    AfterPoll();
  }
}

bool Engine::ArmAll() {
  armed_ = true;
  return std::all_of(transports_.begin(), transports_.end(),
                     [](auto& transport) { return transport->Arm(); });
}

int Engine::TimeoutMs(Deadline until, int64_t cap_ns) const {
  const int64_t left = std::min(until.Left(clock_.Now()), cap_ns);
  return static_cast<int>((left + kMillisecond - 1) / kMillisecond);
}

void Engine::SleepAsDriver(Deadline until) {
  if (!ArmAll()) {
    return;
  }
  const int timeout = TimeoutMs(std::min(until, NextTick()), kIdleNapNs);
  driver_sleeps_.store(true, std::memory_order_relaxed);
  // Full fence: pairs with the one in Submit.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (jobs_.Empty() && !stopping_.load(std::memory_order_relaxed)) {
    epoll_event events[8];
    epoll_wait(epoll_fd_, events, 8, timeout);
  }
  driver_sleeps_.store(false, std::memory_order_relaxed);
  DrainWakeFd();
}

void Engine::DriveUntil(const Work& work, Deadline give_up, bool background) {
  Backoff backoff;
  int busy = 0;
  while (!work.done()) {
    if (Poll() > 0) {
      backoff.Reset();
      // Other calls' traffic may keep the loop busy for ever.
      if (++busy % kPollsPerGiveUpCheck == 0 && give_up.Passed(clock_.Now())) {
        return;
      }
      continue;
    }
    if (!background && backoff.Spin(crowded())) {
      continue;
    }
    const int64_t now = clock_.Now();
    if (give_up.Passed(now)) {
      return;
    }
    if (!background && backoff.Yield(now, crowded())) {
      continue;
    }
    CheckDeadlines();
    if (!work.done()) {
      SleepAsDriver(give_up);
    }
  }
}

bool Engine::Await(const Work& work, Deadline give_up, bool background) {
  bool slept = false;
  while (!work.done()) {
    if (TryTake(kCaller)) {
      DriveUntil(work, give_up, background);
      Leave();
      slept = false;
    } else {
      SleepAsWaiter(work, give_up);
      slept = true;
    }
    if (!work.done() && give_up.Passed(clock_.Now())) {
      break;
    }
  }
  if (slept) {
    // The word may have been meant for us; pass it on.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (driver_.load(std::memory_order_relaxed) == kFree && !WakeOneWaiter() &&
        open_works_.load(std::memory_order_relaxed) > 0) {
      WakeThread();
    }
  }
  return work.done();
}

void Engine::SleepAsWaiter(const Work& work, Deadline give_up) {
  Waiter self{&work};
  {
    absl::MutexLock lock(&waiters_mutex_);
    waiters_.push_back(&self);
  }
  waiter_count_.fetch_add(1, std::memory_order_relaxed);
  // Full fence: pairs with the ones in Leave and WakeWaiters.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!work.done() && driver_.load(std::memory_order_relaxed) != kFree) {
    const int64_t left = std::min(give_up.Left(clock_.Now()), kIdleNapNs);
    FutexWait(self.word, 0, left);
  }
  waiter_count_.fetch_sub(1, std::memory_order_relaxed);
  absl::MutexLock lock(&waiters_mutex_);
  waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &self));
}

void Engine::WakeWaiters(const Work* work) {
  // Full fence: pairs with the one in SleepAsWaiter. Either the waiter sees the work done, or we
  // see it registered.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (waiter_count_.load(std::memory_order_relaxed) == 0) {
    return;
  }
  absl::MutexLock lock(&waiters_mutex_);
  for (Waiter* waiter : waiters_) {
    if (waiter->work == work) {
      waiter->word.store(1, std::memory_order_release);
      FutexWake(waiter->word);
    }
  }
}

void Engine::ThreadMain() {
  int64_t nap = kMillisecond;
  while (!stopping_.load(std::memory_order_acquire)) {
    const uint32_t word = thread_word_.load(std::memory_order_acquire);
    if (!TryTake(kEngine)) {
      // A caller drives. Look again later, or when it leaves work behind.
      FutexWait(thread_word_, word, nap);
      nap = std::min(nap * 2, kIdleNapNs);
      continue;
    }
    nap = kMillisecond;
    if (ThreadDrives()) {
      FutexWait(thread_word_, word, nap);  // a waiter was woken to take over; it needs a moment
    }
  }
}

bool Engine::ThreadDrives() {
  DrainWakeFd();  // only while driving: a sleeping driver must find what was written for it
  int idle = 0;
  while (idle < 2 && waiter_count_.load(std::memory_order_relaxed) == 0) {
    idle = Poll() > 0 ? 0 : idle + 1;
  }
  CheckDeadlines();
  const bool armed = idle >= 2 && ArmAll();
  const int timeout = armed ? TimeoutMs(NextTick(), kIdleNapNs) : 0;
  thread_in_epoll_.store(armed, std::memory_order_relaxed);
  driver_.store(kFree, std::memory_order_release);
  // Full fence: pairs with the ones in SleepAsWaiter, WakeThread's caller and Submit.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool handed_over = WakeOneWaiter();
  if (armed && !handed_over && jobs_.Empty() && !stopping_.load(std::memory_order_relaxed)) {
    epoll_event events[8];
    epoll_wait(epoll_fd_, events, 8, timeout);
  }
  thread_in_epoll_.store(false, std::memory_order_relaxed);
  return handed_over;
}

// ---- Contexts and paths

Context Engine::ReserveContext() {
  const uint32_t context = next_context_.fetch_add(1, std::memory_order_relaxed);
  if (context >= (1u << 16)) {
    return 0;
  }
  contexts_.Set(static_cast<Context>(context), kReserved);
  return static_cast<Context>(context);
}

void Engine::ReleaseContext(Context context) {
  contexts_.Set(context, kRevoked);
}

bool Engine::Accepts(Context context) {
  const uint8_t state = contexts_.Of(context);
  return state == kReserved || state == kOpen;
}

absl::StatusOr<Endpoint*> Engine::Connect(const PeerId& peer, size_t transport,
                                          absl::string_view address) {
  const auto found = path_of_peer_.find(KeyOf(peer));
  if (found != path_of_peer_.end()) {
    Path& path = *found->second;
    if (!path.status.ok()) {
      return Annotate(path.status, "an earlier connection to this process failed");
    }
    return path.endpoint.get();
  }
  ENTRAIN_ASSIGN_OR_RETURN(auto endpoint, transports_[transport]->Connect(peer, address));
  auto path = std::make_unique<Path>();
  path->peer = peer;
  path->transport = transport;
  path->endpoint = std::move(endpoint);
  Endpoint* const result = path->endpoint.get();
  path_of_peer_[std::string(KeyOf(peer))] = path.get();
  path_of_endpoint_[result] = path.get();
  paths_.push_back(std::move(path));
  return result;
}

absl::Status Engine::PathStatus(const Endpoint* endpoint) const {
  const auto found = path_of_endpoint_.find(endpoint);
  return found == path_of_endpoint_.end() ? absl::OkStatus() : found->second->status;
}

void Engine::TellCause(const absl::Status& why) {
  if (!told() || clock_.Now() - told_at_ns_ > kGoneOnNs) {
    told_ = why;
    told_at_ns_ = clock_.Now();
    SendCause();
  }
}

void Engine::TakeCauseBack() {
  told_ = absl::OkStatus();
  SendCause();
}

void Engine::SendCause() {
  const std::string text = EncodeStatus(told_);
  const std::string message = Writer().Put(kOfRuntimes).PutRaw(text.data(), text.size()).Take();
  for (const auto& path : paths_) {
    path->endpoint->SendControl(message);
  }
  NeedFlush();
}

absl::Status Engine::CauseOf(const Endpoint* endpoint, int64_t since_ns) const {
  const auto found = path_of_endpoint_.find(endpoint);
  return found != path_of_endpoint_.end() && found->second->cause_at_ns > since_ns
             ? found->second->cause
             : absl::OkStatus();
}

std::shared_ptr<ContextOwner> Engine::WaitsElsewhere(const ContextOwner* asked) const {
  std::shared_ptr<ContextOwner> longest;
  for (const auto& [context, owner] : owners_) {
    const auto since = owner->waits_since();
    if (owner.get() != asked && since && (longest == nullptr || *since < *longest->waits_since())) {
      longest = owner;
    }
  }
  return longest;
}

void Engine::OpenContext(Context context, std::shared_ptr<ContextOwner> owner) {
  contexts_.Set(context, kOpen);
  ContextOwner& opened = *owner;
  owners_[context] = std::move(owner);
  auto premature = std::exchange(premature_, {});
  for (Premature& one : premature) {
    if (one.context != context) {
      if (Accepts(one.context)) {
        premature_.push_back(std::move(one));
      }
    } else if (one.envelope) {
      opened.OnEarly(*one.from, *one.envelope);
    } else {
      control_.push_back({one.from, std::move(one.text)});
    }
  }
}

absl::Status Engine::CheckUnused(ConstBytes bytes) const {
  for (const auto& [context, owner] : owners_) {
    if (const std::string user = owner->UserOf(bytes); !user.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("it is still used by ", user));
    }
  }
  return absl::OkStatus();
}

absl::Status Engine::Retire(const SharedRegion& region) {
  ENTRAIN_RETURN_IF_ERROR(CheckUnused(region.whole));
  for (const auto& transport : transports_) {
    transport->Retire(region);
  }
  NeedFlush();
  return absl::OkStatus();
}

void Engine::RetireWhenUnused(std::shared_ptr<const SharedRegion> region) {
  if (!Retire(*region).ok()) {
    retiring_.push_back(std::move(region));
  }
}

void Engine::CloseContext(Context context) {
  contexts_.Set(context, kRevoked);
  const auto found = owners_.find(context);
  if (found != owners_.end()) {
    closed_owners_.push_back(std::move(found->second));
    owners_.erase(found);
  }
}

void Engine::NeedAttention(ContextOwner* owner) {
  attention_.push_back(owner);
}

void Engine::OnEarly(Endpoint& from, const Envelope& envelope) {
  const Context context = envelope.tag.context();
  const auto owner = owners_.find(context);
  if (owner != owners_.end()) {
    owner->second->OnEarly(from, envelope);
  } else if (premature_.size() < kMaxPremature) {
    premature_.push_back({context, &from, envelope, {}});
  }
}

void Engine::OnControl(Endpoint& from, absl::string_view message) {
  control_.push_back({&from, std::string(message)});
}

void Engine::OnLost(Endpoint& from, const absl::Status& why) {
  const auto found = path_of_endpoint_.find(&from);
  if (found != path_of_endpoint_.end() && found->second->status.ok()) {
    found->second->status = why;
  }
  lost_.emplace_back(&from, why);
}

}  // namespace entrain
