#include "lib/checkpoint/manifest.h"

#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "lib/base/json.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAxes[] = {"tensor", "pipeline", "context", "shard", "sync"};
constexpr int64_t kMost32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMost64 = std::numeric_limits<int64_t>::max() / 64;

absl::Status Wrong(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("manifest: ", where, ": ", what));
}

// Reads members of a JSON object by name and type. Records the first error. After an error, every
// result is zero or empty. So callers check status() only once, after the last read.
class Members {
 public:
  Members(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) {
      Fail(where_, "is not an object");
    }
  }
  int64_t Integer(const char* name, int64_t least, int64_t most) {
    const Json* const member = Find(name);
    if (member == nullptr) {
      return 0;
    }
    const bool fits = member->is_number_unsigned()
                          ? member->get<uint64_t>() <= static_cast<uint64_t>(most)
                          : member->is_number_integer() && member->get<int64_t>() <= most;
    if (!fits || member->get<int64_t>() < least) {
      Fail(Path(name), absl::StrCat("is not an integer from ", least, " to ", most));
      return 0;
    }
    return member->get<int64_t>();
  }
  std::string Text(const char* name) {
    const Json* const member = Find(name);
    if (member == nullptr || !member->is_string()) {
      Fail(Path(name), "is not a text");
      return "";
    }
    return member->get<std::string>();
  }
  bool Truth(const char* name) {
    const Json* const member = Find(name);
    if (member == nullptr || !member->is_boolean()) {
      Fail(Path(name), "is neither true nor false");
      return false;
    }
    return member->get<bool>();
  }
  Digest Hash(const char* name) {
    const auto digest = DigestFromHex(Text(name));
    if (!digest.has_value()) {
      Fail(Path(name), "is not a SHA-256 in 64 hexadecimal digits");
    }
    return digest.value_or(Digest{});
  }
  const Json& Array(const char* name) {
    static const Json& empty = *new Json(Json::array());
    const Json* const member = Find(name);
    if (member == nullptr || !member->is_array()) {
      Fail(Path(name), "is not an array");
      return empty;
    }
    return *member;
  }
  const Json& Object(const char* name) {
    static const Json& empty = *new Json(Json::object());
    const Json* const member = Find(name);
    return member == nullptr ? empty : *member;
  }
  std::string Path(absl::string_view name) const {
    return where_.empty() ? std::string(name) : absl::StrCat(where_, ".", name);
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json* Find(const char* name) {
    if (status_.ok()) {
      const auto found = object_.find(name);
      if (found != object_.end()) {
        return &*found;
      }
      Fail(Path(name), "is missing");
    }
    return nullptr;
  }
  void Fail(absl::string_view where, absl::string_view what) { status_.Update(Wrong(where, what)); }

  const Json& object_;
  const std::string where_;
  absl::Status status_;
};

absl::StatusOr<std::vector<SavedLayer>> ParseLayers(const Json& json, const std::string& where) {
  if (!json.is_array()) {
    return Wrong(where, "is not an array");
  }
  std::vector<SavedLayer> layers;
  int64_t total = 0;
  for (const Json& item : json) {
    Members members(item, absl::StrCat(where, "[", layers.size(), "]"));
    layers.push_back({members.Integer("count", 0, kMost64 - total), members.Truth("frozen")});
    ENTRAIN_RETURN_IF_ERROR(members.status());
    total += layers.back().count;
  }
  return layers;
}

absl::StatusOr<SavedFile> ParseFile(const Json& json, const std::string& where) {
  Members members(json, where);
  SavedFile file{members.Text("name"), members.Hash("sha256")};
  ENTRAIN_RETURN_IF_ERROR(members.status());
  if (!IsArrayName(file.name) || absl::StrContains(file.name, '/') || file.name[0] == '.') {
    return Wrong(members.Path("name"), "is not the name of a file in the same directory");
  }
  return file;
}

// Checks that a piece lies inside its layer.
absl::Status CheckPlace(const SavedArray& array, const Manifest& manifest,
                        const std::string& where) {
  int64_t ranks = 1;
  for (const int32_t length : manifest.mesh) {
    ranks *= length;
  }
  if (array.rank >= ranks) {
    return Wrong(where, absl::StrCat("rank ", array.rank, " is not one of ", ranks));
  }
  if ((array.part < 0) != (array.layer < 0)) {
    return Wrong(where, "has one of part and layer");
  }
  if (array.layer < 0) {
    return array.first == 0 ? absl::OkStatus() : Wrong(where, "is a piece of nothing");
  }
  if (static_cast<size_t>(array.part) >= manifest.parts.size() ||
      static_cast<size_t>(array.layer) >= manifest.parts[static_cast<size_t>(array.part)].size()) {
    return Wrong(where, absl::StrCat("there is no layer ", array.layer, " in part ", array.part));
  }
  const int64_t whole =
      manifest.parts[static_cast<size_t>(array.part)][static_cast<size_t>(array.layer)].count;
  if (array.first > whole || array.count > whole - array.first) {
    return Wrong(where, absl::StrCat("elements ", array.first, " and ", array.count,
                                     " on are not in a layer of ", whole));
  }
  return absl::OkStatus();
}

absl::StatusOr<SavedArray> ParseArray(const Json& json, const Manifest& manifest,
                                      const std::string& where) {
  Members members(json, where);
  SavedArray array;
  array.name = members.Text("name");
  array.rank = static_cast<int32_t>(members.Integer("rank", -1, kMost32));
  array.part = static_cast<int32_t>(members.Integer("part", -1, kMost32));
  array.layer = static_cast<int32_t>(members.Integer("layer", -1, kMost32));
  array.first = members.Integer("first", 0, kMost64);
  array.count = members.Integer("count", 0, kMost64);
  array.file =
      static_cast<int32_t>(members.Integer("file", 0, static_cast<int64_t>(manifest.files.size())));
  array.offset = members.Integer("offset", 0, kMost64);
  array.digest = members.Hash("sha256");
  const auto dtype = DTypeFromName(members.Text("dtype"));
  ENTRAIN_RETURN_IF_ERROR(members.status());
  if (!dtype.has_value()) {
    return Wrong(members.Path("dtype"), "is not the name of a type");
  }
  array.dtype = *dtype;
  if (!IsArrayName(array.name)) {
    return Wrong(members.Path("name"), "is not 1 to 128 letters, digits and . _ - /");
  }
  if (array.count > kMost64 / SizeOf(array.dtype)) {
    return Wrong(members.Path("count"), "is too large");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckPlace(array, manifest, where));
  return array;
}

absl::Status ParseMesh(const Json& json, Manifest* manifest) {
  Members members(json, "mesh");
  int64_t ranks = 1;
  for (size_t axis = 0; axis < manifest->mesh.size(); ++axis) {
    const int64_t length = members.Integer(kAxes[axis], 1, kMost32 / ranks);
    ENTRAIN_RETURN_IF_ERROR(members.status());
    manifest->mesh[axis] = static_cast<int32_t>(length);
    ranks *= length;
  }
  return absl::OkStatus();
}

absl::Status ParseArrays(const Json& json, Manifest* manifest) {
  std::set<std::tuple<std::string, int32_t, int32_t, int32_t, int64_t>> seen;
  for (const Json& item : json) {
    const std::string where = absl::StrCat("arrays[", manifest->arrays.size(), "]");
    ENTRAIN_ASSIGN_OR_RETURN(SavedArray array, ParseArray(item, *manifest, where));
    if (!seen.insert({array.name, array.rank, array.part, array.layer, array.first}).second) {
      return Wrong(where, absl::StrCat("there are two of ", Describe(array)));
    }
    manifest->arrays.push_back(std::move(array));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view NameOf(CheckpointKind kind) {
  return kind == CheckpointKind::kPortable ? "portable" : "exact";
}

std::string Describe(const SavedArray& array) {
  std::string text = absl::StrCat("\"", array.name, "\"");
  if (array.layer >= 0) {
    absl::StrAppend(&text, " of layer ", array.layer);
    if (array.part > 0) {
      absl::StrAppend(&text, " of part ", array.part);
    }
    absl::StrAppend(&text, ", elements from ", array.first);
  }
  if (array.rank >= 0) {
    absl::StrAppend(&text, ", rank ", array.rank, "'s");
  }
  return text;
}

bool IsArrayName(absl::string_view name) {
  if (name.empty() || name.size() > 128) {
    return false;
  }
  for (const char c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-' &&
        c != '/') {
      return false;
    }
  }
  return true;
}

std::string ToJson(const Manifest& manifest) {
  Json json = {{"kind", std::string(NameOf(manifest.kind))}, {"step", manifest.step}};
  if (!manifest.identity.empty()) {
    json["identity"] = manifest.identity;
  }
  for (size_t axis = 0; axis < manifest.mesh.size(); ++axis) {
    json["mesh"][kAxes[axis]] = manifest.mesh[axis];
  }
  json["parts"] = Json::array();
  for (const std::vector<SavedLayer>& layers : manifest.parts) {
    Json part = Json::array();
    for (const SavedLayer& layer : layers) {
      part.push_back({{"count", layer.count}, {"frozen", layer.frozen}});
    }
    json["parts"].push_back(std::move(part));
  }
  json["files"] = Json::array();
  for (const SavedFile& file : manifest.files) {
    json["files"].push_back({{"name", file.name}, {"sha256", ToHex(file.manifest)}});
  }
  json["arrays"] = Json::array();
  for (const SavedArray& array : manifest.arrays) {
    json["arrays"].push_back({{"name", array.name},
                              {"rank", array.rank},
                              {"part", array.part},
                              {"layer", array.layer},
                              {"first", array.first},
                              {"count", array.count},
                              {"dtype", std::string(NameOf(array.dtype))},
                              {"file", array.file},
                              {"offset", array.offset},
                              {"sha256", ToHex(array.digest)}});
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return absl::InvalidArgumentError("manifest: is not JSON");
  }
  Manifest manifest;
  Members members(json, "");
  const std::string kind = members.Text("kind");
  manifest.step = members.Integer("step", 0, kMost64);
  if (json.contains("identity")) {  // checkpoints of version 1.0 have none
    manifest.identity = members.Text("identity");
  }
  const Json& mesh = members.Object("mesh");
  const Json& parts = members.Array("parts");
  const Json& files = members.Array("files");
  const Json& arrays = members.Array("arrays");
  ENTRAIN_RETURN_IF_ERROR(members.status());
  if (kind != NameOf(CheckpointKind::kPortable) && kind != NameOf(CheckpointKind::kExact)) {
    return Wrong("kind", "is neither portable nor exact");
  }
  manifest.kind = kind == NameOf(CheckpointKind::kPortable) ? CheckpointKind::kPortable
                                                            : CheckpointKind::kExact;
  ENTRAIN_RETURN_IF_ERROR(ParseMesh(mesh, &manifest));
  for (const Json& part : parts) {
    ENTRAIN_ASSIGN_OR_RETURN(std::vector<SavedLayer> layers,
                             ParseLayers(part, absl::StrCat("parts[", manifest.parts.size(), "]")));
    manifest.parts.push_back(std::move(layers));
  }
  for (const Json& file : files) {
    ENTRAIN_ASSIGN_OR_RETURN(SavedFile saved,
                             ParseFile(file, absl::StrCat("files[", manifest.files.size(), "]")));
    manifest.files.push_back(std::move(saved));
  }
  ENTRAIN_RETURN_IF_ERROR(ParseArrays(arrays, &manifest));
  return manifest;
}

}  // namespace entrain
