// Runs programs as a user starts them.
#pragma once

#include <array>
#include <cstdio>
#include <string>

#include <sys/wait.h>

struct Outcome {
  int code = -1;
  std::string output;  // stdout and stderr
};

inline Outcome Shell(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen(("exec 2>&1; " + command).c_str(), "r");
  std::array<char, 4096> piece;
  size_t got = 0;
  while ((got = fread(piece.data(), 1, piece.size(), pipe)) > 0) {
    outcome.output.append(piece.data(), got);
  }
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}
