// The places at which the victim of a fault stops. The victim tells the driver
// (tests/matrix/matrix.py) that it has come to its phase, and goes on when the driver has brought
// the fault about.
//
// Some phases are not visible in the calls of the library. The victim then stops at a system call:
// hooks.cc defines functions of libc, which the library calls in place of libc's.
#pragma once

#include <cstdint>

namespace faults {

// The system calls at which a victim can be made to stop, once.
enum class Place {
  kNone,
  kConnection,  // a connection to or from a peer begins
  kFirstSend,   // the first bytes have been sent on it
  kNewFile,     // a file has been created
  kClose,       // a descriptor is about to be closed
};

// Makes the next call at `place` stop this process. kNone: no call stops it.
void StopAt(Place place, const char* phase);
// Stops here, unless the process has stopped before: writes a line to the driver and waits for its
// answer, which may bring a fault about in this process.
void Stop(const char* phase);

// Makes connections over tcp go to this port of 127.0.0.2, to the driver's proxy, which passes them
// on. Each begins with 3 bytes: this rank, and the port of the real destination.
void UseProxy(int port, int rank);

// Sends standard output to standard error from now on, so that only Tell writes to the driver. The
// reason is that UCX logs to standard output.
void KeepLinesApart();
// Writes one line to the driver.
void Tell(const char* line);

// Returns the time of a clock that no fault changes.
int64_t NowNs();

}  // namespace faults
