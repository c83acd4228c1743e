// The cores of this process, and the choice of one core for each rank.
#pragma once

namespace entrain::perf {

// Returns the number of cores that this process may use, counted as the library counts.
int Cores();
// Keeps the calling thread, and threads that it starts later, on one core.
void PinToCore(int rank);

}  // namespace entrain::perf
