// The exports of the fake besides NCCL's functions: for tests, found by dlsym.
#pragma once

extern "C" {
// Numbers of this process: communicators that are neither destroyed nor aborted, operators that
// exist, and groups and single collectives that were put on a stream.
int FakeNcclCommunicators();
int FakeNcclOperators();
int FakeNcclLaunches();
// Number of groups and single collectives that were given and have not ended.
int FakeNcclOperations();
}
