// A rank's part in a meeting over a server: the connection on which it has joined. The server takes the connection's end
// for the rank's.
#pragma once

#include <memory>
#include <string>

#include "lib/net/socket.h"
#include "lib/store/store.h"

namespace entrain {

// On `fd` a kJoin for `key` has been sent, and nothing has been received since. `serves`: the server is in this process. `by`:
// the deadline of joining, which that of what is said last follows (LastWordBy).
std::unique_ptr<StoreMeeting> OnConnection(Fd fd, std::string url, std::string key, bool serves,
                                           Deadline by);

}  // namespace entrain
