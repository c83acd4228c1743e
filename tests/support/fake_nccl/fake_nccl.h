// The functions that the fake exports besides those of NCCL. Tests look them up by dlsym.
#pragma once

extern "C" {
// Return, for this process, the number of communicators that are neither destroyed nor aborted, of
// operators that exist, and of groups and single collectives that were put on a stream.
int FakeNcclCommunicators();
int FakeNcclOperators();
int FakeNcclLaunches();
// Returns the number of groups and single collectives that were submitted and have not ended.
int FakeNcclOperations();
}
