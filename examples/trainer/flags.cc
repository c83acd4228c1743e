#include "examples/trainer/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <utility>

#include "examples/trainer/api.h"
#include "examples/trainer/error.h"
#include "examples/trainer/flag_checks.h"
#include "examples/trainer/inert_flags.h"
#include "examples/trainer/presets.h"
#include <CLI/CLI.hpp>

namespace trainer {
namespace {

// Replaces CLI11's range checks, which print bounds up to 1e308 and let integers saturate.
CLI::Validator Real(double least, bool open = false) {
  const std::string bound = (open ? "> " : ">= ") + CLI::detail::to_string(least);
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        double value = 0.0;
        const bool number = CLI::detail::lexical_cast(text, value);
        if (number && std::isfinite(value) && (open ? value > least : value >= least)) {
          return "";
        }
        return "'" + text + "' is not a number " + bound;
      },
      bound);
}

CLI::Validator Whole(int64_t least, int64_t most = int64_t{1} << 50) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        int64_t value = 0;
        const char* end = text.data() + text.size();
        const auto parsed = std::from_chars(text.data(), end, value);
        if (parsed.ec == std::errc() && parsed.ptr == end && value >= least && value <= most) {
          return "";
        }
        return "'" + text + "' is not a whole number from " + std::to_string(least) + " to " +
               std::to_string(most);
      },
      ">= " + std::to_string(least));
}

CLI::Validator In(double least, double most, bool open_least, bool open_most) {
  const std::string bound = std::string("in ") + (open_least ? "(" : "[") +
                            CLI::detail::to_string(least) + ", " + CLI::detail::to_string(most) +
                            (open_most ? ")" : "]");
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        double value = 0.0;
        if (CLI::detail::lexical_cast(text, value) &&
            (open_least ? value > least : value >= least) &&
            (open_most ? value < most : value <= most)) {
          return "";
        }
        return "'" + text + "' is not " + bound;
      },
      bound);
}

CLI::Validator Fraction() {
  return In(0, 1, false, true);
}

// Rewrites "64K", "4M", "1G" (1024) as plain numbers.
CLI::Validator Suffix() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const std::string given = text;
        int64_t factor = 1;
        const size_t at = text.empty() ? std::string::npos : std::string("KMG").find(text.back());
        if (at != std::string::npos) {
          factor = int64_t{1} << (10 * (at + 1));
          text.pop_back();
        }
        int64_t value = 0;
        if (!CLI::detail::lexical_cast(text, value) || value < 1 ||
            value > (int64_t{1} << 50) / factor) {
          return "'" + given + "' is not a positive number (K, M, G: 1024)";
        }
        text = std::to_string(value * factor);
        return "";
      },
      "", "suffix");
}

std::vector<std::string> WithDashes(std::vector<std::string> words) {
  for (auto& word : words) {
    if (word.rfind("--", 0) == 0) {
      const size_t end = std::min(word.find('='), word.size());
      std::replace(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
    }
  }
  return words;
}

std::vector<std::string> MethodNames() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) {
    names.emplace_back(preset.name);
  }
  return names;
}

CLI::App* AddRun(CLI::App* app, Options* o) {
  auto* group = app->add_option_group("Run");
  group
      ->add_option(
          "--method", o->method,
          "training method. Replicas that exchange every few steps: edit, diloco, "
          "streaming-diloco, co2, sparseloco, post-local-sgd; by time: a-edit; waiting for "
          "nobody: decoupled-diloco. Gradients averaged at every step: ddp; with a sharded "
          "optimizer: zero1. Gradients sent "
          "during the next computation: acco, dpu, wp")
      ->capture_default_str()
      ->check(CLI::IsMember(MethodNames()));
  group
      ->add_option("--task", o->task,
                   "what is trained. text: a language model; digits: a dense network on images")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "digits"}));
  group
      ->add_option("--data", o->data,
                   "training data, plain or gzip. text: any file; digits: a file written by "
                   "examples/digits.py")
      ->required();
  auto* steps = group->add_option("--steps", o->steps, "number of optimizer steps (default 1000)")
                    ->check(Whole(1));
  group
      ->add_option(
          "--tokens", o->tokens,
          "number of tokens (digits: images) of all ranks, instead of --steps; rounded up to "
          "whole steps")
      ->transform(Suffix())
      ->excludes(steps);
  group->add_flag(
      "--steps-together", o->steps_together,
      "a-edit: --steps is the mean over the replicas, so fast replicas make more steps");
  group->add_option("--seed", o->seed, "seed of the initial weights and of the batches")
      ->capture_default_str()
      ->check(Whole(0));
  group->add_option("--shard-size", o->shard_size, "number of ranks that share one replica (M)")
      ->capture_default_str()
      ->check(Whole(1, 1 << 20));
  group->add_option("--shard-prefetch", o->shard_prefetch, "number of layers gathered ahead of use")
      ->capture_default_str()
      ->check(Whole(0, 1000));
  group
      ->add_option("--precision", o->precision,
                   "type of parameters and gradients; with bf16, the master parameters are f32")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16"}));
  return group;
}

CLI::App* AddModel(CLI::App* app, Options* o) {
  auto* group = app->add_option_group("Model");
  group->add_option("--hidden-size", o->model.hidden, "width of the model")
      ->capture_default_str()
      ->check(Whole(2, 65536));
  group
      ->add_option("--layers", o->model.layers,
                   "number of decoder blocks; digits: of hidden layers")
      ->capture_default_str()
      ->check(Whole(1, 1000));
  group->add_option("--heads", o->model.heads, "number of attention heads")
      ->capture_default_str()
      ->check(Whole(1, 4096));
  group->add_option("--seq-length", o->model.length, "length of a sequence, in bytes")
      ->capture_default_str()
      ->check(Whole(1, 65536));
  group
      ->add_option("--batch-size", o->batch_size,
                   "number of sequences (digits: images) per rank and micro-batch")
      ->capture_default_str()
      ->check(Whole(1, 65536));
  group
      ->add_option("--gradient-accumulation-steps", o->gradient_accumulation_steps,
                   "number of micro-batches per step")
      ->capture_default_str()
      ->check(Whole(1));
  return group;
}

CLI::App* AddInner(CLI::App* app, InnerOptions* o) {
  auto* group = app->add_option_group("Inner optimizer");
  group->add_option("--optimizer", o->optimizer, "optimizer of each replica: adamw, sgd or agd")
      ->capture_default_str()
      ->check(CLI::IsMember({"adamw", "sgd", "agd"}));
  group->add_option("--lr", o->lr, "highest learning rate")
      ->capture_default_str()
      ->check(Real(0.0, true));
  group
      ->add_option("--min-lr", o->min_lr,
                   "learning rate at the end of the cosine (default lr / 10)")
      ->check(Real(0.0));
  group
      ->add_option("--lr-warmup-steps", o->lr_warmup_steps,
                   "number of steps in which the learning rate rises linearly (default steps / 20)")
      ->check(Whole(0));
  group->add_option("--beta1", o->beta1, "adamw, agd: decay rate of the first moment")
      ->capture_default_str()
      ->check(Fraction());
  group->add_option("--beta2", o->beta2, "adamw, agd: decay rate of the second moment")
      ->capture_default_str()
      ->check(Fraction());
  group->add_option("--eps", o->eps, "adamw: term added to the denominator")
      ->capture_default_str()
      ->check(Real(0.0, true));
  group->add_option("--momentum", o->momentum, "sgd: momentum")
      ->capture_default_str()
      ->check(Fraction());
  group->add_flag("--nesterov", o->nesterov, "sgd: use Nesterov's momentum");
  group
      ->add_option("--agd-delta", o->agd_delta,
                   "agd: threshold of the second moment's root; below it a step is that of SGD")
      ->capture_default_str()
      ->check(Real(0.0));
  group
      ->add_option("--agd-decay", o->agd_decay,
                   "agd: kind of weight decay: decoupled, fixed or coupled")
      ->capture_default_str()
      ->check(CLI::IsMember({"decoupled", "fixed", "coupled"}));
  group
      ->add_option("--agd-clip", o->agd_clip,
                   "agd: largest step of an element, divided by lr; 0: no limit")
      ->capture_default_str()
      ->check(Real(0.0));
  group->add_flag("--agd-amsgrad", o->agd_amsgrad, "agd: use the largest second moment so far");
  group->add_flag("--agd-win", o->agd_win,
                  "agd: apply the weight decay within an accelerated step");
  group->add_option("--weight-decay", o->weight_decay, "weight decay of every parameter")
      ->capture_default_str()
      ->check(Real(0.0));
  group->add_option("--grad-clip", o->grad_clip, "largest gradient norm of a replica; 0: no limit")
      ->capture_default_str()
      ->check(Real(0.0));
  return group;
}

CLI::App* AddWsam(CLI::App* app, WsamOptions* o) {
  auto* group = app->add_option_group("Sharpness-aware steps");
  group
      ->add_option("--wsam", o->form,
                   "sharpness-aware steps, which compute two gradients: off, coupled or decoupled")
      ->capture_default_str()
      ->check(CLI::IsMember({"off", "coupled", "decoupled"}));
  group->add_option("--wsam-rho", o->rho, "distance between the points of the two gradients (rho)")
      ->capture_default_str()
      ->check(Real(0.0));
  group
      ->add_option("--wsam-gamma", o->gamma,
                   "weight of the sharpness (gamma); with 0.5 the method is SAM")
      ->capture_default_str()
      ->check(Fraction());
  group->add_option("--wsam-eps", o->eps, "term added to the norm of the first gradient")
      ->capture_default_str()
      ->check(Real(0.0, true));
  group->add_flag("--wsam-adaptive", o->adaptive,
                  "scale the distance in each element by its weight");
  group
      ->add_option("--wsam-perturbation", o->perturbation,
                   "gradient that gives the direction. local: the rank's own; global: the average")
      ->capture_default_str()
      ->check(CLI::IsMember({"local", "global"}));
  return group;
}

// Options of EDiT and of a channel whose flags have other names. An empty name means that the
// option has no flag of its own: a flag for all methods sets the option, or no flag sets it. The
// longer names are those of the Megatron integration.
constexpr std::pair<const char*, const char*> kFlags[] = {
    {"use_async", ""},
    {"gradient_accumulation_steps", ""},
    {"seed", ""},
    {"compat", ""},
    {"timeout_ns", ""},
    {"method", ""},
    {"min_microbatches", ""},
    {"clip_norm", ""},
    {"lr", ""},
    {"min_lr", ""},
    {"schedule_warmup", ""},
    {"schedule_total", ""},
    {"schedule_unit", ""},
    {"limit_unit", ""},
    {"limit", ""},
    {"prefetch", "--sync-prefetch"},
    {"reducer", "--reducer,--local-sgd-pseudo-grad-reducer"},
    {"pseudo_gradnorm_reduce", "--pseudo-gradnorm-reduce,--local-sgd-pseudo-gradnorm-reduce"},
    {"normalize", "--normalize,--local-sgd-pseudo-grad-normalize"},
    {"weight_softmax_temperature",
     "--weight-softmax-temperature,--local-sgd-weight-softmax-temperature"},
    {"clip_pseudo_grad", "--clip-pseudo-grad,--local-sgd-clip-pseudo-grad"},
    {"skip_anomaly", "--skip-anomaly,--local-sgd-skip-anomaly"},
    {"ewma_alpha", "--ewma-alpha,--local-sgd-ewma-alpha"},
    {"ewma_warmup_steps", "--ewma-warmup-steps,--local-sgd-ewma-warmup-steps"},
    {"ewma_threshold", "--ewma-threshold,--local-sgd-ewma-threshold"},
};

std::string FlagsOf(const entrain_option_t& option) {
  std::string dashed = option.name;
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  std::string flags = "--" + dashed;
  for (const auto& [name, others] : kFlags) {
    flags = std::string(option.name) == name ? others : flags;
  }
  return option.type == ENTRAIN_OPTION_SWITCH && !flags.empty() ? flags + ",!--no-" + dashed
                                                                : flags;
}

std::vector<std::string> ChoicesOf(const entrain_option_t& option) {
  return CLI::detail::split(option.choices, ',');
}

// Accepts all choices but "callback", because a command line cannot give a function.
CLI::Validator IsOneOf(std::vector<std::string> choices) {
  choices.erase(std::remove(choices.begin(), choices.end(), "callback"), choices.end());
  return CLI::IsMember(choices);
}

std::string ValueText(const entrain_option_t& option, double value) {
  if (option.type == ENTRAIN_OPTION_CHOICE) {
    return ChoicesOf(option)[static_cast<size_t>(value)];
  }
  return option.type == ENTRAIN_OPTION_SWITCH ? (value != 0 ? "yes" : "no")
                                              : CLI::detail::to_string(value);
}

constexpr int kLayersOfPresets = 7;

// Returns the options of the library's preset, for a model with kLayersOfPresets layers.
const entrain_edit_config_t& ConfigOfPreset(const std::string& name) {
  static std::map<std::string, entrain_edit_config_t> configs;
  const auto [found, absent] = configs.try_emplace(name);
  if (absent) {
    entrain_edit_config_init(&found->second);
    Check(entrain_edit_config_preset(&found->second, name.c_str(), kLayersOfPresets, nullptr, 0));
  }
  return found->second;
}

// Returns the value of an option in the preset `name`, as a text; empty: it is the default, or the
// option is one of a gradient channel.
std::string PresetText(const entrain_option_t& option, const char* name) {
  static const DescribedOptions options = OptionsOfEdit();
  const std::string option_name = option.name;
  const auto found = std::find_if(options.begin(), options.end(),
                                  [&](const auto& one) { return one.name == option_name; });
  if (found == options.end()) {
    return "";
  }
  const double value = ValueIn(ConfigOfPreset(name), *found);
  return value == option.default_value                             ? ""
         : option_name == "fragments" && value == kLayersOfPresets ? "a layer each, 8 at most"
         : option_name == "overlap_steps" && value > 1             ? "H"
                                                                   : ValueText(option, value);
}

// Returns a text, for example "(default 0.7; co2 1)".
std::string DefaultsOf(const entrain_option_t& option) {
  std::string text = " (default " + ValueText(option, option.default_value);
  std::string last;
  for (const Preset& preset : kPresets) {
    const std::string value =
        preset.engine == Engine::kReplicas ? PresetText(option, preset.name) : "";
    if (!value.empty()) {
      text.resize(value == last ? text.size() - value.size() - 1 : text.size());
      text += (value == last ? ", " : "; ") + std::string(preset.name) + " " + value;
      last = value;
    }
  }
  return text + ")";
}

CLI::Validator RangeOf(const entrain_option_t& option) {
  const bool open_least = (option.open & 1) != 0, open_most = (option.open & 2) != 0;
  if (option.type != ENTRAIN_OPTION_F64) {
    const double most = option.type == ENTRAIN_OPTION_I32 ? std::numeric_limits<int32_t>::max()
                                                          : static_cast<double>(int64_t{1} << 50);
    return Whole(static_cast<int64_t>(option.least),
                 static_cast<int64_t>(std::min(option.most, most)));
  }
  return std::isfinite(option.most) ? In(option.least, option.most, open_least, open_most)
                                    : Real(option.least, open_least);
}

void AddOption(CLI::App* group, const entrain_option_t& option, GivenOptions* given) {
  const std::string flags = FlagsOf(option), help = option.help + DefaultsOf(option);
  const std::string name = option.name;
  if (flags.empty()) {
    return;
  }
  if (option.type == ENTRAIN_OPTION_SWITCH) {
    group->add_flag_function(
        flags, [=](int64_t count) { (*given)[name] = count > 0 ? 1 : 0; }, help);
  } else if (option.type == ENTRAIN_OPTION_CHOICE) {
    const std::vector<std::string> choices = ChoicesOf(option);
    const auto take = [=](const std::string& text) {
      const auto at = std::find(choices.begin(), choices.end(), text);
      (*given)[name] = static_cast<double>(at - choices.begin());
    };
    group->add_option_function<std::string>(flags, take, help)->check(IsOneOf(choices));
  } else {
    group
        ->add_option_function<double>(
            flags, [=](double value) { (*given)[name] = value; }, help)
        ->type_name(option.type == ENTRAIN_OPTION_F64 ? "FLOAT" : "INT")
        ->check(RangeOf(option));
  }
}

CLI::App* AddDescribed(CLI::App* app, const char* title, const DescribedOptions& described,
                       GivenOptions* given) {
  auto* group = app->add_option_group(title);
  for (const entrain_option_t& option : described) {
    AddOption(group, option, given);
  }
  return group;
}

// With `shared`, returns the options of `all` that `others` have too. Otherwise returns the options
// that `others` do not have.
DescribedOptions Shared(const DescribedOptions& all, const DescribedOptions& others, bool shared) {
  DescribedOptions some;
  for (const entrain_option_t& option : all) {
    const bool found = std::any_of(
        others.begin(), others.end(),
        [&](const entrain_option_t& other) { return std::string(option.name) == other.name; });
    if (found == shared) {
      some.push_back(option);
    }
  }
  return some;
}

CLI::App* AddConditions(CLI::App* app, ConditionOptions* o) {
  auto* group = app->add_option_group("Emulated conditions");
  group
      ->add_option(
          "--step-ms", o->step_ms,
          "least time of a step in milliseconds, without the wait for other replicas; 0: none")
      ->capture_default_str()
      ->check(Real(0.0));
  group
      ->add_option(
          "--straggler", o->straggler,
          "slow replica: none, random (another one in each step) or fixed (always the same)")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "random", "fixed"}));
  group
      ->add_option("--straggler-ms", o->straggler_ms,
                   "time that the slow replica sleeps in a step, in milliseconds")
      ->check(Real(0.0, true));
  group
      ->add_option("--straggler-replica", o->straggler_replica,
                   "number of the slow replica with --straggler fixed (default 0)")
      ->check(Whole(0, 1 << 20));
  group
      ->add_option("--shuffle-labels-every", o->shuffle_labels_every,
                   "a replica learns from shuffled labels in one of this many intervals between "
                   "exchanges; 0: never")
      ->capture_default_str()
      ->check(Whole(0));
  group
      ->add_option("--shuffle-labels-replica", o->shuffle_labels_replica,
                   "number of the replica with shuffled labels (default 0)")
      ->check(Whole(0, 1 << 20));
  group
      ->add_option("--text-parts", o->text_parts,
                   "text: number of equal parts of the training text; replica r learns only from "
                   "part r modulo this number. 1: all learn from the whole text")
      ->capture_default_str()
      ->check(Whole(1));
  return group;
}

CLI::App* AddOutput(CLI::App* app, Options* o) {
  auto* group = app->add_option_group("Results");
  group->add_option("--log", o->log, "file for one JSON record per step and replica");
  group->add_option("--summary", o->summary, "file for one JSON object at the end");
  group
      ->add_option("--eval-interval", o->eval_interval,
                   "number of steps between evaluations; 0: only at the end")
      ->capture_default_str()
      ->check(Whole(0));
  group
      ->add_option("--val-batches", o->val_batches,
                   "text: number of batches in the validation subset; digits: all are used")
      ->capture_default_str()
      ->check(Whole(1));
  group
      ->add_option("--sharpness-rho", o->sharpness_rho,
                   "distances along the gradient at which the rise of the loss is measured after "
                   "training: R,R,...")
      ->delimiter(',')
      ->check(Real(0.0, true));
  group->add_option("--sample", o->sample, "number of bytes of text to write after training")
      ->capture_default_str()
      ->check(Whole(0));
  group->add_option("--prompt", o->prompt,
                    "text that the sample continues (default: validation text)");
  group->add_option("--sample-temperature", o->sample_temperature, "temperature of the sample")
      ->capture_default_str()
      ->check(Real(0.0, true));
  return group;
}

CLI::App* AddCheckpoints(CLI::App* app, Options* o) {
  auto* group = app->add_option_group("Checkpoints");
  group->add_option("--save-dir", o->save_dir,
                    "directory for checkpoints, which are saved at exchanges and at the end");
  group
      ->add_option(
          "--save-every", o->save_every,
          "N: the first exchange from each multiple of N steps on saves a checkpoint; 0: only at "
          "the end")
      ->capture_default_str()
      ->check(Whole(0));
  group
      ->add_option("--keep", o->keep,
                   "number of newest checkpoints that stay in --save-dir; 0: all")
      ->capture_default_str()
      ->check(Whole(0));
  group
      ->add_option("--failed-saves", o->failed_saves,
                   "what a save that fails on all ranks (a full disk) does to the run: end it, or "
                   "let it continue, and count the save in the summary")
      ->capture_default_str()
      ->check(CLI::IsMember({"end", "continue"}));
  group->add_option("--resume", o->resume,
                    "checkpoint from which to continue (DIR/step-N.ckpt), or latest: the newest "
                    "one in --save-dir that is whole, and the beginning if there is none. latest "
                    "is the default under launchers that restart a job: torchrun, Kubernetes, a "
                    "requeued Slurm job");
  group->add_flag("--overwrite", o->overwrite,
                  "begin anew, although --save-dir has checkpoints of an earlier run");
  group
      ->add_option(
          "--checkpoint-kind", o->checkpoint_kind,
          "kind of checkpoint. exact: the same ranks continue with the same bits; portable: "
          "any number of ranks may continue")
      ->capture_default_str()
      ->check(CLI::IsMember({"portable", "exact"}));
  group->add_flag("--full-state-dict,!--no-full-state-dict", o->full_state_dict,
                  "save one file (default), or one file per rank");
  group->add_flag("--rank0-only,!--no-rank0-only", o->rank0_only,
                  "rank 0 reads the files for all ranks (default), or each rank reads them itself");
  return group;
}

std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

int64_t Options::total_steps(int ranks) const {
  if (tokens > 0) {
    const int64_t step = tokens_per_step(ranks);
    return (tokens + step - 1) / step;
  }
  return steps > 0 ? steps : 1000;
}

bool Options::by_channel() const {
  return PresetOf(method).engine == Engine::kChannel;
}

int64_t Options::tokens_per_step(int ranks) const {
  const int rounds = by_channel() && PresetOf(method).acco_method == ENTRAIN_ACCO ? 2 : 1;
  return rounds * gradient_accumulation_steps * tokens_per_microbatch() * ranks;
}

Options ParseFlags(std::vector<std::string> words) {
  Options options;
  CLI::App app("Trains a small model over Entrain: a byte-level language model, or digits.",
               "entrain-train");
  app.get_formatter()->column_width(42);
  app.set_version_flag("--version", "entrain-train " ENTRAIN_PROGRAM_VERSION,
                       "Print the version and exit");
  FlagGroups groups;
  groups.run = AddRun(&app, &options);
  groups.model = AddModel(&app, &options);
  groups.inner = AddInner(&app, &options.inner);
  groups.wsam = AddWsam(&app, &options.wsam);
  const DescribedOptions edit = OptionsOfEdit(), channel = OptionsOfChannel();
  GivenOptions both;
  groups.both = AddDescribed(&app, "All methods but ddp", Shared(edit, channel, true), &both);
  groups.edit = AddDescribed(&app, "EDiT, DiLoCo, Post Local SGD", Shared(edit, channel, false),
                             &options.edit);
  groups.channel = AddDescribed(&app, "Gradient channel: acco, dpu, wp",
                                Shared(channel, edit, false), &options.channel);
  groups.checkpoints = AddCheckpoints(&app, &options);
  groups.conditions = AddConditions(&app, &options.conditions);
  groups.results = AddOutput(&app, &options);
  words = WithDashes(std::move(words));
  std::reverse(words.begin(), words.end());  // CLI11 takes its arguments from the back
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    throw Error(app.help(), 0);
  } catch (const CLI::CallForVersion& version) {
    throw Error(version.what(), 0);
  } catch (const CLI::ParseError& error) {
    throw Error(OneLine(error.what()) + " (--help lists the flags)", kUsageExit);
  }
  (options.by_channel() ? options.channel : options.edit).insert(both.begin(), both.end());
  CheckFlags(options, groups);
  options.warnings = WarningsOf(options, groups);
  return options;
}

}  // namespace trainer
