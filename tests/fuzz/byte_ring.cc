// transports/shm/byte_ring: a reader and a writer whose other end changes every word at will.
#include "transports/shm/byte_ring.h"

#include <memory>

#include "tests/fuzz/target.h"

namespace entrain::fuzz {
namespace {

constexpr size_t kBytes = 4096;

enum Action : uint8_t {
  kPeek,
  kPeekOpen,
  kPop,
  kRelease,
  kReserve,
  kOpen,
  kPublish,
  kLearn,
  kSetState,
  kSetBytes,
  kSetHead,
  kHonestRecord,
  kActions
};

// The memory of one direction. Exactly kBytes, so that a sanitizer sees every byte beyond.
struct Memory {
  Memory() { std::memset(data.get(), 0, kBytes); }
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> data{static_cast<std::byte*>(std::aligned_alloc(64, kBytes))};
  std::atomic<uint64_t> head{0};
};

class Ring {
 public:
  void Act(Input& in) {
    switch (in.Byte() % kActions) {
      case kPeek: {
        RingReader::Record record;
        peeked_ = reader_.Peek(&record);
        if (peeked_) {
          Read(record.payload);
          writer_.Learn(record.taken);
        }
        FUZZ_CHECK(!peeked_ || !reader_.broken());
        break;
      }
      case kPeekOpen: {
        RingReader::Record record;
        size_t payload = 0;
        if (reader_.PeekOpen(&record, &payload)) {
          FUZZ_CHECK(record.payload.size() <= payload);
          Read(record.payload);
        }
        break;
      }
      case kPop:
        if (std::exchange(peeked_, false)) {
          reader_.Pop();
        }
        break;
      case kRelease:
        reader_.Release();
        break;
      case kReserve: {
        reserved_ = in.Number<uint16_t>() % (RingFormat::MaxPayload(kBytes) + 1);
        std::byte* const at = writer_.Reserve(reserved_, in.Byte() % 2 == 1);
        may_publish_ = at != nullptr;
        FUZZ_CHECK(at == nullptr || !writer_.broken());
        if (at != nullptr) {
          std::memset(at, 7, reserved_);
        }
        break;
      }
      case kOpen:
        if (may_publish_) {
          writer_.Open(2, in.Number<uint16_t>() % (reserved_ + 1));
        }
        break;
      case kPublish:
        if (std::exchange(may_publish_, false)) {
          writer_.Publish(2, reader_.taken());
        }
        break;
      case kLearn:
        writer_.Learn(in.Number<uint32_t>());
        break;
      case kSetState:  // of any line
        RingFormat::StateAt(in_.data.get() +
                            in.Byte() % (kBytes / RingFormat::kLine) * RingFormat::kLine)
            .store(in.Number<uint64_t>());
        break;
      case kSetBytes: {
        const size_t at = in.Number<uint16_t>() % kBytes;
        const absl::string_view bytes = in.Take(in.Byte());
        std::memcpy(in_.data.get() + at, bytes.data(), std::min(bytes.size(), kBytes - at));
        break;
      }
      case kSetHead:
        out_.head.store(in.Number<uint64_t>());
        break;
      default: {  // by an honest writer, until its memory is spoiled
        const size_t payload = in.Number<uint16_t>() % (RingFormat::MaxPayload(kBytes) + 1);
        if (std::byte* const at = peer_.Reserve(payload)) {
          std::memset(at, 1, payload);
          peer_.Publish(3, in.Number<uint32_t>());
        }
      }
    }
  }

 private:
  // All memory that a reader returns must lie in the ring.
  void Read(ConstBytes payload) {
    FUZZ_CHECK(payload.data() >= in_.data.get() &&
               payload.data() + payload.size() <= in_.data.get() + kBytes);
    for (const std::byte byte : payload) {
      sum_ = sum_ + static_cast<uint8_t>(byte);
    }
  }

  Memory in_, out_;  // of the records to this end, and of those from it
  RingReader reader_{in_.data.get(), kBytes, &in_.head};
  RingWriter writer_{out_.data.get(), kBytes, &out_.head};
  RingWriter peer_{in_.data.get(), kBytes, &in_.head};
  bool peeked_ = false, may_publish_ = false;
  size_t reserved_ = 0;
  volatile uint64_t sum_ = 0;
};

}  // namespace

void FuzzOne(absl::string_view input) {
  Input in(input);
  Ring ring;
  while (!in.empty()) {
    ring.Act(in);
  }
}

std::vector<std::string> FuzzSeeds() {
  Script conversation, wraps;
  for (int i = 0; i < 6; ++i) {
    conversation.Byte(kHonestRecord)
        .Number(uint16_t(100 * i))
        .Number(uint32_t(i))
        .Byte(kPeek)
        .Byte(kPop)
        .Byte(kRelease);
    conversation.Byte(kReserve)
        .Number(uint16_t(50 * i))
        .Byte(i)
        .Byte(kOpen)
        .Number(uint16_t(10))
        .Byte(kPublish);
    conversation.Byte(kSetHead).Number(uint64_t(64 * i));
  }
  for (int i = 0; i < 20; ++i) {
    wraps.Byte(kHonestRecord)
        .Number(uint16_t(900))
        .Number(uint32_t(0))
        .Byte(kPeek)
        .Byte(kPop)
        .Byte(kRelease);
  }
  return {
      conversation.Take(),
      wraps.Take(),
      Script()
          .Byte(kSetState)
          .Byte(0)
          .Number(RingFormat::StateOf(2, 5000, 0))
          .Byte(kPeek)
          .Byte(kPop)
          .Take(),
      Script()
          .Byte(kSetState)
          .Byte(0)
          .Number(RingFormat::StateOf(RingFormat::kPad, 4088, 0))
          .Byte(kPeek)
          .Byte(kPop)
          .Take(),
      Script()
          .Byte(kSetState)
          .Byte(0)
          .Number(RingFormat::StateOf(0x82, 1000, 9))
          .Byte(kPeekOpen)
          .Take(),
      Script()
          .Byte(kReserve)
          .Number(uint16_t(1000))
          .Byte(1)
          .Byte(kPublish)
          .Byte(kSetHead)
          .Number(~uint64_t{0})
          .Byte(kReserve)
          .Number(uint16_t(900))
          .Byte(0)
          .Take(),
  };
}

}  // namespace entrain::fuzz
