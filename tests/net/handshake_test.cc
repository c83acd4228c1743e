#include "lib/net/handshake.h"

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

constexpr std::array<uint8_t, 16> kDialer{1, 2, 3}, kListener{4, 5, 6};

// Carries all bytes between the two sides until neither has more to send. Holds the first error of
// each side.
struct Outcome {
  absl::Status dialer, listener;
};
absl::Status Feed(Handshake& to, std::string* line) {
  while (!to.done() && line->size() >= to.wanted()) {
    const size_t wanted = to.wanted();
    const absl::Status status = to.Consume(line->substr(0, wanted));
    line->erase(0, wanted);
    if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}
Outcome Meet(Handshake& dialer, Handshake& listener) {
  Outcome outcome;
  std::string to_dialer, to_listener;
  for (int turn = 0; turn < 4; ++turn) {
    to_listener += dialer.TakeOutput();
    to_dialer += listener.TakeOutput();
    if (outcome.dialer.ok()) {
      outcome.dialer = Feed(dialer, &to_dialer);
    }
    if (outcome.listener.ok()) {
      outcome.listener = Feed(listener, &to_listener);
    }
  }
  return outcome;
}

TEST(Handshake, BothSidesLearnWhoTheOtherIs) {
  for (const char* key : {"", "secret"}) {
    Handshake dialer(true, Purpose::kData, kDialer, key);
    Handshake listener(false, Purpose::kData, kListener, key);
    const Outcome outcome = Meet(dialer, listener);
    EXPECT_TRUE(outcome.dialer.ok()) << outcome.dialer;
    EXPECT_TRUE(outcome.listener.ok()) << outcome.listener;
    EXPECT_TRUE(dialer.done());
    EXPECT_TRUE(listener.done());
    EXPECT_EQ(dialer.peer(), kListener);
    EXPECT_EQ(listener.peer(), kDialer);
    EXPECT_EQ(dialer.wanted(), 0u);
    EXPECT_EQ(dialer.TakeOutput(), "");
  }
}

TEST(Handshake, WrongKeyIsRefusedByBoth) {
  Handshake dialer(true, Purpose::kData, kDialer, "secret");
  Handshake listener(false, Purpose::kData, kListener, "Secret");
  const Outcome outcome = Meet(dialer, listener);
  EXPECT_THAT(std::string(outcome.dialer.message()), HasSubstr("does not hold the same key"));
  EXPECT_THAT(std::string(outcome.listener.message()), HasSubstr("does not hold the same key"));
  EXPECT_FALSE(dialer.done());
  EXPECT_FALSE(listener.done());
}

TEST(Handshake, KeyOnOneSideOnlyIsNamed) {
  Handshake dialer(true, Purpose::kData, kDialer, "secret");
  Handshake listener(false, Purpose::kData, kListener, "");
  const Outcome outcome = Meet(dialer, listener);
  EXPECT_THAT(std::string(outcome.dialer.message()), HasSubstr("this side uses a key"));
  EXPECT_THAT(std::string(outcome.listener.message()), HasSubstr("the other side uses a key"));
}

TEST(Handshake, WrongPurposeIsNamed) {
  Handshake dialer(true, Purpose::kStore, kDialer, "");
  Handshake listener(false, Purpose::kData, kListener, "");
  const Outcome outcome = Meet(dialer, listener);
  EXPECT_THAT(std::string(outcome.listener.message()), HasSubstr("for data"));
  EXPECT_THAT(std::string(outcome.listener.message()), HasSubstr("means the store"));
}

TEST(Handshake, OtherVersionsAreNamed) {
  Handshake listener(false, Purpose::kData, kListener, "");
  Handshake dialer(true, Purpose::kData, kDialer, "");
  std::string hello = dialer.TakeOutput();
  hello[8] = 7;   // version low
  hello[10] = 9;  // version high
  const absl::Status status = listener.Consume(hello);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the other 7 to 9"));
}

TEST(Handshake, AnyChangedBitIsNoticed) {
  for (size_t at = 0; at < Handshake::kHelloBytes; ++at) {
    Handshake dialer(true, Purpose::kData, kDialer, "secret");
    Handshake listener(false, Purpose::kData, kListener, "secret");
    std::string hello = dialer.TakeOutput();
    hello[at] = static_cast<char>(hello[at] ^ 0x40);
    const std::string reply = listener.TakeOutput();
    ASSERT_TRUE(dialer.Consume(reply).ok());
    const std::string proof = dialer.TakeOutput();
    absl::Status status = listener.Consume(hello);
    if (status.ok()) {
      status = listener.Consume(proof);
    }
    EXPECT_FALSE(status.ok()) << "byte " << at;
    EXPECT_FALSE(listener.done());
  }
}

// A peer that does not know the key can only send back what it has received.
TEST(Handshake, EchoOfOurOwnBytesIsRefused) {
  for (const bool dials : {true, false}) {
    for (const char* key : {"", "secret"}) {
      Handshake victim(dials, Purpose::kData, kDialer, key);
      const absl::Status status = victim.Consume(victim.TakeOutput());
      EXPECT_THAT(std::string(status.message()), HasSubstr("own hello"));
    }
  }
}

TEST(Handshake, ProofSentBackIsRefusedThoughTheHelloDiffers) {
  Handshake victim(true, Purpose::kData, kDialer, "secret");
  Handshake attacker(false, Purpose::kData, kListener, "not the secret");
  victim.TakeOutput();
  ASSERT_TRUE(victim.Consume(attacker.TakeOutput()).ok());
  EXPECT_FALSE(victim.Consume(victim.TakeOutput()).ok());
  EXPECT_FALSE(victim.done());
}

// Without an answer to compare with, each guess at the key costs a connection.
TEST(Handshake, ListenerSaysNothingOfTheKeyBeforeTheDialerHasProvedThatItHoldsIt) {
  for (const char* key : {"a key of the job", "another key", ""}) {
    Handshake listener(false, Purpose::kData, kListener, key);
    Handshake stranger(true, Purpose::kData, kDialer, key[0] == '\0' ? "" : "a guess");
    EXPECT_EQ(listener.TakeOutput().size(), Handshake::kHelloBytes);
    ASSERT_TRUE(listener.Consume(stranger.TakeOutput()).ok());
    EXPECT_EQ(listener.TakeOutput(), "");
    EXPECT_FALSE(listener.Consume(std::string(Handshake::kProofBytes, 'x')).ok());
    EXPECT_EQ(listener.TakeOutput(), std::string(Handshake::kProofBytes, '\0'));
    EXPECT_FALSE(listener.done());
  }
}

std::string Hmac(const std::string& key, const std::string& text) {
  unsigned char digest[32];
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest, nullptr);
  return {reinterpret_cast<const char*>(digest), sizeof(digest)};
}

// Returns the proof as defined in handshake.h, with the two steps of HKDF (RFC 5869) written out.
std::string ExpectedProof(const std::string& key, const std::string& label,
                          const std::string& hellos) {
  const std::string extracted = Hmac("entrain handshake 3", key);
  return Hmac(Hmac(extracted, label + '\x01'), hellos);
}

TEST(Handshake, ProofIsAsTheHeaderSays) {
  const std::string key = "sixteen bytes or more";
  Handshake dialer(true, Purpose::kStore, kDialer, key);
  Handshake listener(false, Purpose::kStore, kListener, key);
  const std::string dialer_hello = dialer.TakeOutput(), listener_hello = listener.TakeOutput();
  ASSERT_TRUE(dialer.Consume(listener_hello).ok());
  ASSERT_TRUE(listener.Consume(dialer_hello).ok());
  const std::string proof = dialer.TakeOutput();
  EXPECT_EQ(proof, ExpectedProof(key, "dialer store", dialer_hello + listener_hello));
  ASSERT_TRUE(listener.Consume(proof).ok());
  EXPECT_EQ(listener.TakeOutput(),
            ExpectedProof(key, "listener store", dialer_hello + listener_hello));
}

TEST(Handshake, StrangersAreToldApartByTheirFirstBytes) {
  const std::string http =
      "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a scanner\r\nAccept: *";
  const std::string tls("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  for (const std::string& text : {http, tls}) {
    std::string bytes = text;
    bytes.resize(Handshake::kHelloBytes, 'x');
    Handshake listener(false, Purpose::kData, kListener, "");
    const absl::Status status = listener.Consume(bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("does not speak this protocol"));
  }
  Handshake listener(false, Purpose::kData, kListener, "");
  EXPECT_THAT(std::string(listener.Consume(http.substr(0, 64)).message()), HasSubstr("GET / HTTP"));
}

TEST(Handshake, RandomBytesNeverPass) {
  std::mt19937 random(20240601);
  for (int i = 0; i < 2000; ++i) {
    Handshake listener(false, Purpose::kData, kListener, i % 2 == 0 ? "" : "key");
    std::string bytes(Handshake::kHelloBytes, '\0');
    for (char& c : bytes) {
      c = static_cast<char>(random());
    }
    if (i % 4 >= 2) {
      bytes.replace(0, 8, "ENTRAIN1");
    }
    absl::Status status = listener.Consume(bytes);
    if (status.ok()) {
      status = listener.Consume(bytes.substr(0, Handshake::kProofBytes));
    }
    EXPECT_FALSE(status.ok());
  }
}

TEST(Handshake, WrongAmountIsRefused) {
  Handshake listener(false, Purpose::kData, kListener, "");
  EXPECT_FALSE(listener.Consume("short").ok());
  EXPECT_FALSE(listener.done());
}

TEST(RandomBytes, DifferEachTime) {
  std::array<uint8_t, 16> a{}, b{};
  RandomBytes(a.data(), a.size());
  RandomBytes(b.data(), b.size());
  EXPECT_NE(a, b);
}

// A store's thread may still compute proofs while its process ends. Functions that are registered
// before the first use of OpenSSL run after those that OpenSSL registers.
TEST(HandshakeDeathTest, OpenSslIsThereUntilTheProcessHasEnded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::atexit([] { _exit(DeriveKey("a key", "a use").ok() ? 0 : 3); });
        if (!DeriveKey("a key", "a use").ok()) {
          _exit(4);
        }
        std::exit(5);  // the function above ends with another number
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace entrain
