// Where the victim of a fault stops. It tells the driver (tests/matrix/matrix.py) that it has come
// to its phase, and goes on when the driver has brought the fault about.
//
// The phases that no call of the library shows are found at system calls: hooks.cc defines functions
// of libc, which the library then calls in place of libc's.
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

// The next call at `place` stops this process. kNone: no call does.
void StopAt(Place place, const char* phase);
// Stops here, unless the process has stopped before: writes a line to the driver and waits for its
// answer, which may bring a fault about in this process.
void Stop(const char* phase);

// Connections over tcp go to this port of 127.0.0.2, where the driver's proxy passes them on, and
// begin with 3 bytes: this rank, and the port that was meant.
void UseProxy(int port, int rank);

// From then on standard output is standard error, and only Tell writes to the driver: UCX logs to
// standard output.
void KeepLinesApart();
// Writes one line to the driver.
void Tell(const char* line);

// The time of a clock that no fault changes.
int64_t NowNs();

}  // namespace faults
