#include "examples/trainer/flags.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "examples/trainer/error.h"

namespace trainer {
namespace {

using testing::HasSubstr;
using testing::Not;

Options Parse(std::vector<std::string> words) {
  words.insert(words.begin(), {"--data", "text"});
  return ParseFlags(words);
}

struct Refused {
  std::vector<std::string> words;
  std::string says;
};

TEST(Flags, BadValuesAreRefusedInOneLineThatNamesThem) {
  const std::vector<Refused> cases = {
      {{"--bogus"}, "--bogus"},
      {{"extra"}, "extra"},
      {{"--steps", "-1"}, "--steps: '-1'"},
      {{"--steps", "0"}, "--steps: '0'"},
      {{"--steps", "1.5"}, "--steps: '1.5'"},
      {{"--steps", "99999999999999999999"}, "--steps"},
      {{"--steps", "5", "--tokens", "5"}, "--tokens"},
      {{"--tokens", "3X"}, "--tokens: '3X'"},
      {{"--seed", "-3"}, "--seed: '-3'"},
      {{"--method", "magic"}, "magic"},
      {{"--precision", "f16"}, "f16"},
      {{"--lr", "nan"}, "--lr: 'nan'"},
      {{"--lr", "0"}, "--lr: '0'"},
      {{"--lr"}, "--lr"},
      {{"--lr", "0.1", "--min-lr", "0.2"}, "--min-lr"},
      {{"--outer-momentum", "1"}, "--outer-momentum: '1'"},
      {{"--clip-pseudo-grad", "-1"}, "--clip-pseudo-grad"},
      {{"--hidden-size", "64", "--heads", "3"}, "--heads 3 does not divide --hidden-size 64"},
      {{"--hidden-size", "12", "--heads", "4"}, "heads of 3"},
      {{"--shard-size", "0"}, "--shard-size: '0'"},
      {{"--optimizer", "lion"}, "lion"},
      {{"--method", "ddp", "--outer-lr", "0.5"}, "--outer-lr has no effect with --method ddp"},
      {{"--method", "ddp", "--local_sgd_sync_interval=16"}, "--local-sgd-sync-interval has no"},
      {{"--method", "ddp", "--no-pseudo-gradnorm-reduce"}, "--pseudo-gradnorm-reduce has no"},
      {{"--method", "ddp", "--sync-prefetch", "1"}, "--sync-prefetch has no effect"},
      {{"--method", "ddp", "--save-dir", "d"}, "--save-dir has no effect with --method ddp"},
      {{"--save-dir", "d", "--save-every", "5", "--overlap-steps", "1", "--method", "a-edit"},
       "leave one out"},
      {{"--save-dir", "d", "--save-every", "5", "--method", "co2", "--checkpoint-kind", "portable"},
       "leave one out"},
      {{"--overlap-merge", "drop"}, "drop"},
      {{"--method", "acco", "--outer-lr", "1"}, "--outer-lr has no effect with --method acco"},
      {{"--method", "zero1", "--shard-size", "2"},
       "--shard-size has no effect with --method zero1"},
      {{"--method", "wp", "--shard-prefetch", "2"}, "--shard-prefetch has no effect"},
      {{"--method", "zero1", "--warmup-rounds", "2"},
       "--warmup-rounds has no effect with --method"},
      {{"--method", "ddp", "--max-microbatches", "2"}, "--max-microbatches has no effect"},
      {{"--method", "acco", "--max-microbatches", "2", "--gradient-accumulation-steps", "3"},
       "--max-microbatches 2 is less than --gradient-accumulation-steps 3"},
      {{"--method", "acco", "--wsam", "decoupled"}, "needs a second gradient on the way"},
      {{"--method", "dpu", "--wsam", "coupled", "--wsam-perturbation", "global"},
       "set --wsam-perturbation local"},
      {{"--method", "acco", "--shuffle-labels-every", "2"}, "which has no intervals"},
      {{"--method", "acco", "--steps-together"}, "--steps-together has no effect"},
      {{"--method", "acco", "--save-every", "2"}, "--save-every has no effect without --save-dir"},
      {{"--fragments", "0"}, "--fragments: '0'"},
      {{"--fragment-pattern", "zigzag"}, "zigzag"},
      {{"--overlap-mix", "1"}, "--overlap-mix: '1'"},
      {{"--save-every", "5"}, "--save-every has no effect without --save-dir"},
      {{"--save-dir", "d", "--save-every", "-1"}, "--save-every: '-1'"},
      {{"--no-full-state-dict"}, "--full-state-dict has no effect without --save-dir or --resume"},
      {{"--resume", "f", "--checkpoint-kind", "some"}, "some"},
      {{"--momentum", "0.9"}, "--momentum has no effect with --optimizer adamw"},
      {{"--optimizer", "sgd", "--beta2", "0.9"}, "--beta2 has no effect"},
      {{"--optimizer", "agd", "--eps", "1e-8"}, "--eps has no effect with --optimizer agd; set"},
      {{"--nesterov"}, "--nesterov has no effect with --optimizer adamw; set --optimizer sgd"},
      {{"--agd-win"}, "--agd-win has no effect with --optimizer adamw; set --optimizer agd"},
      {{"--optimizer", "agd", "--agd-delta", "-1"}, "--agd-delta: '-1'"},
      {{"--optimizer", "agd", "--agd-decay", "odd"}, "odd"},
      {{"--wsam", "sam"}, "sam"},
      {{"--wsam-rho", "0.1"}, "--wsam-rho has no effect with --wsam off"},
      {{"--wsam-adaptive"}, "--wsam-adaptive has no effect with --wsam off"},
      {{"--wsam", "coupled", "--wsam-gamma", "1"}, "--wsam-gamma: '1'"},
      {{"--wsam", "coupled", "--wsam-perturbation", "global", "--precision", "bf16"}, "is lost"},
      {{"--outer-optimizer", "none", "--outer-momentum", "0.5"}, "--outer-momentum has no effect"},
      {{"--task", "chess"}, "chess"},
      {{"--task", "digits", "--heads", "4"}, "--heads has no effect with --task digits; set"},
      {{"--task", "digits", "--seq-length", "8"}, "--seq-length has no effect with --task digits"},
      {{"--task", "digits", "--val-batches", "8"}, "--val-batches has no effect with --task"},
      {{"--task", "digits", "--sample", "8"}, "--sample has no effect with --task digits"},
      {{"--task", "digits", "--prompt", "A"}, "--prompt has no effect with --task digits"},
      {{"--task", "digits", "--sample-temperature", "1"}, "--sample-temperature has no effect"},
      {{"--task", "digits", "--text-parts", "2"}, "--text-parts has no effect with --task digits"},
      {{"--text-parts", "0"}, "--text-parts: '0'"},
      {{"--sharpness-rho", "0.1,0"}, "--sharpness-rho: '0'"},
      {{"--step-ms", "-1"}, "--step-ms: '-1'"},
      {{"--straggler", "some", "--straggler-ms", "5"}, "some"},
      {{"--straggler", "random"}, "--straggler random has no effect without a delay"},
      {{"--straggler", "random", "--straggler-ms", "0"}, "--straggler-ms: '0'"},
      {{"--straggler-ms", "5"}, "--straggler-ms has no effect without a straggler"},
      {{"--straggler", "random", "--straggler-ms", "5", "--straggler-replica", "1"},
       "--straggler-replica has no effect with --straggler random"},
      {{"--straggler-replica", "0"}, "--straggler-replica has no effect with --straggler none"},
      {{"--method", "ddp", "--shuffle-labels-every", "5"}, "--shuffle-labels-every has no effect"},
      {{"--shuffle-labels-every", "-5"}, "--shuffle-labels-every: '-5'"},
      {{"--shuffle-labels-replica", "0"}, "--shuffle-labels-replica has no effect without"},
      {{"--steps-together"}, "--steps-together has no effect with --method edit"},
      {{"--method", "a-edit", "--steps-together", "--resume", "f"}, "leave one out"},
      {{"--method", "a-edit", "--steps-together", "--overlap-steps", "1"}, "leave one out"},
  };
  for (const Refused& refused : cases) {
    try {
      Parse(refused.words);
      ADD_FAILURE() << refused.words[0] << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_THAT(error.what(), HasSubstr(refused.says));
      EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    }
  }
}

// A flag that has no effect and does no harm. The warning names the flag, the method if it matters,
// and what to do.
TEST(Flags, WithoutAnEffectAreWarnings) {
  const std::vector<Refused> cases = {
      {{"--shard-prefetch", "2"}, "--shard-prefetch has no effect with --shard-size 1"},
      {{"--method", "ddp", "--shard-prefetch", "1"}, "set --shard-size"},
      {{"--optimizer", "sgd", "--nesterov"}, "--nesterov has no effect with --momentum 0"},
      {{"--prompt", "A"}, "--prompt has no effect without a sample; set --sample"},
      {{"--sample-temperature", "1"}, "--sample-temperature has no effect without a sample"},
      {{"--resume", "f", "--full-state-dict"}, "--full-state-dict has no effect on --resume"},
      {{"--wire-rounding", "stochastic"}, "--wire-rounding has no effect with --wire-format f32"},
      // The value is the library's default. The library refuses any other value.
      {{"--method", "post-local-sgd", "--outer-momentum", "0.8"},
       "--outer-momentum has no effect with --method post-local-sgd"},
      {{"--method", "diloco", "--weight-softmax-temperature", "0"},
       "--weight-softmax-temperature has no effect with --method diloco"},
      {{"--newcomer-warmup", "0"}, "--newcomer-warmup has no effect with --method edit"},
      {{"--method", "co2", "--overlap-mix", "0.5"}, "--overlap-mix has no effect with --method"},
      {{"--late", "drop"}, "--late has no effect"},
  };
  for (const Refused& inert : cases) {
    const std::vector<std::string> warnings = Parse(inert.words).warnings;
    ASSERT_EQ(warnings.size(), 1u) << inert.says << ": " << testing::PrintToString(warnings);
    EXPECT_THAT(warnings[0], HasSubstr(inert.says));
    EXPECT_THAT(warnings[0], Not(HasSubstr("\n")));
  }
  EXPECT_THAT(
      Parse(
          {"--shard-size", "2",      "--shard-prefetch", "2",        "--sample",          "9",
           "--prompt",     "A",      "--wire-format",    "int4",     "--wire-rounding",   "nearest",
           "--on-loss",    "finish", "--admit",          "exchange", "--newcomer-warmup", "0",
           "--quorum",     "1",      "--late",           "drop"})
          .warnings,
      testing::IsEmpty());
  for (const char* method : {"ddp", "post-local-sgd", "diloco", "streaming-diloco", "co2", "edit",
                             "a-edit", "sparseloco", "zero1", "acco", "dpu", "wp"}) {
    EXPECT_THAT(Parse({"--method", method}).warnings, testing::IsEmpty()) << method;
  }
}

TEST(Flags, DataIsRequired) {
  EXPECT_THROW(ParseFlags({"--steps", "3"}), Error);
}

TEST(Flags, UnderscoresCountAsDashesInNamesOnly) {
  const Options options =
      Parse({"--local_sgd_sync_interval", "5", "--clip_pseudo_grad=7", "--pseudo_gradnorm_reduce",
             "--log", "my_file", "--summary=a_b.json"});
  EXPECT_EQ(options.edit.at("local_sgd_sync_interval"), 5);
  EXPECT_EQ(options.edit.at("clip_pseudo_grad"), 7.0);
  EXPECT_EQ(options.edit.at("pseudo_gradnorm_reduce"), 1);
  EXPECT_EQ(options.log, "my_file");
  EXPECT_EQ(options.summary, "a_b.json");
}

TEST(Flags, DefaultsAreNotTakenForFlagsThatWereGiven) {
  EXPECT_EQ(Parse({"--method", "ddp"}).method, "ddp");
  EXPECT_EQ(Parse({"--method", "ddp", "--optimizer", "sgd", "--momentum", "0.9"}).inner.momentum,
            0.9);
  EXPECT_EQ(Parse({"--method", "diloco", "--outer-lr", "0.5"}).edit.at("outer_lr"), 0.5);
  EXPECT_EQ(Parse({"--outer-optimizer", "none"}).edit.at("outer_optimizer"), 0);
}

TEST(Flags, OptimizersTakeTheirHyperParameters) {
  const InnerOptions agd = Parse({"--optimizer", "agd", "--beta1", "0.8", "--agd-delta", "1e-8",
                                  "--agd-decay", "fixed", "--agd-clip", "5", "--agd-amsgrad"})
                               .inner;
  EXPECT_EQ(agd.optimizer, "agd");
  EXPECT_EQ(agd.beta1, 0.8);
  EXPECT_EQ(agd.agd_delta, 1e-8);
  EXPECT_EQ(agd.agd_decay, "fixed");
  EXPECT_EQ(agd.agd_clip, 5.0);
  EXPECT_TRUE(agd.agd_amsgrad);
  EXPECT_FALSE(agd.agd_win);
  const WsamOptions wsam = Parse({"--wsam", "coupled", "--wsam-rho", "0.2", "--wsam-gamma", "0.5",
                                  "--wsam-adaptive", "--wsam-perturbation", "global"})
                               .wsam;
  EXPECT_EQ(wsam.form, "coupled");
  EXPECT_EQ(wsam.rho, 0.2);
  EXPECT_EQ(wsam.gamma, 0.5);
  EXPECT_TRUE(wsam.adaptive);
  EXPECT_EQ(wsam.perturbation, "global");
}

TEST(Flags, NamesOfTheMegatronIntegrationAreAccepted) {
  const GivenOptions edit =
      Parse({"--local-sgd-pseudo-gradnorm-reduce", "--local_sgd_weight_softmax_temperature", "2",
             "--local-sgd-clip-pseudo-grad", "3", "--local-sgd-pseudo-grad-reducer", "linear",
             "--local-sgd-pseudo-grad-normalize"})
          .edit;
  EXPECT_EQ(edit.at("pseudo_gradnorm_reduce"), 1);
  EXPECT_EQ(edit.at("weight_softmax_temperature"), 2.0);
  EXPECT_EQ(edit.at("clip_pseudo_grad"), 3.0);
  EXPECT_EQ(edit.at("reducer"), 1);
  EXPECT_EQ(edit.at("normalize"), 1);
}

TEST(Flags, UnsetIsNotTheSameAsOff) {
  EXPECT_EQ(Parse({}).edit.count("outer_nesterov"), 0u);
  EXPECT_EQ(Parse({"--no-outer-nesterov"}).edit.at("outer_nesterov"), 0);
  EXPECT_EQ(Parse({"--outer-nesterov"}).edit.at("outer_nesterov"), 1);
}

TEST(Flags, TokensTakeSuffixesAndRoundUpToSteps) {
  const Options options = Parse({"--tokens", "1K", "--batch-size", "3", "--seq-length", "32"});
  EXPECT_EQ(options.tokens, 1024);
  EXPECT_EQ(options.tokens_per_step(2), 192);
  EXPECT_EQ(options.total_steps(2), 6);
  EXPECT_EQ(Parse({}).total_steps(2), 1000);
  EXPECT_EQ(Parse({"--steps", "7"}).total_steps(2), 7);
}

TEST(Flags, SharpnessIsMeasuredAtSeveralPlaces) {
  EXPECT_EQ(Parse({"--sharpness-rho", "0.1,0.5"}).sharpness_rho, (std::vector<double>{0.1, 0.5}));
}

TEST(Flags, DigitsHaveNoHeadsAndCountImages) {
  const Options options = Parse({"--task", "digits", "--hidden-size", "10", "--layers", "3",
                                 "--batch-size", "16", "--gradient-accumulation-steps", "2"});
  EXPECT_EQ(options.tokens_per_step(3), 2 * 16 * 3);
}

TEST(Flags, HelpListsEveryFlagAndExitsWithZero) {
  try {
    ParseFlags({"--help"});
    ADD_FAILURE() << "no help";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 0);
    for (const char* flag : {"--method",
                             "--task",
                             "--data",
                             "--steps",
                             "--tokens",
                             "--seed",
                             "--shard-size",
                             "--hidden-size",
                             "--layers",
                             "--heads",
                             "--seq-length",
                             "--batch-size",
                             "--lr",
                             "--precision",
                             "--log",
                             "--summary",
                             "--local-sgd-sync-interval",
                             "--local-sgd-warmup-steps",
                             "--clip-pseudo-grad",
                             "--pseudo-gradnorm-reduce",
                             "--outer-lr",
                             "--outer-momentum",
                             "--outer-nesterov"}) {
      EXPECT_THAT(error.what(), HasSubstr(flag));
    }
  }
}

}  // namespace
}  // namespace trainer
