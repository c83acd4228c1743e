#include "examples/trainer/flag_checks.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "examples/trainer/error.h"
#include "examples/trainer/presets.h"
#include <CLI/CLI.hpp>

namespace trainer {
namespace {

[[noreturn]] void Refuse(const std::string& flag, const std::string& why) {
  throw Error(flag + " has no effect " + why, kUsageExit);
}

// Flags for language models only. --val-batches is such a flag, because the digits task evaluates
// all images.
const std::set<std::string> kOfText = {"--heads",     "--seq-length", "--val-batches",
                                       "--sample",    "--prompt",     "--sample-temperature",
                                       "--text-parts"};

void CheckHeads(const ModelConfig& model) {
  const auto text = [](int64_t value) { return std::to_string(value); };
  if (model.hidden % model.heads != 0) {
    throw Error(
        "--heads " + text(model.heads) + " does not divide --hidden-size " + text(model.hidden),
        kUsageExit);
  }
  const int head_dim = model.hidden / model.heads;
  if (head_dim % 2 != 0) {
    throw Error("--hidden-size " + text(model.hidden) + " / --heads " + text(model.heads) +
                    " gives heads of " + text(head_dim) +
                    ", which rotary positions need to be even",
                kUsageExit);
  }
}

void CheckTogether(const Options& o, const FlagGroups& groups) {
  if (o.task == "text") {
    CheckHeads(o.model);
  } else {
    for (const CLI::App* group : {groups.model, groups.conditions, groups.results}) {
      for (const CLI::Option* option : group->get_options()) {
        const std::string name = option->get_name();
        if (option->count() > 0 && kOfText.count(name) > 0) {
          Refuse(name, "with --task " + o.task + "; set --task text, or leave it out");
        }
      }
    }
  }
  if (o.inner.min_lr > o.inner.lr) {
    throw Error("--min-lr is above --lr", kUsageExit);
  }
}

void RefuseInertConditions(const Options& options, const CLI::App* group) {
  const ConditionOptions& o = options.conditions;
  const auto given = [group](const char* flag) { return group->get_option(flag)->count() > 0; };
  if (given("--straggler-ms") && o.straggler == "none") {
    Refuse("--straggler-ms", "without a straggler; set --straggler random or fixed");
  }
  if (!given("--straggler-ms") && o.straggler != "none") {
    Refuse("--straggler " + o.straggler, "without a delay; set --straggler-ms");
  }
  if (given("--straggler-replica") && o.straggler != "fixed") {
    Refuse("--straggler-replica", "with --straggler " + o.straggler + "; set --straggler fixed");
  }
  if (o.shuffle_labels_every > 0 && PresetOf(options.method).engine != Engine::kReplicas) {
    Refuse("--shuffle-labels-every",
           "with --method " + options.method + ", which has no intervals between exchanges");
  }
  if (given("--shuffle-labels-replica") && o.shuffle_labels_every == 0) {
    Refuse("--shuffle-labels-replica", "without intervals; set --shuffle-labels-every");
  }
}

void RefuseInertOptimizer(const Options& o, const FlagGroups& groups) {
  const auto only = [&](std::vector<const char*> flags, std::vector<std::string> with) {
    const bool takes = std::find(with.begin(), with.end(), o.inner.optimizer) != with.end();
    for (const char* flag : flags) {
      if (!takes && groups.inner->get_option(flag)->count() > 0) {
        Refuse(flag, "with --optimizer " + o.inner.optimizer + "; set --optimizer " + with[0] +
                         ", or leave it out");
      }
    }
  };
  only({"--beta1", "--beta2"}, {"adamw", "agd"});
  only({"--eps"}, {"adamw"});
  only({"--momentum", "--nesterov"}, {"sgd"});
  only({"--agd-delta", "--agd-decay", "--agd-clip", "--agd-amsgrad", "--agd-win"}, {"agd"});
  if (o.wsam.form == "off") {
    for (const CLI::Option* option : groups.wsam->get_options()) {
      if (option->get_name() != "--wsam" && option->count() > 0) {
        Refuse(option->get_name(), "with --wsam off; set --wsam decoupled, or leave it out");
      }
    }
  } else if (o.wsam.perturbation == "global" && o.precision == "bf16") {
    throw Error(
        "--wsam-perturbation global moves the masters, and most of a step of --wsam-rho is lost "
        "when they are rounded for --precision bf16; set --wsam-perturbation local",
        kUsageExit);
  }
}

void RefuseGroup(const CLI::App* group, const Options& o, const std::string& methods) {
  for (const CLI::Option* option : group->get_options()) {
    if (option->count() > 0) {
      Refuse(option->get_name(),
             "with --method " + o.method + "; set --method " + methods + ", or leave it out");
    }
  }
}

void CheckChannel(const Options& o, const FlagGroups& groups) {
  if (!o.by_channel() || o.method == "zero1") {
    RefuseGroup(groups.channel, o, "acco, dpu or wp");
  }
  if (!o.by_channel()) {
    return;
  }
  for (const char* flag : {"--shard-size", "--shard-prefetch"}) {
    if (groups.run->get_option(flag)->count() > 0) {
      Refuse(flag, "with --method " + o.method +
                       ", where every rank has all parameters; set --method edit, a-edit or "
                       "diloco, or leave it out");
    }
  }
  const auto given = o.channel.find("max_microbatches");
  const int64_t most = given == o.channel.end() ? 0 : static_cast<int64_t>(given->second);
  const int64_t least = o.gradient_accumulation_steps;
  if (most > 0 && most < least) {
    throw Error("--max-microbatches " + std::to_string(most) +
                    " is less than --gradient-accumulation-steps " + std::to_string(least) +
                    ", which is the least of a round",
                kUsageExit);
  }
  if (o.wsam.form == "decoupled") {
    throw Error("--wsam decoupled needs a second gradient on the way, which --method " + o.method +
                    " does not send; set --wsam coupled",
                kUsageExit);
  }
  if (o.wsam.form == "coupled" && o.wsam.perturbation == "global") {
    throw Error(
        "--wsam-perturbation global needs the gradient of all ranks before the second one "
        "is computed, and with --method " +
            o.method + " it is on its way; set --wsam-perturbation local",
        kUsageExit);
  }
}

void RefuseInert(const Options& o, const FlagGroups& groups) {
  const Engine engine = PresetOf(o.method).engine;
  if (engine != Engine::kReplicas) {
    RefuseGroup(groups.edit, o, "edit, a-edit or diloco");
  }
  if (engine == Engine::kEveryStep) {
    RefuseGroup(groups.both, o, "edit, a-edit, diloco or acco");
    RefuseGroup(groups.checkpoints, o, "edit, a-edit, diloco or zero1");
  }
  const entrain_edit_config_t config = ConfigOf(o, o.model.layers);
  const bool by_time = config.use_async != 0;
  const bool closes_early = config.quorum > 0 || config.round_deadline > 0;
  // Then a save or an evaluation asks for an exchange of all replicas.
  const bool decoupled = closes_early && config.overlap_steps > 0;
  if (o.save_every > 0 && config.overlap_steps > 0 && !decoupled &&
      (by_time || o.checkpoint_kind == "portable")) {
    throw Error(
        "--save-every needs exchanges that are over when a step begins, which --overlap-steps "
        "delays, but for --checkpoint-kind exact and methods that go by steps; leave one out "
        "(--save-dir saves at the end)",
        kUsageExit);
  }
  if (o.admits() && config.overlap_steps > 0 && !decoupled) {
    throw Error(
        "--admit needs exchanges that are over when a step begins, which --overlap-steps delays; "
        "leave one out",
        kUsageExit);
  }
  if (o.overwrite && !o.resume.empty()) {
    Refuse("--overwrite", "with --resume, which continues; leave one out");
  }
  if (o.save_dir.empty()) {
    if (o.save_every > 0) {
      Refuse("--save-every", "without --save-dir; set both");
    }
    for (const char* flag : {"--keep", "--failed-saves", "--overwrite"}) {
      if (groups.checkpoints->get_option(flag)->count() > 0) {
        Refuse(flag, "without --save-dir; set both");
      }
    }
    if (o.resume == "latest") {
      Refuse("--resume latest", "without --save-dir; set both");
    }
    for (const char* flag : {"--checkpoint-kind", "--full-state-dict", "--rank0-only"}) {
      if (o.resume.empty() && groups.checkpoints->get_option(flag)->count() > 0) {
        Refuse(flag, "without --save-dir or --resume; set one, or leave it out");
      }
    }
  }
  if (by_time && o.eval_interval > 0) {
    throw Error(
        "--eval-interval makes replicas wait for each other, which --method a-edit is "
        "there to avoid; leave it out",
        kUsageExit);
  }
  if (o.steps_together && !by_time) {
    Refuse("--steps-together",
           "with --method " + o.method + ", whose replicas make the same steps");
  }
  if (o.steps_together && (!o.resume.empty() || config.overlap_steps > 0)) {
    throw Error(
        std::string("--steps-together does not go with ") +
            (o.resume.empty() ? "--overlap-steps, behind which ranks learn of a meeting at steps "
                                "of their own"
                              : "--resume, since it counts the steps of one run") +
            "; leave one out",
        kUsageExit);
  }
  if (by_time && groups.edit->get_option("--local-sgd-sync-interval")->count() > 0) {
    Refuse("--local-sgd-sync-interval", "with --method a-edit; set --local-sgd-sync-time");
  }
  const bool none =
      o.edit.count("outer_optimizer") > 0 && config.outer_optimizer == ENTRAIN_OUTER_NONE;
  for (const char* flag : {"--outer-lr", "--outer-momentum"}) {
    if (none && groups.edit->get_option(flag)->count() > 0) {
      Refuse(flag, "with --outer-optimizer none; set --outer-optimizer sgd, or leave it out");
    }
  }
}

}  // namespace

void CheckFlags(const Options& options, const FlagGroups& groups) {
  CheckTogether(options, groups);
  CheckChannel(options, groups);
  RefuseInert(options, groups);
  RefuseInertOptimizer(options, groups);
  RefuseInertConditions(options, groups.conditions);
}

}  // namespace trainer
