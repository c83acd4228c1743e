// What the fake exports besides NCCL's functions: for tests, found by dlsym.
#pragma once

extern "C" {
// Of this process: communicators that are neither destroyed nor aborted, operators that were made
// and are there, and how many groups and single collectives were put on a stream.
int FakeNcclCommunicators();
int FakeNcclOperators();
int FakeNcclLaunches();
// Groups and single collectives that were given and have not ended.
int FakeNcclOperations();
}
