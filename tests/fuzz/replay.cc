// Runs the seeds of a target, and every file below the given directories, once: TARGET DIRECTORY...
#include "tests/fuzz/replay.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/target.h"

namespace entrain::fuzz {
namespace {

int Replay(int directories, char** names) {
  Prepare();
  size_t seeds = 0;
  for (const std::string& seed : FuzzSeeds()) {
    std::fprintf(stderr, "seed %zu\n", seeds++);
    RunOne(seed);
  }
  RunOne("");
  std::vector<std::filesystem::path> files;
  for (int i = 0; i < directories; ++i) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(names[i])) {
      if (entry.is_regular_file()) {
        files.push_back(entry.path());
      }
    }
  }
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& path : files) {
    std::fprintf(stderr, "%s\n", path.c_str());  // the last one is the guilty one
    std::ifstream file(path, std::ios::binary);
    RunOne(std::string{std::istreambuf_iterator<char>(file), {}});
  }
  std::printf("%zu seeds, %zu kept inputs\n", seeds, files.size());
  return seeds > 0 && !files.empty() ? 0 : 1;
}

}  // namespace
}  // namespace entrain::fuzz

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--seeds") == 0) {
    return entrain::fuzz::WriteSeeds(argv[2]);
  }
  return entrain::fuzz::Replay(argc - 1, argv + 1);
}
