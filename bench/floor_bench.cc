// floor-bench: what is left when nothing but the data movement itself is done (bench/floor.h),
// measured as entrain-perf measures Entrain.
#include <memory>
#include <string>
#include <vector>

#include "bench/floor.h"
#include "bench/peer_program.h"
#include "tools/command_line.h"
#include "tools/perf/cores.h"

namespace entrain::perf {
namespace {

class FloorPeer final : public Peer {
 public:
  const char* name() const override { return "floor-bench"; }
  const char* about() const override {
    return "Measures a bare hand-written exchange of f32 between processes of this machine, "
           "through "
           "shared memory or over TCP loopback, as entrain-perf measures Entrain: same loop, same "
           "columns, same JSON.";
  }
  void AddOptions(CommandLine& line) override {
    line.Choice("--transport", transport_, "shm or tcp (shm)", {"shm", "tcp"});
  }
  std::vector<std::string> Algorithms(CallKind collective) const override {
    const bool scan = collective == CallKind::kScan || collective == CallKind::kExclusiveScan;
    return scan ? std::vector<std::string>() : std::vector<std::string>{"floor"};
  }
  void BeforeRanks(int ranks) override {
    crowded_ = ranks > Cores();  // a pinned rank would see one core
    floor_ = transport_ == "tcp" ? MakeTcpFloor(ranks) : MakeShmFloor(ranks);
  }
  absl::StatusOr<std::unique_ptr<Subject>> Join(const std::string&, int rank, int) override {
    return floor_.ok() ? (*floor_)->Join(rank, crowded_) : floor_.status();
  }

 private:
  std::string transport_ = "shm";
  bool crowded_ = false;
  absl::StatusOr<std::unique_ptr<Floor>> floor_ = nullptr;
};

}  // namespace
}  // namespace entrain::perf

int main(int argc, char** argv) {
  entrain::perf::FloorPeer floor;
  return entrain::perf::RunPeer(floor, argc, argv);
}
