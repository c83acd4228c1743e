#include "transports/ucx/library.h"

#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#include "lib/base/config.h"

namespace entrain::ucx {
namespace {

constexpr char kName[] = "libucp.so.0";
constexpr unsigned kLeastMajor = 1, kLeastMinor = 13;

// UCX reads these settings from the environment while it is loaded; there is no other way to set
// them. By default UCX rewrites the first instructions of mmap, munmap and other functions to learn
// of freed memory, and handles SIGSEGV and similar signals to print backtraces. A library must do
// neither.
constexpr const char* kWhileLoading[] = {"UCX_MEM_EVENTS=n", "UCX_HANDLE_ERRORS=none"};

// Adds variables to the environment while the object lives. Variables that are already set keep
// their values. While the object lives, other threads may read variables: the object replaces the
// array `environ`, and does not change the old array. If another thread sets a variable in this
// time, the new value is lost.
class LargerEnvironment {
 public:
  explicit LargerEnvironment(absl::Span<const char* const> variables) : usual_(environ) {
    // never freed, because another thread may still read an old array
    static auto* const kept = new std::deque<std::vector<char*>>();
    std::vector<char*>* const larger = &kept->emplace_back();
    for (char** each = usual_; each != nullptr && *each != nullptr; ++each) {
      larger->push_back(*each);
    }
    for (const char* const variable : variables) {
      const std::string name(variable, strchr(variable, '='));
      if (!GetEnv(name.c_str()).has_value()) {
        larger->push_back(const_cast<char*>(variable));
      }
    }
    larger->push_back(nullptr);
    environ = larger->data();
  }
  ~LargerEnvironment() { environ = usual_; }
  LargerEnvironment(const LargerEnvironment&) = delete;
  LargerEnvironment& operator=(const LargerEnvironment&) = delete;

 private:
  char** const usual_;
};

void* Open() {
  const LargerEnvironment environment(kWhileLoading);
  return dlopen(kName, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

absl::StatusOr<Library> Load() {
  void* const handle = Open();
  if (handle == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("UCX cannot be loaded: ", dlerror()));
  }
  Library library;
  const char* missing = nullptr;
  // dlsym also finds symbols of libucs, because libucp is linked with libucs.
#define ENTRAIN_UCX_LOOK_UP(name)                                                \
  library.name = reinterpret_cast<decltype(library.name)>(dlsym(handle, #name)); \
  missing = library.name == nullptr ? #name : missing;
  ENTRAIN_UCX_FUNCTIONS(ENTRAIN_UCX_LOOK_UP)
#undef ENTRAIN_UCX_LOOK_UP
  if (missing != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(kName, " has no function ", missing));
  }
  unsigned release = 0;
  library.ucp_get_version(&library.major, &library.minor, &release);
  if (library.major != kLeastMajor || library.minor < kLeastMinor) {
    return absl::FailedPreconditionError(absl::StrCat(kName, " is UCX ", library.major, ".",
                                                      library.minor, "; needed: ", kLeastMajor, ".",
                                                      kLeastMinor, " or later of ", kLeastMajor));
  }
  return library;
}

}  // namespace

absl::Status Library::Error(ucs_status_t status, absl::string_view what) const {
  return absl::UnavailableError(absl::StrCat(what, ": ", ucs_status_string(status)));
}

absl::StatusOr<const Library*> LoadLibrary() {
  static const auto* const loaded = new absl::StatusOr<Library>(Load());
  if (!loaded->ok()) {
    return loaded->status();
  }
  return &**loaded;
}

}  // namespace entrain::ucx
