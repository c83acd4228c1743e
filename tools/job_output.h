// Copies the output of a job's ranks from their pipes to this process's two streams, line by line.
// Copying never delays the supervision: if no process reads the streams, the ranks wait, and this
// process does not.
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

// Returns `text` as a line of entrain-run itself.
std::string OwnLine(const std::string& text);

class JobOutput {
 public:
  JobOutput();
  // Adds the pipes of one more rank. They must be non-blocking.
  void Add(Fd out, Fd err, const std::string& label);
  // Writes a message of entrain-run itself, not of a rank, as a line to standard error. Does not wait for the reader.
  void Say(const std::string& text);

  // Watch adds the entries for poll. After each poll the caller must pass the same entries to Take,
  // from `first` on.
  void Watch(std::vector<pollfd>* waited) const;
  void Take(const std::vector<pollfd>& waited, size_t first);

  // Must be called after all ranks have ended. Takes the rest from the pipes and waits until all of
  // it is written. If nothing more is written for `quiet_ns`, or if `interrupted` becomes readable,
  // the rest is lost, and a line says so.
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
