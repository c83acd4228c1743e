#include "examples/trainer/checkpoint_names.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

#include "examples/trainer/error.h"

namespace trainer {

entrain_checkpoint_config_t CheckpointConfig(const Options& options) {
  entrain_checkpoint_config_t config;
  entrain_checkpoint_config_init(&config);
  config.kind =
      options.checkpoint_kind == "exact" ? ENTRAIN_CHECKPOINT_EXACT : ENTRAIN_CHECKPOINT_PORTABLE;
  config.full_state_dict = options.full_state_dict ? 1 : 0;
  config.rank0_only = options.rank0_only ? 1 : 0;
  config.overwrite = options.overwrite ? 1 : 0;
  return config;
}

CheckpointPath::CheckpointPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  directory = slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  name = slash == std::string::npos ? path : path.substr(slash + 1);
  const std::string ending = ".ckpt";
  if (name.size() > ending.size() && name.substr(name.size() - ending.size()) == ending) {
    name.resize(name.size() - ending.size());
  }
}

namespace {

// Sent from rank 0 to the others.
constexpr int kMostChoices = 8;
constexpr const char* kPrefixes[] = {"step-", "exchange-"};

// Returns the number in the name of a checkpoint, or -1.
int64_t NumberOf(const std::string& name) {
  for (const std::string prefix : kPrefixes) {
    const std::string digits = name.substr(std::min(name.size(), prefix.size()));
    if (name.compare(0, prefix.size(), prefix) == 0 && digits.size() == 8 &&
        digits.find_first_not_of("0123456789") == std::string::npos) {
      return std::atoll(digits.c_str());
    }
  }
  return -1;
}

// Returns true if a launcher that restarts the whole job has started this process.
bool LauncherRestarts() {
  const char* const requeued = std::getenv("SLURM_RESTART_COUNT");
  return std::getenv("TORCHELASTIC_RUN_ID") != nullptr ||
         std::getenv("KUBERNETES_SERVICE_HOST") != nullptr ||
         (requeued != nullptr && std::atoi(requeued) > 0);
}

// Throws Error on all ranks if all ranks of the run were lost after an exchange, and there is no
// checkpoint. Collective.
void CheckThatNothingIsLost(bool has_checkpoint, Session* session) {
  if (session->revives()) {
    session->Agree([&] {
      if (!has_checkpoint && session->revives_steps()) {
        throw Error(
            "all ranks of the run were lost, and it has no checkpoint to continue from "
            "(--save-dir, --save-every); start the job again to begin anew");
      }
    });
  }
}

}  // namespace

std::vector<std::string> CheckpointsIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const std::filesystem::path& path = at->path();
    if (path.extension() == ".ckpt" && NumberOf(path.stem().string()) >= 0) {
      names.push_back(path.stem().string());
    }
  }
  std::sort(names.begin(), names.end(),
            [](const std::string& a, const std::string& b) { return NumberOf(a) > NumberOf(b); });
  return names;
}

void RemoveOldCheckpoints(const std::string& directory, int64_t keep, const std::string& saved) {
  std::vector<std::string> names = CheckpointsIn(directory);
  names.erase(std::remove(names.begin(), names.end(), saved), names.end());
  for (size_t i = static_cast<size_t>(keep) - 1; keep > 0 && i < names.size(); ++i) {
    // First the file that refers to the others: without it they are no checkpoint.
    std::error_code error;
    std::filesystem::remove(directory + "/" + names[i] + ".ckpt", error);
    for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
         at.increment(error)) {
      if (at->path().filename().string().compare(0, names[i].size() + 1, names[i] + "_") == 0) {
        std::error_code ignored;
        std::filesystem::remove(at->path(), ignored);
      }
    }
  }
}

std::vector<std::string> FilesToResume(const Options& options, Session* session) {
  const bool file = !options.resume.empty() && options.resume != "latest";
  if (file && (!session->revives_steps() || options.save_dir.empty())) {
    return {options.resume};
  }
  if (session->joins() || (options.overwrite && !session->revives())) {
    return {};
  }
  if (options.save_dir.empty()) {
    CheckThatNothingIsLost(false, session);
    return {};
  }
  // 2 n + 1 for step n, 2 n + 2 for exchange n, 0 for none.
  double choices[kMostChoices] = {};
  if (session->rank() == 0) {
    const std::vector<std::string> names = CheckpointsIn(options.save_dir);
    for (size_t i = 0; i < std::min<size_t>(names.size(), kMostChoices); ++i) {
      const bool by_step = names[i].compare(0, 5, kPrefixes[0]) == 0;
      choices[i] = static_cast<double>(2 * NumberOf(names[i]) + (by_step ? 1 : 2));
    }
  }
  session->SumOverAll(choices, kMostChoices);
  std::vector<std::string> files;
  for (const double choice : choices) {
    if (const auto code = static_cast<int64_t>(choice); code > 0) {
      char name[40];
      std::snprintf(name, sizeof(name), "%s%08lld", kPrefixes[(code - 1) % 2],
                    static_cast<long long>((code - 1) / 2));
      files.push_back(options.save_dir + "/" + name + ".ckpt");
    }
  }
  CheckThatNothingIsLost(file || !files.empty(), session);
  if (file && files.empty()) {
    return {options.resume};
  }
  const bool latest = options.resume == "latest" || LauncherRestarts() || session->revives();
  session->Agree([&] {
    if (!files.empty() && !latest) {
      throw Error("--save-dir " + options.save_dir + " has " +
                  files[0].substr(options.save_dir.size() + 1) +
                  " of an earlier run; --resume latest continues it, --overwrite begins anew");
    }
  });
  if (session->rank() == 0 && latest) {
    std::printf(files.empty() ? "no checkpoint in %s: the run begins\n" : "resuming from %s\n",
                files.empty() ? options.save_dir.c_str() : files[0].c_str());
    std::fflush(stdout);
  }
  return files;
}

void SaveOrCount(const Options& options, Session* session, const std::string& name, int64_t* failed,
                 const std::function<void()>& save) {
  try {
    session->Agree(save);
  } catch (const Error& error) {
    if (options.failed_saves != "continue") {
      throw;
    }
    session->LookAround();  // throws if the replicas cannot go on
    ++*failed;
    if (*error.what() != '\0') {  // on one rank
      std::fprintf(stderr, "entrain-train: %s; the run continues without this checkpoint\n",
                   error.what());
    }
    return;
  }
  if (session->rank_left() == 0) {
    RemoveOldCheckpoints(options.save_dir, options.keep, name);
  }
}

Options LoadFirst(
    const Options& options, const std::vector<std::string>& files, bool prints,
    const std::function<void(const Options& options, const std::string& file)>& load) {
  Options portable = options;
  portable.checkpoint_kind = "portable";
  const bool both = options.checkpoint_kind == "exact" && files[0] != options.resume;
  std::vector<const Options*> kinds = {&options};
  if (both) {
    kinds.push_back(&portable);
  }
  std::optional<Error> first;
  for (const std::string& file : files) {
    for (const Options* kind : kinds) {
      try {
        load(*kind, file);
        if (prints && kind == &portable) {
          std::printf("%s: loaded as a portable checkpoint\n", file.c_str());
          std::fflush(stdout);
        }
        return *kind;
      } catch (const Error& error) {
        if (!first.has_value()) {
          first.emplace(error);
        }
        if (prints && (&file != &files.back() || (both && kind == &options))) {
          std::fprintf(stderr, "entrain-train: %s; taking %s\n", error.what(),
                       both && kind == &options ? "it as a portable one" : "an older one");
        }
      }
    }
  }
  throw *first;
}

}  // namespace trainer
