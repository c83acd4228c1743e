// A client of etcd v3. It uses etcd's JSON gateway. The client knows several members of the cluster
// and uses one of them. It changes to the next member if the member in use does not answer or is
// cut off from the other members.
//
// If an answer is lost, the client sends the request again, so etcd may execute a request twice.
// The comparisons of a transaction must make a second execution harmless (etcd_store.cc,
// etcd_meeting.cc).
//
// Thread safety: any thread may use an EtcdClient. An EtcdWatch belongs to one thread; only Wake
// may be called by any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"
#include "lib/net/socket.h"
#include "lib/store/http_post.h"

namespace entrain {

// A key and its value in etcd. A revision is the number of a transaction, counted over the whole
// cluster.
struct EtcdRow {
  std::string key, value;
  int64_t revision = 0;  // revision of the transaction that wrote the key last
  int64_t lease = 0;     // etcd removes the key when this lease ends; 0: none
};

// One operation of a transaction.
struct EtcdStep {
  enum class Kind { kPut, kRead, kDelete };
  enum class Rows { kWhole, kKeys, kCount };  // what a read returns for each key
  Kind kind = Kind::kRead;
  std::string key, end;  // kRead: reads the keys in [key, end). If `end` is empty, reads only
                         // `key`
  std::string value;     // kPut
  int64_t lease = 0;     // kPut
  Rows rows = Rows::kWhole;
  int64_t limit = 0;  // kRead: the largest number of rows; 0: all

  static EtcdStep Put(std::string key, std::string value, int64_t lease = 0);
  static EtcdStep Read(std::string key, Rows rows = Rows::kWhole);
  static EtcdStep ReadRange(std::string key, std::string end, Rows rows, int64_t limit = 0);
  static EtcdStep Delete(std::string key);
};

struct EtcdTransaction {
  // Keys, each with the revision that it must have; 0: the key must not exist.
  std::vector<std::pair<std::string, int64_t>> compares;
  std::vector<EtcdStep> then;       // executed if all keys of `compares` have these revisions
  std::vector<EtcdStep> otherwise;  // executed otherwise
};

struct EtcdReply {
  struct Read {
    std::vector<EtcdRow> rows;  // ordered by key
    int64_t count = 0;          // number of all keys in the range
    // Returns the first row. Null: none.
    const EtcdRow* row() const { return rows.empty() ? nullptr : &rows.front(); }
  };
  bool compared = false;    // `then` was executed
  int64_t revision = 0;     // revision of this transaction or, if it wrote nothing, of the last
                            // transaction that did
  std::vector<Read> reads;  // one for each kRead, in order
};

class EtcdClient;

// Reports changes of one key.
class EtcdWatch {
 public:
  enum class News { kNone, kChanged, kEnded };
  // Begins the watch, or begins it again, at the member that the client uses now. The watch reports
  // changes from `revision` on.
  void Start(const std::string& key, int64_t revision);
  // Waits up to `ms` milliseconds. kEnded: the member has ended the watch, or the client now uses
  // another member. The caller must then call Start again.
  News Step(int ms);
  void Wake() { post_->Wake(); }

 private:
  friend class EtcdClient;
  EtcdWatch(const EtcdClient& client, std::unique_ptr<HttpPost> post)
      : client_(client), post_(std::move(post)) {}

  const EtcdClient& client_;
  const std::unique_ptr<HttpPost> post_;
  size_t member_ = 0;
  bool ended_ = true;
};

class EtcdClient {
 public:
  EtcdClient(std::string url, std::vector<HostPort> members);
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // Each function tries one member after the other until a member answers. If `stop` ends the
  // function, the error is kDeadlineExceeded or kAborted, with the last error of each member. Other
  // errors are etcd's own. They do not name the request, so the caller must add the name of the
  // request.
  absl::StatusOr<EtcdReply> Run(const EtcdTransaction& transaction, const Stop& stop) const;
  absl::StatusOr<EtcdReply> Read(std::vector<EtcdStep> reads, const Stop& stop) const;
  // Returns a new lease, which ends `seconds` after Grant or after the last KeepAlive.
  absl::StatusOr<int64_t> Grant(int64_t seconds, const Stop& stop) const;
  // Returns kNotFound if the lease has ended.
  absl::Status KeepAlive(int64_t lease, const Stop& stop) const;
  // Ends a lease and its keys. Returns OK if the lease has already ended.
  absl::Status Revoke(int64_t lease, const Stop& stop) const;
  // The client must outlive the watch.
  absl::StatusOr<std::unique_ptr<EtcdWatch>> Watch() const;

  const std::string& url() const { return url_; }

 private:
  friend class EtcdWatch;
  // Returns the body of the answer of the first member that answers.
  absl::StatusOr<std::string> Ask(const char* path, const std::string& body,
                                  const Stop& stop) const;
  absl::StatusOr<std::string> AskOne(HttpPost* post, size_t member, const char* path,
                                     const std::string& body, const Stop& stop) const;
  // Returns the member's addresses in the form that HttpPost::Start takes, or an empty text if the
  // member's host is a number.
  absl::StatusOr<std::string> Resolved(size_t member, const Stop& stop) const;
  std::string UrlOf(size_t member, const char* path) const;
  absl::StatusOr<std::unique_ptr<HttpPost>> Take() const;
  void Give(std::unique_ptr<HttpPost> post) const;

  const std::string url_;
  const std::vector<HostPort> members_;
  mutable std::atomic<size_t> current_{0};  // the member in use
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<HttpPost>> idle_;
  // by member; unset: must be looked up
  mutable std::vector<std::optional<std::string>> resolved_;
};

}  // namespace entrain
