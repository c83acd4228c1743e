#include "transports/ucx/wire.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "lib/net/handshake.h"

namespace entrain::ucx {

namespace {

// The most packets that may overtake a packet. (UCX may send over several of its own lanes, and
// keeps the order of packets only within one of them.)
constexpr size_t kMaxAhead = 4096;

}  // namespace

// The callbacks that pack a packet's payload for UCX.
struct Packing {
  static void* Start(void*, const void* packet, size_t) { return const_cast<void*>(packet); }
  static void* Unpack(void*, void*, size_t) { return nullptr; }
  static size_t Size(void* packet) { return static_cast<Wire::Packet*>(packet)->bytes; }
  static size_t Pack(void* state, size_t offset, void* to, size_t most) {
    const auto* packet = static_cast<Wire::Packet*>(state);
    const size_t bytes = std::min(most, packet->bytes - offset);
    std::memcpy(to, packet->data + offset, bytes);
    return bytes;
  }
  static ucs_status_t NotReceived(void*, size_t, const void*, size_t) {
    return UCS_ERR_UNSUPPORTED;
  }
  static void Finish(void*) {}
};
const ucp_generic_dt_ops_t kPacking = {Packing::Start, Packing::Unpack,      Packing::Size,
                                       Packing::Pack,  Packing::NotReceived, Packing::Finish};

Wire::Wire(Worker* worker, const PeerId& peer, Lender* lender, UcxEndpoint* owner)
    : worker_(worker), peer_(peer), lender_(lender), owner_(owner) {
  while (path_ == 0) {
    RandomBytes(&path_, sizeof(path_));
  }
  for (size_t i = 0; i < kInFlight; ++i) {
    packets_.push_back(std::make_unique<Packet>());
    packets_.back()->wire = this;
    free_.push_back(packets_.back().get());
  }
}

absl::Status Wire::Open(const std::string& address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = OnError;
  params.err_handler.arg = this;
  const ucs_status_t status = worker_->ucx().ucp_ep_create(worker_->handle(), &params, &endpoint_);
  if (status != UCS_OK) {
    endpoint_ = nullptr;
    return worker_->ucx().Error(status, "ucp_ep_create");
  }
  return absl::OkStatus();
}

bool Wire::Send(const PacketHeader& header, ConstBytes payload, uint64_t message) {
  Packet* const packet = free_.back();
  packet->header = {.packet = header, .path = peer_path_, .number = next_number_++};
  packet->bytes = payload.size();
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = OnSent;
  param.user_data = packet;
  const bool small = payload.size() <= kSmall;
  const void* what = packet;
  size_t count = 1;
  if (small) {
    if (!payload.empty()) {
      std::memcpy(packet->small.data(), payload.data(), payload.size());
    }
    what = packet->small.data();
    count = payload.size();
    packet->message = 0;
  } else {
    packet->data = payload.data();
    packet->message = message;
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = worker_->packed();
  }
  void* const request = worker_->ucx().ucp_am_send_nbx(endpoint_, kPackets, &packet->header,
                                                       sizeof(packet->header), what, count, &param);
  if (request == nullptr) {
    return true;
  }
  if (UCS_PTR_IS_ERR(request)) {
    Fail(worker_->ucx().Error(UCS_PTR_STATUS(request), "sending"));
    return true;
  }
  packet->busy = true;
  free_.pop_back();
  ++pending_;
  return small;
}

void Wire::OnSent(void* request, ucs_status_t status, void* user_data) {
  auto* const packet = static_cast<Packet*>(user_data);
  Wire* const wire = packet->wire;
  wire->worker_->ucx().ucp_request_free(request);
  if (status != UCS_OK) {
    wire->Fail(wire->worker_->ucx().Error(status, "sending"));
  }
  wire->Done(packet);
}

void Wire::Done(Packet* packet) {
  --pending_;
  packet->busy = false;
  packet->copy.reset();
  free_.push_back(packet);
  // If the path has failed, the endpoint fails all messages when it ends.
  if (packet->message != 0 && failure_.ok()) {
    lender_->OnTaken(packet->message, static_cast<int64_t>(packet->bytes));
  }
}

void Wire::Recall(uint64_t message) {
  for (const std::unique_ptr<Packet>& packet : packets_) {
    if (packet->busy && packet->message != 0 && (message == 0 || packet->message == message)) {
      packet->copy = std::make_unique_for_overwrite<std::byte[]>(packet->bytes);
      std::memcpy(packet->copy.get(), packet->data, packet->bytes);
      packet->data = packet->copy.get();
      packet->message = 0;
    }
  }
}

void Wire::OnError(void* arg, ucp_ep_h, ucs_status_t status) {
  auto* const wire = static_cast<Wire*>(arg);
  wire->Fail(wire->worker_->ucx().Error(status, "the connection is gone"));
}

void Wire::Fail(const absl::Status& why) {
  if (failure_.ok()) {
    failure_ = why;
  }
}

bool Wire::Arrived(const Header& header, ConstBytes payload) {
  if (header.number == expected_) {
    ++expected_;
    return true;
  }
  if (header.number > expected_ && ahead_.size() < kMaxAhead) {
    ahead_.emplace(
        header.number,
        std::pair(header.packet,
                  std::string(reinterpret_cast<const char*>(payload.data()), payload.size())));
  } else {
    Fail(absl::UnavailableError(absl::StrCat("the peer broke the protocol: packet ", header.number,
                                             " came where ", expected_, " was due")));
  }
  return false;
}

bool Wire::Next(PacketHeader* header, std::string* payload) {
  const auto next = ahead_.find(expected_);
  if (next == ahead_.end()) {
    return false;
  }
  ++expected_;
  *header = next->second.first;
  *payload = std::move(next->second.second);
  ahead_.erase(next);
  return true;
}

void Wire::Depart(std::deque<std::string> controls, absl::string_view why, Deadline by) {
  owner_ = nullptr;
  lender_ = nullptr;
  departing_ = true;
  depart_by_ = by;
  for (std::string& text : controls) {
    farewell_.emplace_back(PacketType::kControl, std::move(text));
  }
  farewell_.emplace_back(PacketType::kClose, std::string(why.substr(0, kMaxControlBytes)));
}

int Wire::Flush(int64_t now) {
  int sent = 0;
  while (departing_ && !closing_ && introduced() && ready() && !farewell_.empty()) {
    const auto& [type, text] = farewell_.front();
    PacketHeader header;
    header.type = type;
    header.bytes = static_cast<int64_t>(text.size());
    const bool taken =
        Send(header, {reinterpret_cast<const std::byte*>(text.data()), text.size()}, ~uint64_t{0});
    if (!taken) {
      Recall(~uint64_t{0});
    }
    farewell_.pop_front();
    ++sent;
  }
  if (departing_ && !closing_ &&
      (!failure_.ok() || (peer_closed_ && Flushed()) || depart_by_.Passed(now))) {
    StartClose();
  }
  CheckClose();
  return sent;
}

bool Wire::Finished(void** request) const {
  if (*request != nullptr && worker_->ucx().ucp_request_check_status(*request) != UCS_INPROGRESS) {
    worker_->ucx().ucp_request_free(std::exchange(*request, nullptr));
  }
  return *request == nullptr;
}

bool Wire::Connected() const {
  return closing_ || !failure_.ok() || introduced();
}

bool Wire::Flushed() {
  if (closing_ || !failure_.ok() || !introduced()) {
    return true;
  }
  if (!said_all()) {
    return false;
  }
  if (!std::exchange(flushing_, true)) {
    const ucp_request_param_t param{};
    void* const request = worker_->ucx().ucp_ep_flush_nbx(endpoint_, &param);
    flush_request_ = UCS_PTR_IS_PTR(request) ? request : nullptr;
  }
  return Finished(&flush_request_);
}

// Uses UCX's forced close, because UCX's normal close waits for the peer and cannot be cancelled.
void Wire::StartClose() {
  if (std::exchange(closing_, true) || endpoint_ == nullptr) {
    return;
  }
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* const request = worker_->ucx().ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &param);
  close_request_ = UCS_PTR_IS_PTR(request) ? request : nullptr;
}

void Wire::CheckClose() {
  Finished(&close_request_);
}

void Wire::Abandon() {
  for (void** request : {&flush_request_, &close_request_}) {
    if (*request != nullptr) {
      worker_->ucx().ucp_request_free(std::exchange(*request, nullptr));
    }
  }
}

}  // namespace entrain::ucx
