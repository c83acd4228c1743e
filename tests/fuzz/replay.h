// Runs inputs one by one, with or without libFuzzer.
#pragma once

#include "absl/strings/string_view.h"

namespace entrain::fuzz {

// Must be called once, before the first input.
void Prepare();
void RunOne(absl::string_view input);
// Writes every seed to a file of the directory. Returns the exit status.
int WriteSeeds(const char* directory);

}  // namespace entrain::fuzz
