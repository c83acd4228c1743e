// The cores of this process, and one of them for each rank.
#pragma once

namespace entrain::perf {

// How many this process may use, as the library counts.
int Cores();
// Keeps the calling thread, and those it starts, on one core.
void PinToCore(int rank);

}  // namespace entrain::perf
