#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

#include "lib/base/status.h"
#include "lib/checkpoint/checkpoint_file.h"
#include "lib/checkpoint/leftovers.h"
#include "lib/train/state/checkpoint.h"

namespace entrain {
namespace {

// An array that this rank provides, and its state item.
struct Brought {
  SavedArray array;
  const StateItem* item;
};

class Saver {
 public:
  Saver(AllRanks& all, const ModelPart& part, const CheckpointOptions& options, int64_t step,
        const StateList& state)
      : all_(all),
        part_(part),
        options_(options),
        step_(step),
        state_(state),
        path_(options.path()) {}
  ~Saver() { RemoveOwn(); }

  absl::Status Run();

 private:
  // The list of the arrays that a rank provides, and the index of the next array to write.
  struct Source {
    Manifest list;
    size_t next = 0;
    const SavedArray* Next() const {
      return next < list.arrays.size() ? &list.arrays[next] : nullptr;
    }
  };

  absl::Status Prepare();
  absl::Status PrepareFunctions();
  absl::Status PrepareFile();
  absl::Status CheckMayReplace(const Manifest& old) const;
  void Bring();
  Manifest Draft() const;

  absl::Status SaveFull();
  absl::Status SendAll();
  absl::Status WriteAll();
  absl::StatusOr<Source> ReceiveList(int rank);
  absl::Status WriteLayers(std::vector<Source>* sources);
  absl::Status WriteWhole(std::vector<Source>* sources, const SavedArray& like);
  absl::Status WriteRest(int rank, Source* source);
  absl::Status TakePayload(int rank, Source* source);
  void Merge(const Manifest& list);

  absl::Status SaveSharded();
  absl::Status WriteOwn();
  absl::Status TellOwn();
  absl::Status CollectFiles();

  absl::Status WriteHead();
  absl::Status Publish();
  void RemoveOwn();
  void RemoveOld();

  AllRanks& all_;
  const ModelPart& part_;
  const CheckpointOptions& options_;
  const int64_t step_;
  const StateList& state_;
  const std::string path_;
  std::vector<Brought> brought_;
  std::unique_ptr<CheckpointWriter> writer_;  // on rank 0: writes NAME.ckpt
  // Owned by writer_. Null if the caller's functions write.
  FileTarget* file_ = nullptr;
  Manifest head_;  // on rank 0
  // The first error. Afterwards data is still sent and received, so that no rank waits.
  absl::Status failed_;
  std::vector<SavedFile> old_files_;  // on rank 0: files of the replaced checkpoint
  std::string own_name_;              // name of this rank's file while it may be removed
  std::optional<uint32_t>
      parts_;  // on rank 0: id in the names of this save's files while they may be removed
  Digest own_digest_{};
  Manifest own_;
};

absl::Status Saver::Prepare() {
  ENTRAIN_RETURN_IF_ERROR(state_.status());
  return options_.functions ? PrepareFunctions() : PrepareFile();
}

absl::Status Saver::PrepareFunctions() {
  if (!options_.full) {
    return absl::InvalidArgumentError(
        "full_state_dict: is 0, but functions write one checkpoint, rank 0's: set it to 1");
  }
  if (all_.first()) {
    ENTRAIN_ASSIGN_OR_RETURN(auto target, TargetOf(*options_.functions));
    writer_ = std::make_unique<CheckpointWriter>(std::move(target));
  }
  return absl::OkStatus();
}

absl::Status Saver::PrepareFile() {
  if (all_.first() || !options_.full) {
    if (mkdir(options_.directory.c_str(), 0777) != 0 && errno != EEXIST) {
      return absl::FailedPreconditionError(absl::StrCat(
          options_.directory, ": cannot create the directory: ", std::strerror(errno)));
    }
  }
  if (all_.first()) {
    const auto old = CheckpointReader::Open(path_);
    if (old.ok()) {
      old_files_ = (*old)->manifest().files;
      ENTRAIN_RETURN_IF_ERROR(CheckMayReplace((*old)->manifest()));
    }
    ENTRAIN_ASSIGN_OR_RETURN(auto file, FileTarget::Create(path_, options_.takes_over));
    file_ = file.get();
    writer_ = std::make_unique<CheckpointWriter>(std::move(file));
    if (file_->found().id) {
      RemoveParts(options_.directory, options_.name, *file_->found().id);
    }
  }
  return absl::OkStatus();
}

absl::Status Saver::CheckMayReplace(const Manifest& old) const {
  if (options_.overwrite || old.step <= step_) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      path_, " is of step ", old.step, ", and this run, which has begun anew, is at step ", step_,
      ": an earlier run would be lost. Load its checkpoint to continue it, save elsewhere, or set "
      "overwrite"));
}

// Puts layers first, because WriteLayers makes each layer from the pieces of several ranks.
void Saver::Bring() {
  for (const bool layers : {true, false}) {
    for (const StateItem& item : state_.items()) {
      if ((item.layer >= 0) == layers && Brings(item, all_, part_, options_.kind)) {
        brought_.push_back({ArrayOf(item, all_, part_, options_.kind), &item});
      }
    }
  }
}

Manifest Saver::Draft() const {
  Manifest draft;
  draft.kind = options_.kind;
  draft.step = step_;
  draft.identity = part_.identity;
  draft.mesh = part_.mesh;
  draft.parts.resize(static_cast<size_t>(part_.parts));
  draft.parts[static_cast<size_t>(part_.part)] = part_.layers;
  return draft;
}

absl::Status Saver::Run() {
  ENTRAIN_RETURN_IF_ERROR(all_.Agree(Prepare()));
  Bring();
  head_ = Draft();
  ENTRAIN_RETURN_IF_ERROR(options_.full ? SaveFull() : SaveSharded());
  return Publish();
}

// ---- One file ----------------------------------------------------------------------------------

absl::Status Saver::SaveFull() {
  ENTRAIN_RETURN_IF_ERROR(all_.first() ? WriteAll() : SendAll());
  return all_.Agree(all_.first() ? WriteHead() : failed_);
}

absl::Status Saver::SendAll() {
  Manifest list = Draft();
  for (const Brought& brought : brought_) {
    list.arrays.push_back(brought.array);
  }
  const std::string text = ToJson(list);
  ENTRAIN_RETURN_IF_ERROR(all_.Send(AsBytes(text)));
  for (const Brought& brought : brought_) {
    ENTRAIN_RETURN_IF_ERROR(all_.Send(brought.item->value()));
  }
  return all_.EndSend();
}

absl::StatusOr<Saver::Source> Saver::ReceiveList(int rank) {
  Source source;
  if (rank == 0) {
    source.list = Draft();
    for (const Brought& brought : brought_) {
      source.list.arrays.push_back(brought.array);
    }
    return source;
  }
  std::string text;
  ENTRAIN_RETURN_IF_ERROR(
      all_.Receive(rank, [&text](ConstBytes piece) { absl::StrAppend(&text, AsText(piece)); }));
  auto list = ParseManifest(text);
  if (!list.ok()) {
    return all_.GiveUp(Annotate(list.status(), absl::StrCat("the list of rank ", rank)));
  }
  Merge(*list);
  source.list = *std::move(list);
  return source;
}

// Copies to head_ the lists of layers for those parts of the model that have no list in head_ yet.
void Saver::Merge(const Manifest& list) {
  for (size_t part = 0; part < head_.parts.size() && part < list.parts.size(); ++part) {
    if (head_.parts[part].empty()) {
      head_.parts[part] = list.parts[part];
    }
  }
}

absl::Status Saver::WriteAll() {
  std::vector<Source> sources;
  for (int rank = 0; rank < all_.places(); ++rank) {
    ENTRAIN_ASSIGN_OR_RETURN(Source source, ReceiveList(rank));
    sources.push_back(std::move(source));
  }
  ENTRAIN_RETURN_IF_ERROR(WriteLayers(&sources));
  for (int rank = 0; rank < all_.size(); ++rank) {
    if (rank < all_.places()) {
      ENTRAIN_RETURN_IF_ERROR(WriteRest(rank, &sources[static_cast<size_t>(rank)]));
    } else {
      ENTRAIN_ASSIGN_OR_RETURN(Source source, ReceiveList(rank));
      ENTRAIN_RETURN_IF_ERROR(WriteRest(rank, &source));
    }
  }
  return absl::OkStatus();
}

// Writes each layer as one array, made from the pieces of all ranks of replica 0. Each rank lists
// its layers in the order in which StateList was filled. The rank of slot 0 has the first piece of
// every layer, so its list determines the order.
absl::Status Saver::WriteLayers(std::vector<Source>* sources) {
  for (int part = 0; part < part_.parts; ++part) {
    while (true) {
      const SavedArray* like = nullptr;
      for (const Source& source : *sources) {
        const SavedArray* const next = source.Next();
        if (next != nullptr && next->layer >= 0 && next->part == part && next->first == 0) {
          like = next;
        }
      }
      if (like == nullptr) {
        break;
      }
      ENTRAIN_RETURN_IF_ERROR(WriteWhole(sources, *like));
    }
  }
  return absl::OkStatus();
}

absl::Status Saver::WriteWhole(std::vector<Source>* sources, const SavedArray& like) {
  SavedArray whole = like;
  std::map<int64_t, int> pieces;  // by first element: the rank
  whole.count = 0;
  for (size_t rank = 0; rank < sources->size(); ++rank) {
    // A rank has several pieces of a layer that is made of segments (SlabSegment).
    const Source& source = (*sources)[rank];
    for (size_t i = source.next; i < source.list.arrays.size(); ++i) {
      const SavedArray& next = source.list.arrays[i];
      if (next.name != like.name || next.layer != like.layer || next.part != like.part) {
        break;
      }
      pieces[next.first] = static_cast<int>(rank);
      whole.count += next.count;
    }
  }
  failed_.Update(failed_.ok() ? writer_->Begin(whole) : absl::OkStatus());
  for (const auto& [first, rank] : pieces) {
    ENTRAIN_RETURN_IF_ERROR(TakePayload(rank, &(*sources)[static_cast<size_t>(rank)]));
  }
  return absl::OkStatus();
}

// Writes the remaining arrays of a rank. No other rank has pieces of them.
absl::Status Saver::WriteRest(int rank, Source* source) {
  while (const SavedArray* const next = source->Next()) {
    failed_.Update(failed_.ok() ? writer_->Begin(*next) : absl::OkStatus());
    ENTRAIN_RETURN_IF_ERROR(TakePayload(rank, source));
  }
  return rank == 0 ? absl::OkStatus() : all_.ReceiveEnd(rank);
}

absl::Status Saver::TakePayload(int rank, Source* source) {
  const auto append = [this](ConstBytes piece) {
    failed_.Update(failed_.ok() ? writer_->Append(piece) : absl::OkStatus());
  };
  const size_t at = source->next++;
  if (rank == 0) {
    append(brought_[at].item->value());
    return absl::OkStatus();
  }
  return all_.Receive(rank, append);
}

// ---- One file per rank -------------------------------------------------------------------------

absl::Status Saver::SaveSharded() {
  uint32_t id = 0;
  while (getrandom(&id, sizeof(id), 0) != sizeof(id) || id == 0) {
  }
  if (all_.first()) {
    failed_.Update(file_->Mark(id));  // before any rank can write a file with this id
    parts_ = id;
  }
  ENTRAIN_RETURN_IF_ERROR(all_.Tell(Bytes(reinterpret_cast<std::byte*>(&id), sizeof(id))));
  if (!all_.first() && !brought_.empty()) {
    own_name_ = PartName(options_.name, all_.rank(), id);
  }
  ENTRAIN_RETURN_IF_ERROR(all_.Agree(own_name_.empty() ? absl::OkStatus() : WriteOwn()));
  ENTRAIN_RETURN_IF_ERROR(all_.first() ? CollectFiles() : TellOwn());
  if (all_.first()) {
    for (const Brought& brought : brought_) {
      failed_.Update(failed_.ok() ? writer_->Begin(brought.array) : absl::OkStatus());
      const ConstBytes bytes = brought.item->value();
      failed_.Update(failed_.ok() ? writer_->Append(bytes) : absl::OkStatus());
    }
  }
  return all_.Agree(all_.first() ? WriteHead() : absl::OkStatus());
}

absl::Status Saver::WriteOwn() {
  const std::string path = absl::StrCat(options_.directory, "/", own_name_);
  ENTRAIN_ASSIGN_OR_RETURN(const auto writer, CheckpointWriter::Create(path));
  for (const Brought& brought : brought_) {
    ENTRAIN_RETURN_IF_ERROR(writer->Begin(brought.array));
    ENTRAIN_RETURN_IF_ERROR(writer->Append(brought.item->value()));
    ENTRAIN_RETURN_IF_ERROR(failed_);
  }
  ENTRAIN_RETURN_IF_ERROR(writer->Finish(Draft()));
  own_ = writer->manifest();
  own_digest_ = writer->manifest_digest();
  return writer->Commit();
}

// Sends the name and the manifest of this rank's file to rank 0. Sends an empty message if this
// rank has no file.
absl::Status Saver::TellOwn() {
  std::string text;
  if (!own_name_.empty()) {
    text = Writer()
               .PutText(own_name_)
               .PutRaw(own_digest_.data(), own_digest_.size())
               .PutText(ToJson(own_))
               .Take();
  }
  ENTRAIN_RETURN_IF_ERROR(all_.Send(AsBytes(text)));
  return all_.EndSend();
}

absl::Status Saver::CollectFiles() {
  for (int rank = 1; rank < all_.size(); ++rank) {
    std::string text;
    ENTRAIN_RETURN_IF_ERROR(
        all_.Receive(rank, [&text](ConstBytes piece) { absl::StrAppend(&text, AsText(piece)); }));
    ENTRAIN_RETURN_IF_ERROR(all_.ReceiveEnd(rank));
    if (text.empty()) {
      continue;
    }
    Reader reader(text);
    SavedFile file;
    file.name = std::string(reader.GetText());
    const absl::string_view digest = reader.GetRaw(file.manifest.size());
    auto list = ParseManifest(reader.GetText(text.size()));
    if (!reader.Finished() || !list.ok()) {
      return all_.GiveUp(absl::InternalError(
          absl::StrCat("what rank ", rank, " says of its file was not understood")));
    }
    std::memcpy(file.manifest.data(), digest.data(), digest.size());
    head_.files.push_back(std::move(file));
    Merge(*list);
    for (SavedArray& array : list->arrays) {
      array.file = static_cast<int32_t>(head_.files.size());
      head_.arrays.push_back(std::move(array));
    }
  }
  return absl::OkStatus();
}

// ---- Taking effect -----------------------------------------------------------------------------

absl::Status Saver::WriteHead() {
  ENTRAIN_RETURN_IF_ERROR(failed_);
  return writer_->Finish(head_);
}

// Makes the checkpoint take effect. Must be called when all files are on the disk. On rank 0, gives
// the final name to the file that lists the other files.
absl::Status Saver::Publish() {
  const absl::Status status = all_.first() ? writer_->Commit() : absl::OkStatus();
  auto published = static_cast<std::byte>(all_.first() && writer_->committed());
  const absl::Status told = all_.Tell(Bytes(&published, 1));
  if (!told.ok() || published != std::byte{0}) {
    own_name_.clear();  // the checkpoint has taken effect, or may have
    parts_.reset();
  }
  ENTRAIN_RETURN_IF_ERROR(told);
  if (published != std::byte{0}) {
    RemoveOld();
  }
  if (published != std::byte{0} && file_ != nullptr) {
    ClearLeftovers(options_.directory, file_->begun_ns());
  }
  return all_.Agree(status);
}

void Saver::RemoveOwn() {
  if (!own_name_.empty()) {
    unlink(absl::StrCat(options_.directory, "/", own_name_).c_str());
  }
  if (parts_) {  // also removes files of lost ranks
    RemoveParts(options_.directory, options_.name, *parts_);
  }
}

// Removes the files of the replaced checkpoint to which no checkpoint refers any more. A file that
// cannot be removed does no harm.
void Saver::RemoveOld() {
  for (const SavedFile& old : old_files_) {
    const bool listed = std::any_of(head_.files.begin(), head_.files.end(),
                                    [&](const SavedFile& file) { return file.name == old.name; });
    if (!listed && absl::StartsWith(old.name, options_.name + "_") &&
        absl::EndsWith(old.name, ".ckpt")) {
      unlink(absl::StrCat(options_.directory, "/", old.name).c_str());
    }
  }
}

}  // namespace

std::string CheckpointOptions::path() const {
  return functions ? kFunctionsName : absl::StrCat(directory, "/", name, ".ckpt");
}

absl::Status CheckOptions(const CheckpointOptions& options) {
  if (options.directory.empty()) {
    return absl::InvalidArgumentError("save_dir: is empty");
  }
  if (!IsArrayName(options.name) || absl::StrContains(options.name, '/') ||
      options.name[0] == '.') {
    return absl::InvalidArgumentError(absl::StrCat("ckpt_name: \"", options.name,
                                                   "\" is not 1 to 128 letters, digits and . _ -"));
  }
  if (options.kind != CheckpointKind::kPortable && options.kind != CheckpointKind::kExact) {
    return absl::InvalidArgumentError(absl::StrCat("kind: ", static_cast<int32_t>(options.kind),
                                                   " is neither 0 (portable) nor 1 (exact)"));
  }
  return absl::OkStatus();
}

absl::Status AgreeOnOptions(AllRanks& all, const CheckpointOptions& options) {
  struct Option {
    const char* name;
    std::string value;
  };
  absl::Status same;
  for (const Option& option :
       {Option{"functions", absl::StrCat(options.functions ? 1 : 0)},
        Option{"ckpt_name", options.name}, Option{"kind", std::string(NameOf(options.kind))},
        Option{"full_state_dict", absl::StrCat(options.full ? 1 : 0)},
        Option{"rank0_only", absl::StrCat(options.rank0_only ? 1 : 0)}}) {
    std::string first = option.value;
    ENTRAIN_RETURN_IF_ERROR(all.Tell(&first));
    if (first != option.value) {
      same.Update(absl::InvalidArgumentError(
          absl::StrCat(option.name, ": ", option.value, " here, and ", first, " on rank 0")));
    }
  }
  return all.Agree(same);
}

ModelPart PartOf(const Mesh& mesh, const Slab& slab) {
  ModelPart part;
  for (int axis = 0; axis < kAxes; ++axis) {
    part.mesh[static_cast<size_t>(axis)] = mesh.length(static_cast<Axis>(axis));
  }
  part.parts = mesh.length(Axis::kTensor) * mesh.length(Axis::kPipeline);
  part.part = mesh.coordinate(Axis::kTensor) +
              mesh.length(Axis::kTensor) * mesh.coordinate(Axis::kPipeline);
  part.copy = mesh.coordinate(Axis::kContext) != 0;
  for (int l = 0; l < slab.layers(); ++l) {
    part.layers.push_back({slab.layer(l).full, slab.layer(l).frozen});
  }
  return part;
}

bool Brings(const StateItem& item, const AllRanks& all, const ModelPart& part,
            CheckpointKind kind) {
  if (item.count == 0) {
    return false;
  }
  if (item.layer >= 0) {
    return all.replica() == 0 && !part.copy;
  }
  switch (item.holder) {
    case Holder::kAll:
      return all.first();
    case Holder::kReplica:
      return all.place() == 0 && (kind == CheckpointKind::kExact || all.first());
    case Holder::kRank:
      return true;
  }
  return false;
}

SavedArray ArrayOf(const StateItem& item, const AllRanks& all, const ModelPart& part,
                   CheckpointKind kind) {
  SavedArray array;
  array.name = item.name;
  if (item.holder != Holder::kAll) {
    const int replicas = kind == CheckpointKind::kExact ? all.rank() - all.place() : 0;
    array.rank = item.holder == Holder::kRank ? all.rank() : replicas;
  }
  array.part = item.layer >= 0 ? part.part : -1;
  array.layer = item.layer;
  array.first = item.first;
  array.count = item.count;
  array.dtype = item.dtype;
  return array;
}

absl::Status SaveState(AllRanks& all, const ModelPart& part, const CheckpointOptions& options,
                       int64_t step, const StateList& state) {
  return Saver(all, part, options, step, state).Run();
}

}  // namespace entrain
