#include "lib/base/config.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/log.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

// Sets a variable for one test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(Environment, UnknownNamesOfOursAreToldWithTheNearestName) {
  const Variable ours("ENTRAIN_KEEPALIVE", "5s/1s");
  const Variable other("ENTRAINMENT", "1");
  EXPECT_THAT(UnknownVariables(), testing::IsEmpty());
  const Variable misspelt("ENTRAIN_TIMEOUTS", "5s"), newer("ENTRAIN_TCP_CONGESTIONS", "bbr");
  EXPECT_THAT(
      UnknownVariables(),
      testing::UnorderedElementsAre(
          "ENTRAIN_TIMEOUTS: no such setting, so it has no effect; ENTRAIN_TIMEOUT is the most "
          "similar name",
          HasSubstr("ENTRAIN_TCP_CONGESTION is the most similar")));
}

TEST(Environment, LogLevelIsAppliedOrRefused) {
  {
    const Variable level("ENTRAIN_LOG", "debug");
    EXPECT_TRUE(ApplyLogLevel().ok());
    EXPECT_TRUE(LogEnabled(LogLevel::kDebug));
  }
  SetLogLevel(LogLevel::kWarning);
  EXPECT_TRUE(ApplyLogLevel().ok());  // unset: the level stays
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
  const Variable level("ENTRAIN_LOG", "loud");
  EXPECT_THAT(std::string(ApplyLogLevel().message()), HasSubstr("\"loud\" is none of error"));
}

TEST(Environment, TableIsCompleteAndDescribed) {
  std::string names;
  for (const EnvVariable& variable : EnvTable()) {
    absl::StrAppend(&names, variable.name, " ");
    EXPECT_GT(std::strlen(variable.values), 0u) << variable.name;
    EXPECT_GT(std::strlen(variable.meaning), 10u) << variable.name;
  }
  EXPECT_EQ(names,
            "ENTRAIN_STORE ENTRAIN_RUN_ID ENTRAIN_TRANSPORTS ENTRAIN_ALGORITHMS ENTRAIN_TUNING "
            "ENTRAIN_DETERMINISM ENTRAIN_TIMEOUT ENTRAIN_SILENCE ENTRAIN_INTERFACE "
            "ENTRAIN_PORTS ENTRAIN_TCP_STREAMS ENTRAIN_TCP_CONGESTION "
            "ENTRAIN_KEEPALIVE ENTRAIN_HOST_ID "
            "ENTRAIN_KEY_FILE ENTRAIN_TLS ENTRAIN_TLS_CERT ENTRAIN_TLS_KEY ENTRAIN_TLS_CA "
            "ENTRAIN_INSECURE ENTRAIN_CRC "
            "ENTRAIN_NCCL_LIBRARY ENTRAIN_LOG "
            "ENTRAIN_FLIGHT_CALLS ENTRAIN_FLIGHT_DIR ENTRAIN_FLIGHT_SIGNAL "
            "ENTRAIN_CUDA_LIBRARY ENTRAIN_LIBRARY ENTRAIN_RESTARTS ENTRAIN_FAULT ");
}

TEST(Environment, EmptyCountsAsUnset) {
  EXPECT_EQ(GetEnv("ENTRAIN_STORE"), std::nullopt);
  const Variable empty("ENTRAIN_STORE", "");
  EXPECT_EQ(GetEnv("ENTRAIN_STORE"), std::nullopt);
  const Variable set("ENTRAIN_STORE", "mem:x");
  EXPECT_EQ(GetEnv("ENTRAIN_STORE"), "mem:x");
}

TEST(Environment, IntegersAreCheckedAndTheErrorNamesTheVariable) {
  EXPECT_EQ(GetEnvInt("WORLD_SIZE_FOR_TEST").value(), std::nullopt);
  const Variable good("WORLD_SIZE_FOR_TEST", "-12");
  EXPECT_EQ(GetEnvInt("WORLD_SIZE_FOR_TEST").value(), -12);
  const Variable bad("RANK_FOR_TEST", "3x");
  const absl::Status status = GetEnvInt("RANK_FOR_TEST").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("RANK_FOR_TEST"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("3x"));
}

TEST(Sizes, AreParsed) {
  EXPECT_EQ(ParseSize("0").value(), 0);
  EXPECT_EQ(ParseSize("64").value(), 64);
  EXPECT_EQ(ParseSize("64K").value(), 64 << 10);
  EXPECT_EQ(ParseSize("1.5M").value(), 3 << 19);
  EXPECT_EQ(ParseSize("2G").value(), int64_t{2} << 30);
}

TEST(Sizes, NonsenseIsRefusedAndNamed) {
  for (const char* text : {"", "K", "-1", "+1", "1e3", "1KB", "1.2.3", "1 K", "nan", "inf", "0x10",
                           "99999999999G", "9999999999999999999999", "64k", "1T"}) {
    const absl::Status status = ParseSize(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("\"", text, "\""))) << text;
  }
}

TEST(Durations, AreParsed) {
  EXPECT_EQ(ParseDuration("250ms").value(), 250'000'000);
  EXPECT_EQ(ParseDuration("30s").value(), 30'000'000'000);
  EXPECT_EQ(ParseDuration("0.5s").value(), 500'000'000);
  EXPECT_EQ(ParseDuration("5m").value(), 300'000'000'000);
  EXPECT_EQ(ParseDuration("2h").value(), 7'200'000'000'000);
  EXPECT_EQ(ParseDuration("7").value(), 7'000'000'000);
}

TEST(Durations, NonsenseAndZeroAreRefusedAndNamed) {
  for (const char* text :
       {"", "0", "0s", "0.0000000001s", "-5s", "5 s", "s", "5d", "999999999999h"}) {
    const absl::Status status = ParseDuration(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("\"", text, "\""))) << text;
  }
}

// The struct of a caller that was compiled with an older or newer header.
struct OldStruct {
  size_t size;
  int64_t a;
};
struct KnownStruct {
  size_t size;
  int64_t a, b;
};
struct NewStruct {
  size_t size;
  int64_t a, b, c;
};
constexpr KnownStruct kDefaults = {sizeof(KnownStruct), 10, 20};

TEST(CopyStruct, TakesWhatAnOlderCallerKnows) {
  KnownStruct known = kDefaults;
  const OldStruct old = {sizeof(OldStruct), 1};
  ASSERT_TRUE(CopyStruct(&old, &known, sizeof(known), "config").ok());
  EXPECT_EQ(known.a, 1);
  EXPECT_EQ(known.b, 20);  // the default
  EXPECT_EQ(known.size, sizeof(known));
}

TEST(CopyStruct, TakesEqualAndNewerStructsWhoseTailIsZero) {
  KnownStruct known = kDefaults;
  const NewStruct newer = {sizeof(NewStruct), 1, 2, 0};
  ASSERT_TRUE(CopyStruct(&newer, &known, sizeof(known), "config").ok());
  EXPECT_EQ(known.a, 1);
  EXPECT_EQ(known.b, 2);
  const KnownStruct equal = {sizeof(KnownStruct), 5, 6};
  ASSERT_TRUE(CopyStruct(&equal, &known, sizeof(known), "config").ok());
  EXPECT_EQ(known.a, 5);
  EXPECT_EQ(known.b, 6);
}

TEST(CopyStruct, RefusesAnUnknownTailThatIsSet) {
  KnownStruct known = kDefaults;
  const NewStruct newer = {sizeof(NewStruct), 1, 2, 3};
  const absl::Status status = CopyStruct(&newer, &known, sizeof(known), "entrain_x_config_t");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("entrain_x_config_t"));
  EXPECT_EQ(known.a, 10) << "a refused struct was copied";
}

TEST(CopyStruct, RefusesNullAndStructsThatWereNeverInitialised) {
  KnownStruct known = kDefaults;
  EXPECT_FALSE(CopyStruct(nullptr, &known, sizeof(known), "config").ok());
  for (const size_t size : {size_t{0}, size_t{1}, sizeof(size_t) - 1, ~size_t{0}}) {
    const KnownStruct given = {size, 1, 2};
    EXPECT_FALSE(CopyStruct(&given, &known, sizeof(known), "config").ok()) << size;
  }
  EXPECT_EQ(known.a, 10);
}

}  // namespace
}  // namespace entrain
