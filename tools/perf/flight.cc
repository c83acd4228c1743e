#include "tools/perf/flight.h"

#include <cstdio>
#include <fstream>
#include <iterator>

#include <poll.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/comm/flight/flight_socket.h"
#include "lib/net/local_socket.h"
#include "tools/perf/flight_page.h"

namespace entrain::perf {
namespace {

// A process answers within 0.2 s, and may then have to write the dump of a large job.
constexpr int64_t kAnswerNs = 5 * kSecond;

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "entrain-perf: %s\n", std::string(status.message()).c_str());
  return 1;
}

absl::StatusOr<std::string> ReadAll(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  if (!file.good()) {
    return absl::InvalidArgumentError(absl::StrCat("--flight: cannot read ", name));
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::StatusOr<std::string> Ask(int64_t pid) {
  auto connected = ConnectLocal(FlightSocketName(pid));
  if (!connected.ok()) {
    return Annotate(connected.status(),
                    absl::StrCat("--flight-of: process ", pid,
                                 " has no communicator of this library, or its recorder is off"));
  }
  const Stop stop{Deadline::After(kAnswerNs)};
  std::string text;
  while (true) {
    char some[1 << 16];
    const absl::StatusOr<size_t> got = ReadSome(connected->get(), some, sizeof(some));
    if (!got.ok()) {
      // The other side closes the connection after the dump.
      return text.empty() ? absl::StatusOr<std::string>(got.status()) : text;
    }
    text.append(some, *got);
    if (*got == 0) {
      ENTRAIN_RETURN_IF_ERROR(
          WaitFd(connected->get(), POLLIN, stop, absl::StrCat("--flight-of: process ", pid)));
    }
  }
}

}  // namespace

int PrintFlights(const std::vector<std::string>& names, const std::string& json) {
  std::vector<FlightFile> files;
  for (const std::string& name : names) {
    auto text = ReadAll(name);
    if (!text.ok()) {
      return Fail(text.status());
    }
    if (text->empty()) {
      // --flight-of leaves such a file for a process that did not answer.
      std::fprintf(stderr, "entrain-perf: --flight: %s is empty, no dump\n", name.c_str());
      continue;
    }
    if (text->find("\"entrain_flight\"") == std::string::npos) {
      // Another file of the folder that *.json names, such as a trace.
      std::fprintf(stderr, "entrain-perf: --flight: %s is no flight dump, skipped\n", name.c_str());
      continue;
    }
    files.push_back({name, *std::move(text)});
  }
  if (files.empty()) {
    return Fail(absl::InvalidArgumentError("--flight: no file has a dump"));
  }
  const auto page = MergeFlights(files);
  if (!page.ok()) {
    return Fail(Annotate(page.status(), "--flight"));
  }
  std::fputs(page->text.c_str(), stdout);
  if (!json.empty() && !(std::ofstream(json) << page->json).flush().good()) {
    return Fail(absl::InternalError(absl::StrCat("--json: cannot write ", json)));
  }
  return 0;
}

int PrintFlightOf(int64_t pid) {
  const auto text = Ask(pid);
  if (!text.ok()) {
    return Fail(text.status());
  }
  std::fputs(text->c_str(), stdout);
  return 0;
}

}  // namespace entrain::perf
