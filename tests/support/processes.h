// Processes that a test forks, memory that they share, and directories that are removed at the end.
#pragma once

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace entrain {

// Forks a process that runs `body`. The process exits with 0 if no expectation failed in it, else
// with 1.
inline pid_t StartProcess(const std::function<void()>& body) {
  const pid_t child = fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    body();
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  return child;
}

// Blocks until the process has ended. Returns its status as waitpid gives it.
inline int EndOf(pid_t child) {
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

// Calls `then` after a time, in a separate thread. For a process that dies at a random moment.
inline void After(int64_t us, std::function<void()> then) {
  std::thread([us, then = std::move(then)] {
    usleep(static_cast<useconds_t>(us));  // the time that was asked for
    then();
  }).detach();
}

// Stops this process. A child waits until `woken` returns true, and then continues this process.
inline void StopUntil(const std::function<bool()>& woken) {
  const pid_t stopped = getpid();
  if (fork() == 0) {
    while (!woken()) {
      usleep(1000);
    }
    kill(stopped, SIGCONT);
    _exit(0);
  }
  raise(SIGSTOP);
}

// A new directory, which is removed with its contents.
class TempDirectory {
 public:
  TempDirectory() : path_((std::filesystem::temp_directory_path() / "entrain-XXXXXX").string()) {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// One T in memory that this process shares with the processes that it forks.
template <typename T>
class SharedWithChildren {
 public:
  SharedWithChildren()
      : value_(new (mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                         0)) T()) {}
  ~SharedWithChildren() { munmap(value_, sizeof(T)); }
  SharedWithChildren(const SharedWithChildren&) = delete;
  SharedWithChildren& operator=(const SharedWithChildren&) = delete;
  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* const value_;
};

}  // namespace entrain
