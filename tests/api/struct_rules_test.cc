// The rules of size-first structs, for every struct that a call takes or fills: an uninitialised
// struct is refused, an unknown tail must be zero, and a shorter struct is accepted.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

struct StructCase {
  const char* name;
  size_t size;
  size_t shortest;  // bytes without which the call cannot succeed
  std::function<void(void*, size_t)> init_sized;
  std::function<entrain_status_t(void*)> use;
  void init(void* at) const { init_sized(at, size); }
};

template <typename T>
StructCase Case(const char* name, size_t shortest, int32_t which,
                std::function<entrain_status_t(T*)> use) {
  return {name, sizeof(T), shortest,
          [which](void* at, size_t bytes) { entrain_struct_init(which, at, bytes); },
          [use = std::move(use)](void* at) { return use(static_cast<T*>(at)); }};
}

// A single rank, and a model on it.
class StructRules : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(entrain_store_open(NewStoreUrl().c_str(), 0, &store_));
    entrain_comm_config_t config;
    entrain_comm_config_init(&config);
    config.store = store_;
    ASSERT_OK(entrain_comm_create(&config, &comm_));
    entrain_mesh_config_t mesh_config;
    entrain_mesh_config_init(&mesh_config);
    ASSERT_OK(entrain_mesh_create(comm_, &mesh_config, &mesh_));
    ASSERT_OK(CreateShard(nullptr, &shard_));
    ASSERT_OK(CreateShard(nullptr, &spare_));
    ASSERT_OK(CreateEdit(nullptr, shard_, &edit_));
    entrain_optim_config_t optim_config;
    entrain_optim_config_init(&optim_config);
    ASSERT_OK(entrain_optim_create(&optim_config, &optim_));
    ASSERT_OK(CreateAcco(nullptr, &acco_));
  }
  void TearDown() override {
    entrain_acco_destroy(acco_);
    entrain_optim_destroy(optim_);
    entrain_edit_destroy(edit_);
    entrain_shard_destroy(spare_);
    entrain_shard_destroy(shard_);
    entrain_mesh_destroy(mesh_);
    entrain_comm_destroy(comm_);
    entrain_store_destroy(store_);
  }
  entrain_status_t CreateShard(entrain_shard_config_t* config, entrain_shard_t** shard) {
    entrain_shard_config_t standard;
    entrain_shard_config_init(&standard);
    entrain_shard_config_t* used = config == nullptr ? &standard : config;
    used->layers = 1;
    used->layer_counts = &kLayerCount;
    const entrain_status_t code = entrain_shard_create(mesh_, used, shard);
    return code != ENTRAIN_OK ? code : entrain_shard_bind(*shard, params_, grads_, ENTRAIN_F32);
  }
  entrain_status_t CreateEdit(entrain_edit_config_t* config, entrain_shard_t* shard,
                              entrain_edit_t** edit) {
    entrain_edit_config_t standard;
    entrain_edit_config_init(&standard);
    entrain_edit_config_t* used = config == nullptr ? &standard : config;
    used->shard = shard;
    return entrain_edit_create(mesh_, used, edit);
  }
  entrain_status_t CreateAcco(entrain_acco_config_t* config, entrain_acco_t** acco) {
    entrain_acco_config_t standard;
    entrain_acco_config_init(&standard);
    entrain_acco_config_t* used = config == nullptr ? &standard : config;
    used->params = params_;
    used->count = kLayerCount;
    used->optim = optim_;
    return entrain_acco_create(comm_, used, acco);
  }
  // Makes A-EDiT whose replicas have met once.
  entrain_status_t MakeMetEdit(entrain_edit_t** edit) {
    entrain_edit_config_t config;
    entrain_edit_config_init(&config);
    config.use_async = 1;
    config.local_sgd_sync_time = 1e-4;
    config.min_total_global_steps = 1;
    entrain_status_t code = CreateEdit(&config, spare_, edit);
    for (int32_t syncing = 0; code == ENTRAIN_OK && syncing == 0;) {
      code = entrain_edit_begin_forward(*edit, 1, 1, &syncing, nullptr);
      if (code == ENTRAIN_OK && syncing == 0) {
        code = entrain_edit_end_step(*edit);
      }
    }
    return code;
  }
  // Joins comm_ with this config, while a thread takes newcomers in.
  entrain_status_t JoinThis(entrain_join_config_t* config) {
    entrain_runtime_t* runtime = nullptr;
    EXPECT_OK(entrain_runtime_create(nullptr, &runtime));
    config->runtime = runtime;
    config->store = store_;
    std::atomic<bool> over{false};
    std::thread member([&] {
      entrain_grow_config_t grow;
      entrain_grow_config_init(&grow);
      grow.store = store_;
      entrain_comm_t* grown = nullptr;
      while (!over && grown == nullptr) {
        ASSERT_OK(entrain_comm_grow(comm_, &grow, &grown));
      }
      entrain_comm_destroy(grown);
    });
    entrain_comm_t* joined = nullptr;
    const entrain_status_t code = entrain_comm_join(config, &joined);
    over = true;
    member.join();
    entrain_comm_destroy(joined);
    entrain_runtime_destroy(runtime);
    return code;
  }
  std::vector<StructCase> Cases();

  static constexpr size_t kLayerCount = 4;
  float params_[4] = {}, grads_[4] = {};
  entrain_store_t* store_ = nullptr;
  entrain_comm_t* comm_ = nullptr;
  entrain_mesh_t* mesh_ = nullptr;
  entrain_shard_t* shard_ = nullptr;
  // For EDiT objects of the cases: each needs its own shard.
  entrain_shard_t* spare_ = nullptr;
  entrain_edit_t* edit_ = nullptr;
  entrain_optim_t* optim_ = nullptr;
  entrain_acco_t* acco_ = nullptr;
};

std::vector<StructCase> StructRules::Cases() {
  return {
      Case<entrain_runtime_config_t>("entrain_runtime_config_t", 8, ENTRAIN_STRUCT_RUNTIME_CONFIG,
                                     [](auto* config) {
                                       entrain_runtime_t* runtime = nullptr;
                                       const auto code = entrain_runtime_create(config, &runtime);
                                       entrain_runtime_destroy(runtime);
                                       return code;
                                     }),
      Case<entrain_comm_config_t>("entrain_comm_config_t", offsetof(entrain_comm_config_t, rank),
                                  ENTRAIN_STRUCT_COMM_CONFIG,
                                  [this](auto* config) {
                                    config->store = store_;
                                    config->name = "rules";
                                    entrain_comm_t* comm = nullptr;
                                    const auto code = entrain_comm_create(config, &comm);
                                    entrain_comm_destroy(comm);
                                    return code;
                                  }),
      Case<entrain_grow_config_t>("entrain_grow_config_t",
                                  offsetof(entrain_grow_config_t, min_newcomers),
                                  ENTRAIN_STRUCT_GROW_CONFIG,
                                  [this](auto* config) {
                                    config->store = store_;
                                    entrain_comm_t* grown = nullptr;
                                    return entrain_comm_grow(comm_, config, &grown);
                                  }),
      Case<entrain_join_config_t>("entrain_join_config_t", offsetof(entrain_join_config_t, name),
                                  ENTRAIN_STRUCT_JOIN_CONFIG,
                                  [this](auto* config) { return JoinThis(config); }),
      Case<entrain_store_functions_t>(
          "entrain_store_functions_t", offsetof(entrain_store_functions_t, remove),
          ENTRAIN_STRUCT_STORE_FUNCTIONS,
          [](auto* functions) {
            functions->set = [](void*, const char*, const void*, size_t) { return 0; };
            functions->get = [](void*, const char*, int64_t, void*, size_t*) { return 0; };
            functions->add = [](void*, const char*, int64_t, int64_t*) { return 0; };
            entrain_store_t* store = nullptr;
            const auto code = entrain_store_create(functions, &store);
            entrain_store_destroy(store);
            return code;
          }),
      Case<entrain_work_info_t>("entrain_work_info_t", 8, ENTRAIN_STRUCT_WORK_INFO,
                                [this](auto* info) {
                                  entrain_work_t* work = nullptr;
                                  EXPECT_OK(entrain_barrier(comm_, nullptr, &work));
                                  EXPECT_OK(entrain_work_wait(work, -1));
                                  const auto code = entrain_work_info(work, info);
                                  entrain_work_free(work);
                                  return code;
                                }),
      Case<entrain_comm_stats_t>("entrain_comm_stats_t", 8, ENTRAIN_STRUCT_COMM_STATS,
                                 [this](auto* stats) { return entrain_comm_stats(comm_, stats); }),
      Case<entrain_member_t>("entrain_member_t", 8, ENTRAIN_STRUCT_MEMBER,
                             [this](auto* member) {
                               int32_t count = 1;
                               return entrain_comm_members(comm_, member, &count);
                             }),
      Case<entrain_shrink_config_t>("entrain_shrink_config_t", 8, ENTRAIN_STRUCT_SHRINK_CONFIG,
                                    [this](auto* config) {
                                      entrain_comm_t* next = nullptr;
                                      const auto code = entrain_comm_shrink(comm_, config, &next);
                                      entrain_comm_destroy(next);
                                      return code;
                                    }),
      Case<entrain_error_t>("entrain_error_t", 8, ENTRAIN_STRUCT_ERROR,
                            [](auto* error) { return entrain_last_error_record(error); }),
      Case<entrain_error_t>("entrain_error_t", 8, ENTRAIN_STRUCT_ERROR,
                            [this](auto* error) { return entrain_comm_error(comm_, error); }),
      Case<entrain_call_options_t>(
          "entrain_call_options_t", 8, ENTRAIN_STRUCT_CALL_OPTIONS,
          [this](auto* options) { return entrain_barrier(comm_, options, nullptr); }),
      Case<entrain_gta_config_t>("entrain_gta_config_t", 8, ENTRAIN_STRUCT_GTA_CONFIG,
                                 [](auto* config) {
                                   entrain_reduction_t* reduction = nullptr;
                                   const auto code = entrain_reduction_gta(config, &reduction);
                                   entrain_reduction_destroy(reduction);
                                   return code;
                                 }),
      Case<entrain_optim_config_t>("entrain_optim_config_t", 8, ENTRAIN_STRUCT_OPTIM_CONFIG,
                                   [](auto* config) {
                                     entrain_optim_t* optim = nullptr;
                                     const auto code = entrain_optim_create(config, &optim);
                                     entrain_optim_destroy(optim);
                                     return code;
                                   }),
      Case<entrain_optim_info_t>("entrain_optim_info_t", 8, ENTRAIN_STRUCT_OPTIM_INFO,
                                 [this](auto* info) { return entrain_optim_info(optim_, info); }),
      Case<entrain_mesh_config_t>("entrain_mesh_config_t", 8, ENTRAIN_STRUCT_MESH_CONFIG,
                                  [this](auto* config) {
                                    entrain_mesh_t* mesh = nullptr;
                                    const auto code = entrain_mesh_create(comm_, config, &mesh);
                                    entrain_mesh_destroy(mesh);
                                    return code;
                                  }),
      Case<entrain_shard_config_t>("entrain_shard_config_t",
                                   offsetof(entrain_shard_config_t, param_dtype),
                                   ENTRAIN_STRUCT_SHARD_CONFIG,
                                   [this](auto* config) {
                                     entrain_shard_t* shard = nullptr;
                                     const auto code = CreateShard(config, &shard);
                                     entrain_shard_destroy(shard);
                                     return code;
                                   }),
      Case<entrain_shard_layer_t>(
          "entrain_shard_layer_t", 8, ENTRAIN_STRUCT_SHARD_LAYER,
          [this](auto* layer) { return entrain_shard_layer_info(shard_, 0, layer); }),
      Case<entrain_shard_stats_t>(
          "entrain_shard_stats_t", 8, ENTRAIN_STRUCT_SHARD_STATS,
          [this](auto* stats) { return entrain_shard_stats(shard_, stats); }),
      Case<entrain_edit_config_t>("entrain_edit_config_t",
                                  offsetof(entrain_edit_config_t, local_sgd_sync_interval),
                                  ENTRAIN_STRUCT_EDIT_CONFIG,
                                  [this](auto* config) {
                                    entrain_edit_t* edit = nullptr;
                                    const auto code = CreateEdit(config, spare_, &edit);
                                    entrain_edit_destroy(edit);
                                    return code;
                                  }),
      Case<entrain_option_t>(
          "entrain_option_t", 8, ENTRAIN_STRUCT_OPTION,
          [](auto* option) { return entrain_option(ENTRAIN_METHOD_EDIT, 0, option); }),
      Case<entrain_checkpoint_config_t>(
          "entrain_checkpoint_config_t", offsetof(entrain_checkpoint_config_t, kind),
          ENTRAIN_STRUCT_CHECKPOINT_CONFIG,
          [this](auto* config) {
            static const std::string directory = testing::TempDir();
            config->save_dir = directory.c_str();
            config->ckpt_name = "entrain-struct-rules";
            int32_t syncing = 0;
            EXPECT_OK(entrain_edit_begin_forward(edit_, 1, 1, &syncing, nullptr));
            const auto code = entrain_edit_save(edit_, config, nullptr, nullptr);
            std::remove((directory + "entrain-struct-rules.ckpt").c_str());
            return code;
          }),
      Case<entrain_checkpoint_functions_t>(
          "entrain_checkpoint_functions_t", offsetof(entrain_checkpoint_functions_t, read_at),
          ENTRAIN_STRUCT_CHECKPOINT_FUNCTIONS,
          [this](auto* functions) {
            functions->write_at = [](void*, int64_t, const void*, size_t) { return 0; };
            functions->finish = [](void*) { return 0; };
            int32_t syncing = 0;
            EXPECT_OK(entrain_edit_begin_forward(edit_, 1, 1, &syncing, nullptr));
            return entrain_edit_save(edit_, nullptr, functions, nullptr);
          }),
      Case<entrain_state_info_t>("entrain_state_info_t", 8, ENTRAIN_STRUCT_STATE_INFO,
                                 [this](auto* info) {
                                   entrain_state_t* state = nullptr;
                                   EXPECT_OK(entrain_acco_open_state(
                                       acco_, ENTRAIN_CHECKPOINT_PORTABLE, &state, nullptr));
                                   const auto code = entrain_state_info(state, 0, info);
                                   entrain_state_destroy(state);
                                   return code;
                                 }),
      Case<entrain_acco_config_t>("entrain_acco_config_t", offsetof(entrain_acco_config_t, step),
                                  ENTRAIN_STRUCT_ACCO_CONFIG,
                                  [this](auto* config) {
                                    entrain_acco_t* acco = nullptr;
                                    const auto code = CreateAcco(config, &acco);
                                    entrain_acco_destroy(acco);
                                    return code;
                                  }),
      Case<entrain_acco_info_t>("entrain_acco_info_t", 8, ENTRAIN_STRUCT_ACCO_INFO,
                                [this](auto* info) { return entrain_acco_info(acco_, info); }),
      Case<entrain_edit_replica_t>("entrain_edit_replica_t", 8, ENTRAIN_STRUCT_EDIT_REPLICA,
                                   [this](auto* replica) {
                                     entrain_edit_t* edit = nullptr;
                                     EXPECT_OK(MakeMetEdit(&edit));
                                     const auto code = entrain_edit_replica(edit, 0, replica);
                                     entrain_edit_destroy(edit);
                                     return code;
                                   }),
      Case<entrain_edit_info_t>("entrain_edit_info_t", 8, ENTRAIN_STRUCT_EDIT_INFO,
                                [this](auto* info) { return entrain_edit_info(edit_, info); }),
  };
}

// A struct with free space behind it.
struct Room {
  alignas(16) char bytes[2048] = {};
  void SetSize(size_t size) { std::memcpy(bytes, &size, sizeof(size)); }
};

// The cases contain every struct of the headers that has an init function.
TEST_F(StructRules, NoStructIsMissing) {
  std::set<std::string> declared, tested;
  for (const auto& entry : std::filesystem::directory_iterator(ENTRAIN_HEADERS)) {
    std::ifstream header(entry.path());
    const std::regex init("static ENTRAIN_INLINE void (entrain_[a-z_]+)_init\\(.*");
    std::smatch match;
    for (std::string line; std::getline(header, line);) {
      if (std::regex_match(line, match, init)) {
        declared.insert(match[1].str() + "_t");
      }
    }
  }
  for (const StructCase& one : Cases()) {
    tested.insert(one.name);
  }
  EXPECT_EQ(tested, declared);
}

TEST_F(StructRules, AnInitialisedStructIsAccepted) {
  for (const StructCase& tested : Cases()) {
    Room room;
    tested.init(room.bytes);
    EXPECT_OK(tested.use(room.bytes)) << tested.name;
  }
}

TEST_F(StructRules, AStructThatWasNeverInitialisedIsRefused) {
  for (const StructCase& tested : Cases()) {
    Room room;
    tested.init(room.bytes);
    room.SetSize(0);
    EXPECT_FAILS(tested.use(room.bytes), ENTRAIN_INVALID_ARGUMENT, tested.name);
    room.SetSize(sizeof(size_t) - 1);
    EXPECT_FAILS(tested.use(room.bytes), ENTRAIN_INVALID_ARGUMENT, tested.name);
  }
}

TEST_F(StructRules, InitStopsAtTheCallersSize) {
  for (const StructCase& tested : Cases()) {
    for (size_t size = 0; size <= tested.size + 32; ++size) {
      Room room;
      std::memset(room.bytes, 0x5a, sizeof(room.bytes));
      tested.init_sized(room.bytes, size);
      size_t written = 0;
      std::memcpy(&written, room.bytes, sizeof(written));
      if (size >= sizeof(size)) {
        ASSERT_EQ(written, size) << tested.name;
      }
      for (size_t i = size < sizeof(size) ? 0 : size; i < sizeof(room.bytes); ++i) {
        ASSERT_EQ(room.bytes[i], 0x5a) << tested.name << " of " << size << ", byte " << i;
      }
      for (size_t i = tested.size; i < size; ++i) {  // unknown to this library
        ASSERT_EQ(room.bytes[i], 0) << tested.name << " of " << size << ", byte " << i;
      }
    }
  }
}

TEST_F(StructRules, InitOfNullDoesNothing) {
  for (const StructCase& tested : Cases()) {
    tested.init(nullptr);
  }
  entrain_struct_init(-1, nullptr, 64);
}

TEST_F(StructRules, AStructThatTheLibraryDoesNotKnowStaysUninitialised) {
  for (const int32_t which : {-1, ENTRAIN_STRUCT_ACCO_INFO + 1}) {
    Room room;
    std::memset(room.bytes, 0x5a, sizeof(room.bytes));
    entrain_struct_init(which, room.bytes, 64);
    EXPECT_TRUE(std::all_of(room.bytes, room.bytes + 64, [](char byte) { return byte == 0; }));
    EXPECT_EQ(room.bytes[64], 0x5a);
  }
}

TEST_F(StructRules, ASizeThatCutsAFieldIsRefused) {
  for (const StructCase& tested : Cases()) {
    Room room;
    tested.init(room.bytes);
    room.SetSize(tested.shortest + 2);
    EXPECT_FAILS(tested.use(room.bytes), ENTRAIN_INVALID_ARGUMENT, tested.name);
  }
}

// The fields of more than 8 bytes, at every size that is a multiple of 8.
TEST_F(StructRules, ASizeThatCutsALongFieldIsRefused) {
  struct Field {
    const char* name;
    size_t begin, end;
  };
#define FIELD(type, field)                                                    \
  Field {                                                                     \
#type, offsetof(type, field), offsetof(type, field) + sizeof(type::field) \
  }
  const Field fields[] = {FIELD(entrain_error_t, peer_id),       FIELD(entrain_error_t, operation),
                          FIELD(entrain_error_t, peer_address),  FIELD(entrain_error_t, text),
                          FIELD(entrain_work_info_t, operation), FIELD(entrain_work_info_t, comm)};
#undef FIELD
  for (const StructCase& tested : Cases()) {
    for (const Field& field : fields) {
      for (size_t size = field.begin + 8;
           tested.name == std::string(field.name) && size < field.end; size += 8) {
        Room room;
        tested.init_sized(room.bytes, size);
        EXPECT_FAILS(tested.use(room.bytes), ENTRAIN_INVALID_ARGUMENT, "cuts a field");
      }
    }
  }
}

TEST_F(StructRules, AnUnknownTailMustBeZero) {
  for (const StructCase& tested : Cases()) {
    Room room;
    tested.init(room.bytes);
    room.SetSize(tested.size + 24);
    EXPECT_OK(tested.use(room.bytes)) << tested.name;
    tested.init(room.bytes);
    room.SetSize(tested.size + 24);
    room.bytes[tested.size + 17] = 1;
    EXPECT_FAILS(tested.use(room.bytes), ENTRAIN_INVALID_ARGUMENT, tested.name);
  }
}

TEST_F(StructRules, OfAShorterStructTheMissingFieldsAreDefaults) {
  for (const StructCase& tested : Cases()) {
    Room room;
    tested.init(room.bytes);
    room.SetSize(tested.shortest);
    // The library must not read the memory behind an old caller's shorter struct.
    std::memset(room.bytes + tested.shortest, 0x5a, sizeof(room.bytes) - tested.shortest);
    EXPECT_OK(tested.use(room.bytes)) << tested.name;
  }
}

TEST_F(StructRules, ResultsStopAtTheCallersSize) {
  Room room;
  std::memset(room.bytes, 0x5a, sizeof(room.bytes));
  const size_t size = offsetof(entrain_comm_stats_t, bytes_sent);
  room.SetSize(size);
  ASSERT_OK(entrain_comm_stats(comm_, reinterpret_cast<entrain_comm_stats_t*>(room.bytes)));
  uint64_t calls = 99;
  std::memcpy(&calls, room.bytes + offsetof(entrain_comm_stats_t, calls), sizeof(calls));
  EXPECT_LT(calls, 99u);
  for (size_t i = size; i < sizeof(entrain_comm_stats_t) + 16; ++i) {
    ASSERT_EQ(room.bytes[i], 0x5a) << "byte " << i;
  }
}

}  // namespace
}  // namespace entrain_test
