// A rank's part in a meeting over a server. The object owns the connection on which the rank
// joined. If the connection ends, the server assumes that the rank has ended.
#pragma once

#include <memory>
#include <string>

#include "lib/net/channel.h"
#include "lib/store/store.h"

namespace entrain {

// The caller has sent a kJoin for `key` on `channel` and received nothing since. `serves`: the
// server is in this process. `by` is the deadline of the join; LastWordBy computes the deadline of
// the rank's last message from it.
std::unique_ptr<StoreMeeting> OnConnection(Channel channel, std::string url, std::string key,
                                           bool serves, Deadline by);

}  // namespace entrain
