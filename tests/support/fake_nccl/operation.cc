#include "tests/support/fake_nccl/operation.h"

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "lib/base/dtype.h"
#include "tests/support/fake_nccl/cuda_of_fake.h"

namespace fake_nccl {
namespace {

using entrain::nccl::DataType;
using entrain::nccl::RedOp;
using Room = std::shared_ptr<std::vector<char>>;

// The type in which a program's element is combined.
template <typename T>
struct Plain {
  using Value = T;
  static T Load(T bits) { return bits; }
  static T Store(T value) { return value; }
};
struct Half {
  using Value = float;
  static float Load(uint16_t bits) { return entrain::F16ToFloat(bits); }
  static uint16_t Store(float value) { return entrain::FloatToF16(value); }
};
struct Brain {
  using Value = float;
  static float Load(uint16_t bits) { return entrain::BF16ToFloat(bits); }
  static uint16_t Store(float value) { return entrain::FloatToBF16(value); }
};

template <typename Value>
Value Combine(Value a, Value b, RedOp op) {
  if constexpr (std::is_integral_v<Value>) {
    using Bits = std::make_unsigned_t<Value>;
    if (op == entrain::nccl::kProd) {
      return static_cast<Value>(uint64_t{static_cast<Bits>(a)} * static_cast<Bits>(b));
    }
    if (op != entrain::nccl::kMin && op != entrain::nccl::kMax) {
      return static_cast<Value>(uint64_t{static_cast<Bits>(a)} + static_cast<Bits>(b));
    }
  } else {
    if (op == entrain::nccl::kProd) {
      return a * b;
    }
    if (op != entrain::nccl::kMin && op != entrain::nccl::kMax) {
      return a + b;
    }
  }
  return (op == entrain::nccl::kMin) == (a < b) ? a : b;
}

template <typename Element, typename Codec>
void CombineAll(const std::vector<const char*>& sources, char* to, size_t count,
                const Combination& how) {
  using Value = typename Codec::Value;
  const bool average = how.op == entrain::nccl::kAvg && !how.scaled;
  const auto factor = static_cast<Value>(how.scaled ? how.factor
                                         : average  ? 1.0 / static_cast<double>(sources.size())
                                                    : 1.0);
  for (size_t i = 0; i < count; ++i) {
    Value sum{};
    for (size_t r = 0; r < sources.size(); ++r) {
      Element element;
      std::memcpy(&element, sources[r] + i * sizeof(Element), sizeof(Element));
      Value value = Codec::Load(element);
      if (how.scaled || average) {
        value = static_cast<Value>(value * factor);
      }
      sum = r == 0 ? value : Combine(sum, value, how.op);
    }
    const Element result = Codec::Store(sum);
    std::memcpy(to + i * sizeof(Element), &result, sizeof(result));
  }
}

void CombineAny(const std::vector<const char*>& sources, char* to, size_t count,
                const Combination& how) {
  switch (how.type) {
    case entrain::nccl::kInt8:
      return CombineAll<int8_t, Plain<int8_t>>(sources, to, count, how);
    case entrain::nccl::kUint8:
      return CombineAll<uint8_t, Plain<uint8_t>>(sources, to, count, how);
    case entrain::nccl::kInt32:
      return CombineAll<int32_t, Plain<int32_t>>(sources, to, count, how);
    case entrain::nccl::kUint32:
      return CombineAll<uint32_t, Plain<uint32_t>>(sources, to, count, how);
    case entrain::nccl::kInt64:
      return CombineAll<int64_t, Plain<int64_t>>(sources, to, count, how);
    case entrain::nccl::kUint64:
      return CombineAll<uint64_t, Plain<uint64_t>>(sources, to, count, how);
    case entrain::nccl::kFloat16:
      return CombineAll<uint16_t, Half>(sources, to, count, how);
    case entrain::nccl::kBfloat16:
      return CombineAll<uint16_t, Brain>(sources, to, count, how);
    case entrain::nccl::kFloat32:
      return CombineAll<float, Plain<float>>(sources, to, count, how);
    case entrain::nccl::kFloat64:
      return CombineAll<double, Plain<double>>(sources, to, count, how);
  }
}

// A copy of memory, made before anything is sent or received.
Room Copied(Operation* operation, Memory memory) {
  auto room = std::make_shared<std::vector<char>>(memory.bytes);
  operation->rooms.push_back(room);
  operation->before.push_back([room, memory] {
    if (memory.bytes == 0) {
      return true;  // no bytes, no memory to look at
    }
    const char* const seen = memory.Seen();
    if (seen != nullptr) {
      std::memcpy(room->data(), seen, memory.bytes);
    }
    return seen != nullptr;
  });
  return room;
}

// Returns this rank's contribution: a copy, multiplied by its factor.
Room Contribution(Operation* operation, Memory memory, size_t count, const Combination& how) {
  Room room = Copied(operation, memory);
  if (how.scaled) {
    operation->before.push_back([room, count, how] {
      CombineAny({room->data()}, room->data(), count, how);
      return true;
    });
  }
  return room;
}

Room Empty(Operation* operation, size_t bytes) {
  auto room = std::make_shared<std::vector<char>>(bytes);
  operation->rooms.push_back(room);
  return room;
}

// In place there is nothing to write. NCCL writes nothing there, or writes the same bytes through
// NVLink's switches, which does not disturb a concurrent reader.
void PutAfter(Operation* operation, Room room, const void* from, Memory to) {
  if (to.at == from) {
    return;
  }
  operation->after.push_back([room = std::move(room), to] {
    if (to.bytes == 0) {
      return true;
    }
    char* const seen = to.Seen();
    if (seen != nullptr) {
      std::memcpy(seen, room->data(), to.bytes);
    }
    return seen != nullptr;
  });
}

const char* Part(const void* of, size_t bytes, int rank) {
  return static_cast<const char*>(of) + bytes * static_cast<size_t>(rank);
}

}  // namespace

char* Memory::Seen() const {
  return static_cast<char*>(TheCuda().Seen(at, bytes));
}

void Operation::Append(Operation other) {
  const auto move = [](auto& from, auto& to) {
    std::move(from.begin(), from.end(), std::back_inserter(to));
  };
  move(other.transfers, transfers);
  move(other.before, before);
  move(other.after, after);
  move(other.rooms, rooms);
}

size_t SizeOf(DataType type) {
  constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kSizes[type];
}

double ReadScalar(const void* scalar, DataType type) {
  double value = 0;
  const auto read = [&](auto as) {
    std::memcpy(&as, scalar, sizeof(as));
    value = static_cast<double>(as);
  };
  switch (type) {
    case entrain::nccl::kInt8:
      read(int8_t{});
      break;
    case entrain::nccl::kUint8:
      read(uint8_t{});
      break;
    case entrain::nccl::kInt32:
      read(int32_t{});
      break;
    case entrain::nccl::kUint32:
      read(uint32_t{});
      break;
    case entrain::nccl::kInt64:
      read(int64_t{});
      break;
    case entrain::nccl::kUint64:
      read(uint64_t{});
      break;
    case entrain::nccl::kFloat32:
      read(float{});
      break;
    default:
      read(double{});
      break;
  }
  return value;
}

Operation Reduce(Place place, const void* from, void* to, size_t count, Combination how, int root,
                 bool parts) {
  Operation operation;
  const size_t bytes = count * SizeOf(how.type);
  std::vector<Room> sources;
  for (int r = 0; r < place.size; ++r) {
    if (root < 0 || r == root || place.rank == root) {
      const bool receives = root < 0 || place.rank == root;
      if (r == place.rank) {
        sources.push_back(
            Contribution(&operation, {parts ? Part(from, bytes, r) : from, bytes}, count, how));
        continue;
      }
      if (root < 0 || r == root) {
        const Room sent =
            Contribution(&operation, {parts ? Part(from, bytes, r) : from, bytes}, count, how);
        operation.transfers.push_back({true, r, {}, sent.get()});
      }
      if (receives) {
        sources.push_back(Empty(&operation, bytes));
        operation.transfers.push_back({false, r, {}, sources.back().get()});
      }
    }
  }
  if (root < 0 || place.rank == root) {
    how.scaled = false;  // already scaled
    operation.after.push_back([sources, to, bytes, count, how] {
      char* const seen = Memory{to, bytes}.Seen();
      std::vector<const char*> from_ranks;
      for (const Room& room : sources) {
        from_ranks.push_back(room->data());
      }
      if (seen != nullptr) {
        CombineAny(from_ranks, seen, count, how);
      }
      return seen != nullptr || bytes == 0;
    });
  }
  return operation;
}

Operation Broadcast(Place place, const void* from, void* to, size_t bytes, int root) {
  Operation operation;
  if (place.rank != root) {
    operation.transfers.push_back({false, root, {to, bytes}});
    return operation;
  }
  const Room room = Copied(&operation, {from, bytes});
  for (int r = 0; r < place.size; ++r) {
    if (r != root) {
      operation.transfers.push_back({true, r, {}, room.get()});
    }
  }
  PutAfter(&operation, room, from, {to, bytes});
  return operation;
}

Operation AllGather(Place place, const void* from, void* to, size_t bytes) {
  Operation operation;
  const Room room = Copied(&operation, {from, bytes});
  for (int r = 0; r < place.size; ++r) {
    if (r != place.rank) {
      operation.transfers.push_back({true, r, {}, room.get()});
      operation.transfers.push_back({false, r, {Part(to, bytes, r), bytes}});
    }
  }
  PutAfter(&operation, room, from, {Part(to, bytes, place.rank), bytes});
  return operation;
}

// Makes no copy, so that buffers that a program overlaps really overlap.
Operation Send(const void* from, size_t bytes, int peer) {
  Operation operation;
  operation.transfers.push_back({true, peer, {from, bytes}});
  return operation;
}

Operation Receive(void* to, size_t bytes, int peer) {
  Operation operation;
  operation.transfers.push_back({false, peer, {to, bytes}});
  return operation;
}

}  // namespace fake_nccl
