// The handshake with and without TLS, and the data inside TLS, over a wire that the test cuts,
// alters and slows down.
#include "lib/net/handshaker.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <future>
#include <optional>
#include <string>

#include <openssl/sha.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/net/key_file.h"
#include "lib/net/security.h"
#include "tests/support/certificates.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

constexpr std::array<uint8_t, 16> kDialer{1, 2, 3}, kListener{4, 5, 6};
constexpr char kKey[] = "a key of many bytes";

Address Elsewhere() {
  return *Address::Parse("192.0.2.1:80");  // of no host
}

void MakePair(Fd* a, Fd* b) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  *a = Fd(ends[0]);
  *b = Fd(ends[1]);
}

// One direction of the wire.
struct Way {
  // Forwards at most `most` bytes. Returns how many.
  size_t Pump(size_t most) {
    char bytes[4096];
    const ssize_t got = recv(from, bytes, std::min(most, sizeof(bytes)), MSG_DONTWAIT);
    if (got <= 0) {
      return 0;
    }
    auto forward = static_cast<size_t>(got);
    if (alter) {
      alter(bytes, forward, passed);
    }
    const size_t before = std::exchange(passed, passed + forward);
    if (passed > cut_after) {
      forward = cut_after - std::min(cut_after, before);
    }
    if (before > cut_after) {
      return forward;
    }
    EXPECT_EQ(send(to, bytes, forward, MSG_NOSIGNAL), static_cast<ssize_t>(forward));
    if (passed > cut_after) {
      shutdown(to, SHUT_WR);
    }
    return static_cast<size_t>(got);
  }

  int from = -1, to = -1;
  size_t passed = 0;
  size_t cut_after = ~size_t{0};
  std::function<void(char* bytes, size_t count, size_t at)> alter;
};

// Two sides, and the wire between them.
struct Meeting {
  Meeting(const Security& dialer_security, const Security& listener_security,
          const Address& peer = Elsewhere()) {
    Fd near_dialer, near_listener;
    MakePair(&near_dialer, &ends[0]);
    MakePair(&near_listener, &ends[1]);
    dialer.emplace(std::move(near_dialer), peer, true, Purpose::kData, kDialer, dialer_security);
    listener.emplace(std::move(near_listener), peer, false, Purpose::kData, kListener,
                     listener_security);
    to_listener.from = to_dialer.to = ends[0].get();
    to_listener.to = to_dialer.from = ends[1].get();
  }

  // Continues until both sides are done or one has failed and nothing moves any more.
  void Run(size_t step = 4096) {
    bool over[2] = {};
    for (int idle = 0; idle < 3 && !(over[0] && over[1]);) {
      size_t moved = 0;
      for (const int side : {0, 1}) {
        Handshaker& one = side == 0 ? *dialer : *listener;
        absl::StatusOr<bool>& result = side == 0 ? dialed : listened;
        if (!over[side]) {
          result = one.Progress();
          over[side] = !result.ok() || *result;
          if (!result.ok()) {
            shutdown(one.fd(), SHUT_WR);
          }
        }
      }
      moved += to_listener.Pump(step) + to_dialer.Pump(step);
      idle = moved > 0 ? 0 : idle + 1;
    }
  }
  bool done() const { return dialed.value_or(false) && listened.value_or(false); }

  Fd ends[2];
  Way to_listener, to_dialer;
  std::optional<Handshaker> dialer, listener;
  absl::StatusOr<bool> dialed = false, listened = false;
};

std::string Text(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) {
    text[i] = static_cast<char>(i * 2654435761u >> 13);
  }
  return text;
}

// Sends the text through the wire. Returns what arrives; `end`: the last result of Receive, and
// `error` its errno.
struct Arrival {
  std::string text;
  ssize_t end = 1;
  int error = 0;
};
Arrival Carry(Channel& from, Way& way, Channel& to, const std::string& text, size_t step = 4096) {
  Arrival arrival;
  size_t sent = 0;
  for (int idle = 0; idle < 3 && arrival.text.size() < text.size();) {
    bool moved = false;
    if (sent < text.size()) {
      iovec parts[] = {
          {const_cast<char*>(text.data()) + sent, std::min<size_t>(100, text.size() - sent)},
          {nullptr, 0}};
      parts[1] = {const_cast<char*>(text.data()) + sent + parts[0].iov_len,
                  text.size() - sent - parts[0].iov_len};
      const ssize_t put = from.Send(parts, 2);
      moved = put > 0;
      sent += static_cast<size_t>(std::max<ssize_t>(put, 0));
    }
    from.Flush();
    moved = way.Pump(step) > 0 || moved;
    char bytes[5000];
    arrival.end = to.Receive(bytes, sizeof(bytes));
    arrival.error = errno;
    if (arrival.end > 0) {
      arrival.text.append(bytes, static_cast<size_t>(arrival.end));
    } else if (arrival.end == 0 || arrival.error != EAGAIN) {
      break;
    }
    idle = moved || arrival.end > 0 ? 0 : idle + 1;
  }
  return arrival;
}

class Tls : public ::testing::TestWithParam<const char*> {
 protected:
  Security Make(const char* name) {
    Security security;
    if (GetParam() == std::string("key")) {
      return Security(kKey);
    }
    return ByCertificate(authority_.Issue(name));
  }
  static Security ByCertificate(const TlsFiles& files) {
    Security security;
    security.files = files;
    auto context = TlsContext::ForCertificates(files);
    EXPECT_TRUE(context.ok()) << context.status();
    security.tls = *context;
    return security;
  }
  Authority authority_;
};
INSTANTIATE_TEST_SUITE_P(Kind, Tls, ::testing::Values("key", "certificates"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(Tls, MeetsAndCarriesInPiecesOfAnySize) {
  const Security one = Make("one"), other = Make("other");
  for (const size_t step : {size_t{1}, size_t{7}, size_t{4096}}) {
    Meeting meeting(one, other);
    meeting.Run(step);
    ASSERT_TRUE(meeting.done()) << meeting.dialed.status() << meeting.listened.status();
    EXPECT_TRUE(meeting.dialer->handshake().tls());
    EXPECT_EQ(meeting.dialer->handshake().peer(), kListener);
    EXPECT_EQ(meeting.listener->handshake().peer(), kDialer);
    Channel dialer = meeting.dialer->Take(), listener = meeting.listener->Take();
    const std::string text = Text(step < 4096 ? 40'000 : 1 << 20);
    EXPECT_TRUE(Carry(dialer, meeting.to_listener, listener, text, step).text == text) << step;
    EXPECT_TRUE(Carry(listener, meeting.to_dialer, dialer, text, step).text == text) << step;
  }
}

TEST_P(Tls, NothingOfTheTextIsOnTheWire) {
  const Security one = Make("one"), other = Make("other");
  Meeting meeting(one, other);
  meeting.Run();
  ASSERT_TRUE(meeting.done());
  std::string wire;
  meeting.to_listener.alter = [&](char* bytes, size_t count, size_t) { wire.append(bytes, count); };
  Channel dialer = meeting.dialer->Take(), listener = meeting.listener->Take();
  const std::string text = "a text that nobody else may read";
  EXPECT_EQ(Carry(dialer, meeting.to_listener, listener, text).text, text);
  EXPECT_GE(wire.size(), text.size());
  EXPECT_EQ(wire.find("nobody"), std::string::npos);
}

TEST_P(Tls, ManyKeysServeOneConnection) {
  const Security one = Make("one"), other = Make("other");
  Meeting meeting(one, other);
  meeting.Run();
  ASSERT_TRUE(meeting.done());
  Channel dialer = meeting.dialer->Take(), listener = meeting.listener->Take();
  dialer.tls()->set_records_per_key(3);
  const std::string text = Text(2 << 20);  // 128 records
  EXPECT_TRUE(Carry(dialer, meeting.to_listener, listener, text).text == text);
  EXPECT_TRUE(Carry(listener, meeting.to_dialer, dialer, text).text == text);
}

// The data that arrive before the cut are correct, and the cut is the end of the connection.
TEST_P(Tls, ACutAtAnyByteIsTheEnd) {
  const Security one = Make("one"), other = Make("other");
  const std::string text = Text(40'000);
  for (size_t after = 0; after < 40'000; after += 1999) {
    Meeting meeting(one, other);
    meeting.Run();
    ASSERT_TRUE(meeting.done());
    Channel dialer = meeting.dialer->Take(), listener = meeting.listener->Take();
    meeting.to_listener.cut_after = meeting.to_listener.passed + after;
    const Arrival arrival = Carry(dialer, meeting.to_listener, listener, text);
    EXPECT_EQ(arrival.end, 0) << after;
    EXPECT_LT(arrival.text.size(), text.size());
    EXPECT_TRUE(arrival.text == text.substr(0, arrival.text.size())) << after;
  }
}

// A man in the middle changes one byte of the records.
TEST_P(Tls, AnAlteredByteIsNoticedAndNothingBehindItArrives) {
  const Security one = Make("one"), other = Make("other");
  const std::string text = Text(40'000);
  for (size_t at = 0; at < 40'000; at += 1777) {
    Meeting meeting(one, other);
    meeting.Run();
    ASSERT_TRUE(meeting.done());
    Channel dialer = meeting.dialer->Take(), listener = meeting.listener->Take();
    const size_t victim = meeting.to_listener.passed + at;
    meeting.to_listener.alter = [&](char* bytes, size_t count, size_t from) {
      if (victim >= from && victim < from + count) {
        bytes[victim - from] ^= 0x10;
      }
    };
    const Arrival arrival = Carry(dialer, meeting.to_listener, listener, text);
    EXPECT_LT(arrival.text.size(), text.size()) << at;
    EXPECT_TRUE(arrival.text == text.substr(0, arrival.text.size())) << at;
    if (at % 16406 > 4) {  // a changed length may also mean that the record never ends
      EXPECT_EQ(arrival.end, -1) << at;
      EXPECT_EQ(arrival.error, EBADMSG) << at;
      char byte;
      EXPECT_EQ(listener.Receive(&byte, 1), -1);
      EXPECT_EQ(errno, EBADMSG);
    }
  }
}

// If any byte of the handshake is changed, the two sides do not connect, unless the byte has no
// meaning.
TEST_P(Tls, AnAlteredHandshakeNeverCarriesWrongBytes) {
  const Security one = Make("one"), other = Make("other");
  Meeting whole(one, other);
  whole.Run();
  ASSERT_TRUE(whole.done()) << whole.dialed.status() << whole.listened.status();
  const size_t sent[] = {whole.to_listener.passed, whole.to_dialer.passed};
  const size_t stride = GetParam() == std::string("key") ? 3 : 17;
  const std::string text = Text(100);
  int met = 0, tried = 0;
  for (const int side : {0, 1}) {
    for (size_t victim = 0; victim < sent[side]; victim += stride) {
      Meeting meeting(one, other);
      Way& way = side == 0 ? meeting.to_listener : meeting.to_dialer;
      way.alter = [&](char* bytes, size_t count, size_t from) {
        if (victim >= from && victim < from + count) {
          bytes[victim - from] ^= 1;
        }
      };
      meeting.Run();
      way.alter = {};  // lengths of signatures differ, so this handshake may end before `victim`
      ++tried;
      if (meeting.done()) {
        ++met;
        EXPECT_GE(victim, Handshake::kHelloBytes) << side;
        EXPECT_TRUE(meeting.dialer->handshake().tls());
        Channel dialer = meeting.dialer->Take(), listener = meeting.listener->Take();
        EXPECT_EQ(Carry(dialer, meeting.to_listener, listener, text).text, text);
      }
    }
  }
  EXPECT_LT(met, tried / 10);
}

TEST(TlsByKey, AnotherKeyIsRefusedBeforeTlsAndTheDialerIsTold) {
  Meeting meeting(Security(kKey), Security("another key of many bytes"));
  meeting.Run();
  EXPECT_THAT(std::string(meeting.dialed.status().message()),
              HasSubstr("does not hold the same key"));
  EXPECT_THAT(std::string(meeting.listened.status().message()),
              HasSubstr("does not hold the same key"));
  EXPECT_EQ(meeting.dialed.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(meeting.listener->channel().tls(), nullptr);
}

// A dialer that passes on another's proof has no key for TLS.
TEST(TlsByKey, AProofThatIsPassedOnDoesNotHelp) {
  const Security ours(kKey);
  Meeting meeting(ours, ours);
  meeting.to_listener.alter = [&](char* bytes, size_t count, size_t from) {
    constexpr size_t kProofEnds = Handshake::kHelloBytes + Handshake::kProofBytes;
    for (size_t i = std::max(from, kProofEnds); i < from + count; ++i) {
      bytes[i - from] = static_cast<char>(i);  // arbitrary bytes: the dialer has no key for TLS
    }
  };
  meeting.Run();
  EXPECT_FALSE(meeting.listened.value_or(false));
  EXPECT_FALSE(meeting.dialed.value_or(false));
}

class Certificates : public ::testing::Test {
 protected:
  static Security By(const TlsFiles& files) {
    Security security;
    security.files = files;
    security.tls = *TlsContext::ForCertificates(files);
    return security;
  }
  // Expects that the two sides do not connect, and that each side reports the reason.
  static void ExpectRefused(const Security& dialer, const Security& listener,
                            const std::string& dialer_says, const std::string& listener_says) {
    Meeting meeting(dialer, listener);
    meeting.Run();
    EXPECT_EQ(meeting.dialed.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(meeting.listened.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(meeting.dialed.status().message()), HasSubstr(dialer_says));
    EXPECT_THAT(std::string(meeting.listened.status().message()), HasSubstr(listener_says));
  }
  Authority authority_, foreign_;
};

TEST_F(Certificates, OfAnotherAuthorityAreRefusedByBothSides) {
  const Security good = By(authority_.Issue("good"));
  TlsFiles files = foreign_.Issue("foreign");
  ExpectRefused(good, By(files), "certificate is refused", "unknown ca");
  files.authorities = good.files.authorities;  // believes the others, but is not believed
  ExpectRefused(good, By(files), "certificate is refused", "unknown ca");
  ExpectRefused(By(files), good, "unknown ca", "certificate is refused");
}

TEST_F(Certificates, ThatHaveEndedAreRefused) {
  const Security good = By(authority_.Issue("good")), old = By(authority_.Issue("old", -60));
  ExpectRefused(good, old, "certificate has expired", "certificate expired");
  ExpectRefused(old, good, "certificate expired", "certificate has expired");
}

// Which rank dials is chance, so a certificate must serve for both sides of a connection.
TEST_F(Certificates, ForOneSideAloneAreRefusedWhicheverSideDials) {
  const Security good = By(authority_.Issue("good"));
  for (const char* usage : {"serverAuth", "clientAuth", "codeSigning"}) {
    SCOPED_TRACE(usage);
    const TlsFiles files = authority_.Issue(usage, 60, usage);
    EXPECT_THAT(std::string(TlsContext::ForCertificates(files).status().message()),
                HasSubstr("needs serverAuth and clientAuth"));
    // A peer that does not check its own certificate.
    Security peer = By(authority_.Issue("peer"));
    ASSERT_EQ(
        SSL_CTX_use_certificate_file(peer.tls->get(), files.certificate.c_str(), SSL_FILETYPE_PEM),
        1);
    ASSERT_EQ(SSL_CTX_use_PrivateKey_file(peer.tls->get(), files.key.c_str(), SSL_FILETYPE_PEM), 1);
    ExpectRefused(good, peer, "certificate is refused", "unsupported certificate");
    ExpectRefused(peer, good, "unsupported certificate", "certificate is refused");
  }
  Meeting meeting(good, By(authority_.Issue("both", 60, "serverAuth,clientAuth")));
  meeting.Run();
  EXPECT_TRUE(meeting.done()) << meeting.dialed.status() << meeting.listened.status();
}

TEST_F(Certificates, MustBeOnBothSides) {
  ExpectRefused(By(authority_.Issue("good")), Security(), "the other has none",
                "the other side uses certificates");
  Security both = By(authority_.Issue("both"));
  both.key = kKey;
  ExpectRefused(both, Security(kKey), "the other has none", "the other side uses certificates");
}

// Without a key everybody can compute a proof, so TLS must be bound to the hellos.
TEST_F(Certificates, AHelloThatIsChangedWithItsProofIsNoticed) {
  Meeting meeting(By(authority_.Issue("one")), By(authority_.Issue("other")));
  std::string dialer_hello, listener_hello;
  meeting.to_dialer.alter = [&](char* bytes, size_t count, size_t from) {
    if (from < Handshake::kHelloBytes) {
      listener_hello.append(bytes, std::min(count, Handshake::kHelloBytes - from));
    }
  };
  meeting.to_listener.alter = [&](char* bytes, size_t count, size_t from) {
    for (size_t i = from; i < from + count; ++i) {
      char& byte = bytes[i - from];
      if (i == 16) {
        byte = 9;  // another peer id
      }
      if (i < Handshake::kHelloBytes) {
        dialer_hello += byte;
      } else if (i < Handshake::kHelloBytes + Handshake::kProofBytes) {
        const std::string text = "dialer data" + dialer_hello + listener_hello;
        unsigned char proof[SHA256_DIGEST_LENGTH];
        SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), proof);
        byte = static_cast<char>(proof[i - Handshake::kHelloBytes]);
      }
    }
  };
  meeting.Run();
  EXPECT_EQ(dialer_hello.size(), Handshake::kHelloBytes);
  EXPECT_THAT(std::string(meeting.dialed.status().message()), HasSubstr("no application protocol"));
  EXPECT_FALSE(meeting.listened.ok());
}

TEST_F(Certificates, FilesThatCannotBeUsedAreNamed) {
  const TlsFiles good = authority_.Issue("good");
  const auto expect = [](const TlsFiles& files, const std::string& says) {
    const absl::Status status = TlsContext::ForCertificates(files).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  };
  TlsFiles files = good;
  files.authorities.clear();
  expect(files, "needs three files");
  files = good;
  files.certificate = "/no/such/file";
  expect(files, "ENTRAIN_TLS_CERT \"/no/such/file\"");
  files = good;
  files.key = authority_.Issue("other").key;
  expect(files, "key values mismatch");
  files = good;
  files.authorities = good.key;
  expect(files, "ENTRAIN_TLS_CA");
  ASSERT_EQ(chmod(good.key.c_str(), 0644), 0);
  expect(good, "others may use it (mode 644)");
}

TEST(Plain, IsRefusedBetweenHostsUnlessBothPermitIt) {
  Security insecure;
  insecure.insecure = true;
  for (const auto& [dialer, listener] :
       {std::pair(Security(), Security()), {insecure, Security()}, {Security(), insecure}}) {
    Meeting meeting(dialer, listener);
    meeting.Run();
    for (const absl::Status& status : {meeting.dialed.status(), meeting.listened.status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(status.message()), HasSubstr("refuses plain traffic between hosts"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("openssl rand -hex 32"));
    }
  }
  Meeting meeting(insecure, insecure);
  meeting.Run();
  EXPECT_TRUE(meeting.done());
  EXPECT_FALSE(meeting.dialer->handshake().tls());
}

TEST(Plain, IsUsedWithinAHostUnlessOneSideWantsTls) {
  const Address here = *Address::Parse("127.0.0.1:80");
  for (const Security& plain : {Security(), Security(kKey)}) {
    Meeting meeting(plain, plain, here);
    meeting.Run(1);
    ASSERT_TRUE(meeting.done());
    EXPECT_FALSE(meeting.listener->handshake().tls());
    Channel dialer = meeting.dialer->Take(), listener = meeting.listener->Take();
    const std::string text = Text(100'000);
    EXPECT_TRUE(Carry(dialer, meeting.to_listener, listener, text).text == text);
  }
  Security all(kKey);
  all.within_host = true;
  Meeting meeting(Security(kKey), all, here);
  meeting.Run();
  ASSERT_TRUE(meeting.done());
  EXPECT_TRUE(meeting.dialer->handshake().tls());
  Meeting local(all, all, Address());  // a local socket
  local.Run();
  ASSERT_TRUE(local.done());
  EXPECT_FALSE(local.dialer->handshake().tls());
}

// A man in the middle pretends to each side that the other one does not want TLS.
TEST(Plain, CannotBeForcedFromOutside) {
  Security all(kKey);
  all.within_host = true;
  const Address here = *Address::Parse("127.0.0.1:80");
  Meeting meeting(Security(kKey), all, here);
  const auto clear = [](char* bytes, size_t count, size_t from) {
    constexpr size_t kFlags = 14;
    if (kFlags >= from && kFlags < from + count) {
      bytes[kFlags - from] &= ~2;
    }
  };
  meeting.to_listener.alter = meeting.to_dialer.alter = clear;
  meeting.Run();
  EXPECT_FALSE(meeting.dialed.value_or(false));
  EXPECT_FALSE(meeting.listened.value_or(false));
}

TEST(RunHandshake, MeetsOverABlockingCall) {
  const Stop stop{Deadline::After(10 * kSecond), nullptr};
  for (const char* key : {"", kKey}) {
    Fd a, b;
    MakePair(&a, &b);
    const Address peer = key == kKey ? Elsewhere() : Address();
    Handshaker dialer(std::move(a), peer, true, Purpose::kStore, kDialer, Security(key));
    Handshaker listener(std::move(b), peer, false, Purpose::kStore, kListener, Security(key));
    auto listening = std::async(std::launch::async, [&] { return RunHandshake(listener, stop); });
    EXPECT_TRUE(RunUntilProved(dialer, stop).ok());
    EXPECT_TRUE(RunHandshake(dialer, stop).ok());
    EXPECT_TRUE(listening.get().ok());
    Channel one = dialer.Take(), other = listener.Take();
    const std::string text = Text(1 << 20);
    auto writing = std::async(std::launch::async,
                              [&] { return WriteFull(one, text.data(), text.size(), stop); });
    std::string read(text.size(), '\0');
    EXPECT_TRUE(ReadFull(other, read.data(), read.size(), stop).ok());
    EXPECT_TRUE(writing.get().ok());
    EXPECT_TRUE(read == text);
  }
}

TEST(RunHandshake, SilentPeerEndsByTheDeadline) {
  Fd a, b;
  MakePair(&a, &b);
  Handshaker dialer(std::move(a), Address(), true, Purpose::kData, kDialer, Security());
  const int64_t start = Clock::Real().Now();
  EXPECT_EQ(RunHandshake(dialer, {Deadline::After(50 * kMillisecond), nullptr}).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(Clock::Real().Now() - start, 5 * kSecond);
}

TEST(RunHandshake, PeerThatLeavesHalfWayIsUnavailable) {
  for (const size_t sent : {size_t{0}, size_t{10}, Handshake::kHelloBytes}) {
    Fd a, b;
    MakePair(&a, &b);
    Handshake leaver(false, Purpose::kData, kListener, "");
    const std::string hello = leaver.TakeOutput().substr(0, sent);
    const Stop stop{Deadline::After(10 * kSecond), nullptr};
    ASSERT_TRUE(WriteFull(b.get(), hello.data(), hello.size(), stop).ok());
    ASSERT_EQ(shutdown(b.get(), SHUT_WR), 0);
    Handshaker dialer(std::move(a), Address(), true, Purpose::kData, kDialer, Security());
    const absl::Status met = RunHandshake(dialer, stop);
    EXPECT_EQ(met.code(), absl::StatusCode::kUnavailable) << met;
  }
}

// The kernel reports a reset once. If that was to a Send that had taken bytes, Receive must not see
// an end without an error, which would mean that the other process has ended.
TEST(TlsByKey, AResetThatSendingFoundIsNoEnd) {
  const auto listener = *Listen(*Address::FromHost("127.0.0.1", 0));
  const Security security(kKey);
  Fd near = *Connect(*LocalAddress(listener.get()), {Deadline::After(10 * kSecond)});
  Fd far = *Accept(listener.get());
  Handshaker dialer(std::move(near), Elsewhere(), true, Purpose::kData, kDialer, security);
  std::optional<Handshaker> other(std::in_place, std::move(far), Elsewhere(), false, Purpose::kData,
                                  kListener, security);
  auto listened = std::async(std::launch::async,
                             [&] { return RunHandshake(*other, {Deadline::After(10 * kSecond)}); });
  ASSERT_EQ(RunHandshake(dialer, {Deadline::After(10 * kSecond)}), absl::OkStatus());
  ASSERT_EQ(listened.get(), absl::OkStatus());
  ASSERT_NE(dialer.channel().tls(), nullptr);
  const linger none{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(setsockopt(other->fd(), SOL_SOCKET, SO_LINGER, &none, sizeof(none)), 0);
  other.reset();
  pollfd reset{dialer.fd(), 0, 0};  // POLLERR
  ASSERT_EQ(poll(&reset, 1, 10000), 1);
  Channel channel = dialer.Take();
  EXPECT_EQ(channel.Send("word", 4), 4);
  char byte;
  EXPECT_EQ(channel.Receive(&byte, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

}  // namespace
}  // namespace entrain
