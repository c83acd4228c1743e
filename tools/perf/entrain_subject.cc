#include "tools/perf/entrain_subject.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "lib/base/status.h"

namespace entrain::perf {
namespace {

constexpr size_t kLongestName = 256;

int32_t AddFloats(void* dst, const void* src, size_t count, entrain_dtype_t, void*) {
  auto* const to = static_cast<float*>(dst);
  const auto* const from = static_cast<const float*>(src);
  for (size_t i = 0; i < count; ++i) {
    to[i] += from[i];
  }
  return 0;
}

// A meeting that makes calls of the library, for ranks on machines that share no memory.
class CommMeeting final : public Meeting {
 public:
  explicit CommMeeting(entrain_comm_t* comm) : comm_(comm) {}
  absl::Status Barrier() override { return FromC(entrain_barrier(comm_, nullptr, nullptr)); }
  absl::Status Slowest(absl::Span<double> times) override {
    return FromC(entrain_all_reduce(comm_, times.data(), times.data(), times.size(), ENTRAIN_F64,
                                    ENTRAIN_MAX, nullptr, nullptr));
  }
  absl::StatusOr<int64_t> Sum(int64_t mine) override {
    ENTRAIN_RETURN_IF_ERROR(FromC(
        entrain_all_reduce(comm_, &mine, &mine, 1, ENTRAIN_I64, ENTRAIN_SUM, nullptr, nullptr)));
    return mine;
  }
  void Mark(int64_t) override {}
  int Behind(int64_t) const override { return -1; }
  const char* place() const override { return "the library's own barrier"; }

 private:
  entrain_comm_t* const comm_;
};

}  // namespace

absl::Status FromC(entrain_status_t status) {
  if (status == ENTRAIN_OK) {
    return absl::OkStatus();
  }
  return absl::Status(
      status == ENTRAIN_ABORTED ? absl::StatusCode::kAborted : absl::StatusCode::kUnknown,
      entrain_last_error());
}

absl::StatusOr<EntrainSubject> EntrainSubject::Wrap(CommPtr comm) {
  int32_t rank = 0, size = 0;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_comm_rank(comm.get(), &rank)));
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_comm_size(comm.get(), &size)));
  std::set<std::string> names;
  for (int32_t peer = 0; peer < size; ++peer) {
    const char* name = "";
    ENTRAIN_RETURN_IF_ERROR(FromC(entrain_comm_transport(comm.get(), peer, &name)));
    if (peer != rank || size == 1) {
      names.insert(name);
    }
  }
  return EntrainSubject(std::move(comm), rank, size, absl::StrJoin(names, "+"));
}

std::string EntrainSubject::algorithm(const Case& measured) const {
  if (measured.collective == CallKind::kSend) {
    return "point_to_point";
  }
  if (on_device_ && measured.collective != CallKind::kBarrier) {
    return "device";
  }
  const char* name = "?";
  const std::string collective(TitleOf(measured.collective));
  entrain_comm_algorithm(comm_.get(), collective.c_str(), static_cast<size_t>(measured.count),
                         static_cast<entrain_dtype_t>(measured.dtype), &name);
  return name;
}

absl::StatusOr<std::string> EntrainSubject::Explain(const Case& measured) const {
  if (measured.collective == CallKind::kSend) {
    return "";
  }
  char text[4096];
  const std::string collective(TitleOf(measured.collective));
  ENTRAIN_RETURN_IF_ERROR(FromC(
      entrain_comm_explain(comm_.get(), collective.c_str(), static_cast<size_t>(measured.count),
                           static_cast<entrain_dtype_t>(measured.dtype), text, sizeof(text))));
  return text;
}

absl::StatusOr<int> EntrainSubject::Cores() const {
  Case one;
  one.count = 1;
  ENTRAIN_ASSIGN_OR_RETURN(const std::string text, Explain(one));
  const std::string before = text.substr(0, text.find(" cores, from "));
  int cores = 0;
  return absl::SimpleAtoi(before.substr(before.rfind(' ') + 1), &cores)
             ? absl::StatusOr<int>(cores)
             : absl::InternalError(absl::StrCat("the library does not say its cores: ", text));
}

entrain_status_t EntrainSubject::PingPong(const Case& measured, const void* in, void* out) {
  const int peer = rank_ ^ 1;
  if (peer >= size_) {
    return ENTRAIN_OK;  // this rank has no partner
  }
  const auto count = static_cast<size_t>(measured.count);
  const auto dtype = static_cast<entrain_dtype_t>(measured.dtype);
  const auto send = [&] {
    return entrain_send(comm_.get(), in, count, dtype, peer, options(), nullptr);
  };
  const auto recv = [&] {
    return entrain_recv(comm_.get(), out, count, dtype, peer, options(), nullptr);
  };
  if (rank_ < peer) {
    const entrain_status_t sent = send();
    return sent == ENTRAIN_OK ? recv() : sent;
  }
  const entrain_status_t received = recv();
  return received == ENTRAIN_OK ? send() : received;
}

absl::Status EntrainSubject::Run(const Case& measured, const void* in, void* out) {
  const auto count = static_cast<size_t>(measured.count);
  const auto dtype = static_cast<entrain_dtype_t>(measured.dtype);
  auto op = static_cast<entrain_op_t>(measured.op);
  if (measured.op == ReduceOp::kCustom) {
    ENTRAIN_RETURN_IF_ERROR(MakeSum());
    op = ENTRAIN_REDUCTION;
  }
  entrain_comm_t* const comm = comm_.get();
  entrain_status_t status = ENTRAIN_OK;
  switch (measured.collective) {
    case CallKind::kAllReduce:
      status = entrain_all_reduce(comm, in, out, count, dtype, op, options(), nullptr);
      break;
    case CallKind::kReduceScatter:
      status = entrain_reduce_scatter(comm, in, out, count, dtype, op, options(), nullptr);
      break;
    case CallKind::kAllGather:
      status = entrain_all_gather(comm, in, out, count, dtype, options(), nullptr);
      break;
    case CallKind::kBroadcast:
      status = entrain_broadcast(comm, out, count, dtype, measured.root, options(), nullptr);
      break;
    case CallKind::kReduce:
      status = entrain_reduce(comm, in, out, count, dtype, op, measured.root, options(), nullptr);
      break;
    case CallKind::kGather:
      status = entrain_gather(comm, in, out, count, dtype, measured.root, options(), nullptr);
      break;
    case CallKind::kScatter:
      status = entrain_scatter(comm, in, out, count, dtype, measured.root, options(), nullptr);
      break;
    case CallKind::kAllToAll:
      status = entrain_all_to_all(comm, in, out, count, dtype, options(), nullptr);
      break;
    case CallKind::kScan:
      status = entrain_scan(comm, in, out, count, dtype, op, options(), nullptr);
      break;
    case CallKind::kExclusiveScan:
      status = entrain_exclusive_scan(comm, in, out, count, dtype, op, options(), nullptr);
      break;
    case CallKind::kBarrier:
      status = entrain_barrier(comm, nullptr, nullptr);
      break;
    case CallKind::kSend:
      status = PingPong(measured, in, out);
      break;
    default:
      return absl::UnimplementedError("not measured");
  }
  return status == ENTRAIN_OK ? absl::OkStatus() : FromC(status);
}

absl::Status EntrainSubject::MakeSum() {
  if (sum_ == nullptr) {
    ENTRAIN_RETURN_IF_ERROR(
        FromC(entrain_reduction_user(AddFloats, nullptr, 1, 1, &options_.reduction)));
    sum_.reset(options_.reduction);
  }
  return absl::OkStatus();
}

void EntrainSubject::UseDeviceMemory() {
  on_device_ = true;
  options_.memory = ENTRAIN_MEMORY_DEVICE;
}

absl::StatusOr<Buffers> EntrainSubject::RegisterBuffers(int64_t bytes) {
  ENTRAIN_ASSIGN_OR_RETURN(Buffers own, Buffers::Allocate(bytes));
  const auto buffers = std::make_shared<Buffers>(std::move(own));
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  const auto release = [comm = comm_.get()](void* one) {
    if (entrain_mem_deregister(comm, one) != ENTRAIN_OK) {
      std::fprintf(stderr, "entrain-perf: %s\n", entrain_last_error());
    }
  };
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_mem_register(comm_.get(), buffers->in(), size, nullptr)));
  if (const auto status = FromC(entrain_mem_register(comm_.get(), buffers->out(), size, nullptr));
      !status.ok()) {
    release(buffers->in());
    return status;
  }
  return Buffers(buffers->in(), buffers->out(), [release, buffers] {
    release(buffers->in());
    release(buffers->out());
  });
}

absl::StatusOr<Buffers> EntrainSubject::AllocateBuffers(int64_t bytes, bool huge_pages) {
  const uint32_t flags = huge_pages ? ENTRAIN_MEM_HUGE_PAGES : 0;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* memory[2] = {};
  const auto release = [comm = comm_.get()](void* one) {
    if (entrain_mem_free(comm, one) != ENTRAIN_OK) {
      std::fprintf(stderr, "entrain-perf: %s\n", entrain_last_error());
    }
  };
  for (void*& one : memory) {
    if (const auto status = FromC(entrain_mem_alloc(comm_.get(), size, flags, &one));
        !status.ok()) {
      release(memory[0]);
      return status;
    }
  }
  return Buffers(memory[0], memory[1], [release, in = memory[0], out = memory[1]] {
    release(in);
    release(out);
  });
}

absl::StatusOr<std::unique_ptr<Meeting>> EntrainSubject::Meet(Waiting waiting) {
  char name[kLongestName] = {};
  absl::StatusOr<SharedPage> page = absl::NotFoundError("");
  if (rank_ == 0) {
    page = SharedPage::Create(size_);
    if (page.ok()) {
      std::strncpy(name, page->Name().c_str(), sizeof(name) - 1);
    }
  }
  ENTRAIN_RETURN_IF_ERROR(
      FromC(entrain_broadcast(comm_.get(), name, sizeof(name), ENTRAIN_U8, 0, nullptr, nullptr)));
  if (rank_ != 0) {
    page = SharedPage::Open(name, size_);
  }
  int32_t reached = page.ok() ? 1 : 0;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_all_reduce(comm_.get(), &reached, &reached, 1, ENTRAIN_I32,
                                                   ENTRAIN_MIN, nullptr, nullptr)));
  if (reached == 0) {
    return std::make_unique<CommMeeting>(comm_.get());
  }
  page_ = std::make_unique<SharedPage>(*std::move(page));
  return page_->Join(rank_, waiting, [comm = comm_.get()] {
    entrain_error_t error;
    entrain_error_init(&error);
    return entrain_comm_error(comm, &error) == ENTRAIN_OK
               ? absl::OkStatus()
               : absl::Status(error.code == ENTRAIN_ABORTED ? absl::StatusCode::kAborted
                                                            : absl::StatusCode::kUnknown,
                              error.text);
  });
}

}  // namespace entrain::perf
