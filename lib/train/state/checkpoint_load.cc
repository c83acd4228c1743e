#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/checkpoint/checkpoint_file.h"
#include "lib/checkpoint/leftovers.h"
#include "lib/train/identity.h"
#include "lib/train/state/checkpoint.h"

namespace entrain {
namespace {

class Loader {
 public:
  Loader(AllRanks& all, const ModelPart& part, const CheckpointOptions& options, StateList* state)
      : all_(all), part_(part), options_(options), state_(*state), path_(options.path()) {}

  absl::Status Run();

 private:
  // Elements [first, first + count) of a saved array. The loader copies them to elements
  // [at, at + count) of the item.
  struct Piece {
    StateItem* item;
    int64_t first, count, at;
  };

  absl::Status Prepare();
  absl::Status OpenHead();
  absl::Status ShareHead();
  absl::Status CheckFits() const;
  absl::Status CheckMesh() const;
  absl::Status CheckLayers() const;
  absl::Status CheckPlaces() const;
  absl::Status FindPieces(StateItem* item);
  bool Is(const SavedArray& array, const SavedArray& wanted) const;
  absl::StatusOr<std::unique_ptr<CheckpointReader>> Open() const;
  void SayWhatDiffers() const;
  void SayWhatIsDropped() const;
  absl::StatusOr<CheckpointReader*> File(int32_t file);

  absl::Status ReadOwn();
  absl::Status HearAll();
  absl::Status ReadWhole(const SavedArray& array, std::byte* to);
  absl::Status Unfit(absl::string_view why) const {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": ", why));
  }

  AllRanks& all_;
  const ModelPart& part_;
  const CheckpointOptions& options_;
  StateList& state_;
  const std::string path_;
  Manifest manifest_;
  Digest digest_{};                                            // of rank 0's manifest
  std::map<int32_t, std::unique_ptr<CheckpointReader>> open_;  // by file number in the manifest
  std::map<size_t, std::vector<Piece>> pieces_;                // by array index in the manifest
};

absl::Status Loader::Run() {
  ENTRAIN_RETURN_IF_ERROR(all_.Agree(Prepare()));
  ENTRAIN_RETURN_IF_ERROR(all_.Agree(all_.first() ? OpenHead() : absl::OkStatus()));
  ENTRAIN_RETURN_IF_ERROR(ShareHead());
  ENTRAIN_RETURN_IF_ERROR(all_.Agree(CheckFits()));
  absl::Status found;
  for (StateItem& item : state_.items()) {
    found.Update(FindPieces(&item));
  }
  ENTRAIN_RETURN_IF_ERROR(all_.Agree(found));
  const absl::Status read = options_.rank0_only ? HearAll() : all_.Agree(ReadOwn());
  if (read.ok() && all_.first()) {
    SayWhatIsDropped();
    SayWhatDiffers();
    if (!options_.functions) {
      ClearLeftovers(options_.directory, ChangedAt(path_));
    }
  }
  return read;
}

// If the checkpoint is portable, logs the arrays of single ranks or replicas that this run does not
// use.
void Loader::SayWhatIsDropped() const {
  if (options_.kind != CheckpointKind::kPortable || manifest_.kind != CheckpointKind::kPortable) {
    return;
  }
  std::set<std::string> names;
  for (const SavedArray& array : manifest_.arrays) {
    if (array.rank >= 0) {
      names.insert(array.name);
    }
  }
  for (const StateItem& item : state_.items()) {
    names.erase(item.name);
  }
  if (!names.empty()) {
    ENTRAIN_LOG(kInfo, path_, ": dropped, since this run's options have no place for them: ",
                absl::StrJoin(names, ", "));
  }
}

// A user may continue a run with another learning rate on purpose, or may give the directory of
// another run by mistake. So differences are no error, but a warning names them.
void Loader::SayWhatDiffers() const {
  if (const std::string differs = IdentityDiffers(manifest_.identity, part_.identity);
      !differs.empty()) {
    ENTRAIN_LOG(kWarning, path_, " is of a run with another identity: ", differs);
  }
}

absl::Status Loader::Prepare() {
  ENTRAIN_RETURN_IF_ERROR(state_.status());
  return state_.Allocate();
}

absl::Status Loader::OpenHead() {
  ENTRAIN_ASSIGN_OR_RETURN(open_[0], Open());
  manifest_ = open_[0]->manifest();
  digest_ = open_[0]->manifest_digest();
  if (options_.functions && !manifest_.files.empty()) {
    return Unfit(
        absl::StrCat("refers to ", manifest_.files.size(),
                     " files of other ranks, which its functions cannot read; load it from "
                     "its directory, or save it with full_state_dict 1"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> Loader::Open() const {
  if (!options_.functions) {
    return CheckpointReader::Open(path_);
  }
  ENTRAIN_ASSIGN_OR_RETURN(auto source, SourceOf(*options_.functions));
  return CheckpointReader::Open(std::move(source));
}

// Sends rank 0's manifest to all ranks. A rank that reads the files itself must find a manifest
// with the same digest (File).
absl::Status Loader::ShareHead() {
  std::string text = ToJson(manifest_);
  ENTRAIN_RETURN_IF_ERROR(all_.Tell(&text));
  ENTRAIN_RETURN_IF_ERROR(
      all_.Tell(Bytes(reinterpret_cast<std::byte*>(digest_.data()), digest_.size())));
  if (all_.first()) {
    return absl::OkStatus();
  }
  auto manifest = ParseManifest(text);
  if (!manifest.ok()) {
    return all_.GiveUp(manifest.status());
  }
  manifest_ = *std::move(manifest);
  return absl::OkStatus();
}

// ---- Checks that the checkpoint fits -----------------------------------------------------------

absl::Status Loader::CheckFits() const {
  if (options_.kind == CheckpointKind::kExact) {
    if (manifest_.kind != CheckpointKind::kExact) {
      return Unfit("is portable, and an exact one was asked for; load it as portable");
    }
    ENTRAIN_RETURN_IF_ERROR(CheckMesh());
  }
  ENTRAIN_RETURN_IF_ERROR(CheckLayers());
  return CheckPlaces();
}

absl::Status Loader::CheckMesh() const {
  if (manifest_.mesh == part_.mesh) {
    return absl::OkStatus();
  }
  return Unfit(absl::StrCat("was saved on a mesh of ", absl::StrJoin(manifest_.mesh, " x "),
                            " ranks (tensor, pipeline, context, shard, sync), and this one has ",
                            absl::StrJoin(part_.mesh, " x "),
                            "; an exact checkpoint needs the same, load it as portable"));
}

absl::Status Loader::CheckLayers() const {
  if (manifest_.parts.size() != static_cast<size_t>(part_.parts)) {
    return Unfit(absl::StrCat("its model has ", manifest_.parts.size(),
                              " parts (tensor x pipeline), this one ", part_.parts));
  }
  const std::vector<SavedLayer>& layers = manifest_.parts[static_cast<size_t>(part_.part)];
  if (layers.size() != part_.layers.size()) {
    return Unfit(
        absl::StrCat("its model has ", layers.size(), " layers, this one ", part_.layers.size()));
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].count != part_.layers[l].count) {
      return Unfit(absl::StrCat("its layer ", l, " has ", layers[l].count,
                                " elements, this model's ", part_.layers[l].count));
    }
    if (layers[l].frozen != part_.layers[l].frozen) {
      return Unfit(absl::StrCat("its layer ", l, layers[l].frozen ? " is" : " is not",
                                " frozen, this model's is", layers[l].frozen ? " not" : ""));
    }
  }
  return absl::OkStatus();
}

// Returns an error if the checkpoint has an array for this rank that is not in this run's state.
// Otherwise the array would be lost silently. Arrays of the exact kind alone are dropped by a
// portable load.
absl::Status Loader::CheckPlaces() const {
  std::set<std::string> names;
  for (const StateItem& item : state_.items()) {
    names.insert(item.name);
  }
  for (const SavedArray& array : manifest_.arrays) {
    const bool ours = array.rank < 0
                          ? array.part < 0 || array.part == part_.part
                          : options_.kind == CheckpointKind::kExact && array.rank == all_.rank();
    const bool dropped = manifest_.kind == CheckpointKind::kExact && state_.drops(array.name);
    if (ours && !dropped && names.count(array.name) == 0) {
      return Unfit(absl::StrCat("has ", Describe(array),
                                ", for which this run has no place: its options differ"));
    }
  }
  return absl::OkStatus();
}

// An array that was saved once for all ranks is also the array of each replica and rank.
bool Loader::Is(const SavedArray& array, const SavedArray& wanted) const {
  return array.name == wanted.name && array.layer == wanted.layer &&
         (array.rank == wanted.rank || array.rank < 0) &&
         (wanted.layer < 0 || array.part == wanted.part);
}

// Finds the pieces of saved arrays that make up the item. There must be no gap between them.
absl::Status Loader::FindPieces(StateItem* item) {
  const SavedArray wanted = ArrayOf(*item, all_, part_, options_.kind);
  std::map<int64_t, size_t> arrays;  // by first element
  for (size_t i = 0; i < manifest_.arrays.size(); ++i) {
    if (Is(manifest_.arrays[i], wanted)) {
      arrays[manifest_.arrays[i].first] = i;
    }
  }
  int64_t done = 0;
  for (const auto& [first, index] : arrays) {
    const SavedArray& array = manifest_.arrays[index];
    if (array.dtype != item->dtype) {
      return Unfit(absl::StrCat(Describe(array), " is of ", NameOf(array.dtype), ", here it is ",
                                NameOf(item->dtype)));
    }
    if (item->layer < 0 && array.count != item->count) {
      return Unfit(absl::StrCat(Describe(array), " has ", array.count, " elements, here it has ",
                                item->count));
    }
    const int64_t from = std::max(first, item->first + done);
    const int64_t to = std::min(first + array.count, item->first + item->count);
    if (from == item->first + done && from < to) {
      pieces_[index].push_back({item, from - first, to - from, done});
      done += to - from;
    }
  }
  if (done == item->count) {
    return absl::OkStatus();
  }
  return Unfit(
      absl::StrCat(arrays.empty() ? "has no \"" : "has not all of \"", item->name, "\"",
                   item->layer >= 0 ? absl::StrCat(" of layer ", item->layer) : std::string(),
                   wanted.rank >= 0 ? absl::StrCat(" of rank ", wanted.rank) : std::string(),
                   ", which this run's options ask for"));
}

// ---- Reading -----------------------------------------------------------------------------------

absl::StatusOr<CheckpointReader*> Loader::File(int32_t file) {
  std::unique_ptr<CheckpointReader>& reader = open_[file];
  if (reader != nullptr) {
    return reader.get();
  }
  const SavedFile* const saved =
      file == 0 ? nullptr : &manifest_.files[static_cast<size_t>(file - 1)];
  ENTRAIN_ASSIGN_OR_RETURN(reader, saved == nullptr ? Open()
                                                    : CheckpointReader::Open(absl::StrCat(
                                                          options_.directory, "/", saved->name)));
  if (reader->manifest_digest() != (saved == nullptr ? digest_ : saved->manifest)) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader->path(), ": is of another checkpoint: the SHA-256 of its manifest is ",
                     ToHex(reader->manifest_digest()), ", not ",
                     ToHex(saved == nullptr ? digest_ : saved->manifest),
                     saved == nullptr ? " as rank 0 found" : absl::StrCat(" as ", path_, " says")));
  }
  return reader.get();
}

// Reads the arrays that this rank needs, and verifies some of the other arrays. Together the ranks
// verify every byte of the checkpoint.
absl::Status Loader::ReadOwn() {
  for (size_t i = 0; i < manifest_.arrays.size(); ++i) {
    const SavedArray& array = manifest_.arrays[i];
    const auto pieces = pieces_.find(i);
    if (pieces == pieces_.end()) {
      if (i % static_cast<size_t>(all_.size()) == static_cast<size_t>(all_.rank())) {
        ENTRAIN_ASSIGN_OR_RETURN(CheckpointReader* const file, File(array.file));
        ENTRAIN_RETURN_IF_ERROR(file->Verify(array));
      }
      continue;
    }
    ENTRAIN_ASSIGN_OR_RETURN(CheckpointReader* const file, File(array.file));
    for (const Piece& piece : pieces->second) {
      ENTRAIN_RETURN_IF_ERROR(
          file->Read(array, piece.first, piece.count,
                     piece.item->loaded.data() + piece.at * SizeOf(array.dtype)));
    }
  }
  return absl::OkStatus();
}

// Rank 0 reads the arrays one after the other, and sends each array to all ranks. Each rank copies
// the elements that it needs.
absl::Status Loader::HearAll() {
  int64_t largest = 0;
  for (const SavedArray& array : manifest_.arrays) {
    largest = std::max(largest, array.bytes());
  }
  auto buffer = OwnedBuffer::Allocate(largest);
  ENTRAIN_RETURN_IF_ERROR(all_.Agree(buffer.status()));
  absl::Status status;
  for (size_t i = 0; i < manifest_.arrays.size(); ++i) {
    const SavedArray& array = manifest_.arrays[i];
    if (all_.first()) {
      status = ReadWhole(array, buffer->data());
    }
    auto good = static_cast<std::byte>(status.ok());
    ENTRAIN_RETURN_IF_ERROR(all_.Tell(Bytes(&good, 1)));
    if (good == std::byte{0}) {
      break;
    }
    ENTRAIN_RETURN_IF_ERROR(all_.Tell(Bytes(buffer->data(), static_cast<size_t>(array.bytes()))));
    for (const Piece& piece : pieces_[i]) {
      const int64_t size = SizeOf(array.dtype);
      std::memcpy(piece.item->loaded.data() + piece.at * size, buffer->data() + piece.first * size,
                  static_cast<size_t>(piece.count * size));
    }
  }
  return all_.Agree(status);
}

absl::Status Loader::ReadWhole(const SavedArray& array, std::byte* to) {
  ENTRAIN_ASSIGN_OR_RETURN(CheckpointReader* const file, File(array.file));
  return file->Read(array, 0, array.count, to);
}

}  // namespace

absl::Status LoadState(AllRanks& all, const ModelPart& part, const CheckpointOptions& options,
                       StateList* state) {
  return Loader(all, part, options, state).Run();
}

}  // namespace entrain
