// What a job's ranks write, from their pipes to this process's two streams, line by line and never in the way of the
// supervision: where nobody reads, ranks wait, and this does not.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include <poll.h>

#include "lib/net/socket.h"
#include "tools/labelled_output.h"
#include "tools/outlet.h"

namespace entrain {

// A line of entrain-run's own.
std::string OwnLine(const std::string& text);

class JobOutput {
 public:
  JobOutput();
  // The pipes of one more rank, non-blocking.
  void Add(Fd out, Fd err, const std::string& label);
  // A line of entrain-run's own on standard error; does not wait for whoever reads it.
  void Say(const std::string& text);

  // What poll should wait for. Take is given the same entries back, from `first` on, after each poll.
  void Watch(std::vector<pollfd>* waited) const;
  void Take(const std::vector<pollfd>& waited, size_t first);

  // After all ranks have ended: takes what is left in the pipes and waits until all has been written. The rest is lost, and
  // a line says so, when nothing more was written for `quiet_ns`, or when `interrupted` becomes readable.
  void Finish(int64_t quiet_ns, int interrupted);

 private:
  struct Stream {
    Fd from;
    LabelledOutput to;
  };
  static bool TakeOnce(Stream* stream);
  void ForgetProgress();

  const std::shared_ptr<Outlet> out_, err_;
  std::list<Stream> streams_;
};

}  // namespace entrain
