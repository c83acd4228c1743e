// The options of EDiT that each method makes of a command line, compared with presets.txt. To write
// this file again: UPDATE_PRESETS=1 trainer_flags_test.
#include "examples/trainer/presets.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace trainer {
namespace {

// Returns the options that differ from the library's defaults.
std::string Dump(const entrain_edit_config_t& config) {
  std::ostringstream out;
  for (int32_t index = 0; index < entrain_option_count(ENTRAIN_METHOD_EDIT); ++index) {
    entrain_option_t option;
    entrain_option_init(&option);
    EXPECT_EQ(entrain_option(ENTRAIN_METHOD_EDIT, index, &option), ENTRAIN_OK);
    const double value = ValueIn(config, option);
    if (value != option.default_value) {
      out << ' ' << option.name << '=' << value;
    }
  }
  return out.str();
}

const char* const kCommandLines[] = {
    "",
    "--layers 3 --gradient-accumulation-steps 4 --local-sgd-warmup-steps 5 --sync-prefetch 2",
    "--local-sgd-sync-interval 7 --is-debug",
    "--outer-optimizer none --overlap-steps 0 --wire-format f32",
    "--outer-optimizer adamw --outer-beta1 0.5 --outer-beta2 0.75 --outer-eps 1e-6",
    "--outer-optimizer lion --outer-lr 0.01 --outer-beta2 0.99",
    "--outer-lr 0.25 --outer-momentum 0 --outer-weight-decay 0.125",
    "--outer-nesterov --overlap-steps 2",
    "--no-outer-nesterov --no-skip-anomaly --clip-pseudo-grad 0 --no-pseudo-gradnorm-reduce",
    "--reducer none --overlap-merge add --no-staleness-penalty --outer-momentum-clip 3",
    "--reducer gta --consensus-method count --sparsification-method magnitude "
    "--density 0.25 --error-feedback --wire-format bf16 --wire-rounding stochastic",
    "--reducer linear --no-normalize --weight-softmax-temperature 2 --ewma-alpha 0.5 "
    "--ewma-warmup-steps 9 --ewma-threshold 4 --wire-format int8 --wire-block 64",
    "--fragments 1 --overlap-mix 0.25",
    "--fragments 4 --fragment-pattern sequential --staleness-penalty --overlap-merge mix",
    "--local-sgd-sync-time 2 --min-total-global-steps 3 --use-step-weight "
    "--step-weight-ratio 0.25",
};

std::string Configs() {
  std::ostringstream out;
  for (const char* const method : {"post-local-sgd", "diloco", "streaming-diloco",
                                   "decoupled-diloco", "co2", "edit", "a-edit", "sparseloco"}) {
    for (const std::string line : kCommandLines) {
      if (std::string(method) == "a-edit" && line.rfind("--local-sgd-sync-interval", 0) == 0) {
        continue;  // refused
      }
      std::istringstream in("--data text --method " + std::string(method) + " " + line);
      std::vector<std::string> words;
      for (std::string word; in >> word;) {
        words.push_back(word);
      }
      const Options options = ParseFlags(words);
      out << method << (line.empty() ? "" : " ") << line << "\n "
          << Dump(ConfigOf(options, options.model.layers)) << '\n';
    }
  }
  return out.str();
}

TEST(Presets, GiveEachMethodItsOptions) {
  const std::string made = Configs();
  if (std::getenv("UPDATE_PRESETS") != nullptr) {
    std::ofstream(PRESETS) << made;
  }
  std::ostringstream kept;
  kept << std::ifstream(PRESETS).rdbuf();
  EXPECT_EQ(made, kept.str());
}

}  // namespace
}  // namespace trainer
