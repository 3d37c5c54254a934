#include "calib/calibration.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/guarded.h"
#include "base/status_macros.h"
#include "calib/rope_fit.h"

namespace tierkv::calib {
namespace {

constexpr unsigned char kMagic[8] = {0x89, 'T', 'K', 'C', '\r', '\n', 0x1A, '\n'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMostBytes = uint64_t{4} << 30;
constexpr uint32_t kMostText = 4096;
constexpr uint32_t kMostLayers = 4096, kMostHeads = 1024, kMostDim = 256;

struct SectionName {
  char tag[5];
  const char* what;  // for messages
};
constexpr SectionName kSections[] = {{"KLT1", "bases"},
                                     {"KVQT", "codebooks"},
                                     {"SQUA", "query directions"},
                                     {"DEEP", "the deep archive"},
                                     {"OSCR", "rotations"}};  // by Kind

template <class Tables>
void put_section(ByteWriter& out, const char* tag, const std::shared_ptr<const Tables>& tables) {
  if (!tables) return;
  ByteWriter section;
  tables->write(section);
  out.put_bytes(std::as_bytes(std::span(tag, 4)));
  out.put(static_cast<uint64_t>(section.bytes().size()));
  out.put(checksum(section.bytes()));
  out.put_bytes(section.bytes());
}

void put_rotations(ByteWriter& out, const std::vector<Rope>& ropes) {
  for (const Rope& rope : ropes) {
    out.put(static_cast<uint32_t>(rope.size()));
    for (const RopePair& pair : rope) {
      out.put(pair.a);
      out.put(pair.b);
      out.put(pair.angle);
    }
  }
}

Status damaged(const std::string& name, const std::string& what) {
  return error(StatusCode::data_loss, name, ": ", what, "; make the calibration again with `tierkv calibrate`");
}

Status get_rotations(ByteReader& in, const std::string& name, Calibration& c) {
  for (uint32_t l = 0; l < c.model.layers && in.ok(); ++l) {
    Rope& rope = c.ropes.emplace_back();
    const uint32_t pairs = in.get<uint32_t>();
    if (pairs > c.model.head_dim / 2) return damaged(name, "a rope turns more channels than there are");
    std::vector<bool> named(c.model.head_dim);
    for (uint32_t p = 0; p < pairs && in.ok(); ++p) {
      RopePair pair;
      pair.a = in.get<uint16_t>();
      pair.b = in.get<uint16_t>();
      pair.angle = in.get<double>();
      if (pair.a >= c.model.head_dim || pair.b >= c.model.head_dim || pair.a == pair.b || named[pair.a] || named[pair.b] ||
          !std::isfinite(pair.angle)) {
        return damaged(name, "a rope names a channel that is not there, or twice");
      }
      named[pair.a] = named[pair.b] = true;
      rope.push_back(pair);
    }
  }
  return {};
}

template <class Tables>
Result<std::shared_ptr<const Tables>> get_tables(std::span<const std::byte> bytes, const std::string& name, const char* what,
                                                 const ModelId& model) {
  ByteReader in(bytes);
  auto read = Tables::read(in, model);
  if (!read.ok()) return damaged(name, read.status().message());
  if (!in.at_end()) return damaged(name, std::string("the section of ") + what + " is longer than it says");
  return std::shared_ptr<const Tables>(std::make_shared<Tables>(std::move(*read)));
}

template <class T>
size_t size_of(const std::vector<T>& values) {
  return values.capacity() * sizeof(T);
}

size_t bytes_of(const KltTables& tables) {
  size_t total = sizeof tables + size_of(tables.heads);
  for (const KltHead& head : tables.heads) {
    total += size_of(head.mean) + size_of(head.analysis) + size_of(head.synthesis) + size_of(head.variance) +
             size_of(head.value_distortion);
    for (int w = 0; w < kKltWidths; ++w) total += size_of(head.step[w]) + size_of(head.distortion[w]);
  }
  return total;
}

size_t bytes_of(const KvquantTables& tables) {
  size_t total = sizeof tables + size_of(tables.heads) + size_of(tables.codebooks);
  for (const KvquantHead& head : tables.heads) total += size_of(head.low) + size_of(head.high) + size_of(head.weight);
  for (const KvquantCodebook& book : tables.codebooks) total += size_of(book.levels) + size_of(book.edges);
  return total;
}

size_t bytes_of(const SquatTables& tables) { return sizeof tables + size_of(tables.directions); }

size_t bytes_of(const OscarTables& tables) { return sizeof tables + size_of(tables.rotations); }

size_t bytes_of(const DeepTables& tables) {
  size_t total = sizeof tables + size_of(tables.coded);
  for (const DeepLayer& layer : tables.coded) {
    total += size_of(layer.mean) + size_of(layer.unit) + size_of(layer.scale) + size_of(layer.predict) + size_of(layer.metric) +
             size_of(layer.weight);
    for (const DeepBasis& basis : layer.basis) total += size_of(basis.rows) + size_of(basis.exponent) + size_of(basis.spread);
  }
  return total;
}

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

std::string Calibration::id_text() const { return hex(id_); }

std::vector<std::byte> Calibration::serialize() const {
  ByteWriter out;
  out.put_bytes(std::as_bytes(std::span(kMagic)));
  out.put(kVersion);
  out.put_text(model.name);
  out.put(model.fingerprint);
  for (const uint32_t v : {model.layers, model.heads, model.kv_heads, model.head_dim, block, sinks, distance}) out.put(v);
  out.put_text(origin.text);
  out.put(origin.tokens);
  out.put_text(origin.made_by);
  put_rotations(out, ropes);
  put_section(out, kSections[kKlt].tag, klt);
  put_section(out, kSections[kKvquant].tag, kvquant);
  put_section(out, kSections[kSquat].tag, squat);
  put_section(out, kSections[kDeep].tag, deep);
  put_section(out, kSections[kOscar].tag, oscar);
  out.put(checksum(out.bytes()));
  return std::move(out.bytes());
}

Status Calibration::make_turners() {
  if (ropes.size() != model.layers) {
    return error(StatusCode::invalid_argument, "a calibration of ", model.layers, " layers has ", ropes.size(), " ropes");
  }
  turners_.clear();
  turner_of_.clear();
  for (const Rope& rope : ropes) {
    const auto same = std::find_if(turners_.begin(), turners_.end(), [&](const auto& t) { return t->rope() == rope; });
    turner_of_.push_back(static_cast<size_t>(same - turners_.begin()));
    if (same == turners_.end()) turners_.push_back(std::make_unique<Turner>(rope, model.head_dim));
  }
  return {};
}

Status Calibration::finish(std::vector<std::byte>* file) {
  TIERKV_RETURN_IF_ERROR(make_turners());
  std::vector<std::byte> bytes = serialize();
  std::memcpy(&id_, bytes.data() + bytes.size() - sizeof id_, sizeof id_);
  if (file) *file = std::move(bytes);
  return {};
}

Status Calibration::save(const std::string& path) const {
  if (!bytes_.empty()) return write_file_atomic(path, bytes_);
  if (!from_file_) return write_file_atomic(path, std::span<const std::byte>(serialize()));
  TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read_file(name_, kMostBytes));
  if (bytes.size() < sizeof id_ || std::memcmp(bytes.data() + bytes.size() - sizeof id_, &id_, sizeof id_) != 0) {
    return damaged(name_, "it changed since it was loaded");
  }
  return write_file_atomic(path, std::span<const std::byte>(bytes));
}

Result<std::shared_ptr<const Calibration>> Calibration::load(const std::string& path) {
  TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read_file(path, kMostBytes));
  return parse(bytes, path, Source::file);
}

Result<std::shared_ptr<const Calibration>> Calibration::parse(std::span<const std::byte> bytes, const std::string& name,
                                                              bool bytes_stay) {
  return parse(bytes, name, bytes_stay ? Source::stays : Source::goes);
}

Status Calibration::get_section(std::span<const std::byte> tag, const Place& place, std::span<const std::byte> bytes,
                                Source source) {
  for (int kind = 0; kind < kKinds; ++kind) {
    const SectionName& name = kSections[kind];
    if (std::memcmp(tag.data(), name.tag, 4) != 0) continue;
    if (source != Source::goes) {
      places_[kind] = place;
      return {};
    }
    const auto get = [&]<class Tables>(std::shared_ptr<const Tables>& tables) -> Status {
      TIERKV_ASSIGN_OR_RETURN(tables, get_tables<Tables>(bytes, name_, name.what, model));
      return {};
    };
    return kind == kKlt       ? get(klt)
           : kind == kKvquant ? get(kvquant)
           : kind == kSquat   ? get(squat)
           : kind == kOscar   ? get(oscar)
                              : get(deep);
  }
  return {};  // a section of a newer version: whoever needs one will say what is missing
}

Result<std::shared_ptr<const Calibration>> Calibration::parse(std::span<const std::byte> bytes, const std::string& name,
                                                              Source source) {
  if (bytes.size() < sizeof kMagic + 12 || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    return error(StatusCode::data_loss, name, " is not a calibration file (`tierkv calibrate` makes one)");
  }
  const std::span<const std::byte> body = bytes.first(bytes.size() - sizeof(uint64_t));
  ByteReader in(body.subspan(sizeof kMagic));
  if (const uint32_t version = in.get<uint32_t>(); version != kVersion) {
    return error(StatusCode::unsupported, name, ": a calibration file of version ", version, ", and this build knows version ",
                 kVersion);
  }
  uint64_t stored = 0;
  std::memcpy(&stored, bytes.data() + body.size(), sizeof stored);
  if (checksum(body) != stored) return damaged(name, "its checksum does not match: the file is damaged or was cut short");

  auto result = std::make_shared<Calibration>();
  Calibration& c = *result;
  c.name_ = name;
  c.from_file_ = source == Source::file;
  if (source == Source::stays) c.bytes_ = bytes;
  c.model.name = in.get_text(kMostText);
  c.model.fingerprint = in.get<uint64_t>();
  for (uint32_t* v : {&c.model.layers, &c.model.heads, &c.model.kv_heads, &c.model.head_dim, &c.block, &c.sinks, &c.distance})
    *v = in.get<uint32_t>();
  c.origin.text = in.get_text(kMostText);
  c.origin.tokens = in.get<uint64_t>();
  c.origin.made_by = in.get_text(kMostText);
  const ModelId& m = c.model;
  if (!in.ok() || m.layers == 0 || m.layers > kMostLayers || m.kv_heads == 0 || m.kv_heads > kMostHeads ||
      m.heads % m.kv_heads != 0 || m.heads == 0 || m.head_dim < 32 || m.head_dim > kMostDim || m.head_dim % 16 != 0 ||
      c.block == 0 || c.block > 4096) {
    return damaged(name, "its header does not describe a model");
  }
  TIERKV_RETURN_IF_ERROR(get_rotations(in, name, c));
  while (in.ok() && !in.at_end()) {
    const auto tag = in.get_bytes(4);
    const uint64_t size = in.get<uint64_t>(), expected = in.get<uint64_t>();
    const auto section = in.get_bytes(size);
    if (!in.ok()) break;
    if (checksum(section) != expected) return damaged(name, "a section does not match its checksum");
    TIERKV_RETURN_IF_ERROR(
        c.get_section(tag, {static_cast<uint64_t>(section.data() - bytes.data()), size, expected}, section, source));
  }
  if (!in.ok()) return damaged(name, "it ends in the middle of a section");
  TIERKV_RETURN_IF_ERROR(c.make_turners());
  c.id_ = stored;  // of the file itself, sections that this build does not know included
  return std::shared_ptr<const Calibration>(std::move(result));
}

template <class Tables>
Result<std::shared_ptr<const Tables>> Calibration::read(Kind kind, const std::shared_ptr<const Tables>& solved,
                                                        const char* missing) const {
  if (solved) return solved;
  const Place& place = places_[kind];
  if (!place.bytes) return error(StatusCode::failed_precondition, "the calibration of ", model.name, " has no ", missing);
  const auto known = [&]() -> std::shared_ptr<const Tables> {  // REQUIRES: mutex_ held
    return std::static_pointer_cast<const Tables>(held_[kind].lock());
  };
  {
    std::lock_guard lock(mutex_);
    if (auto held = known()) return held;
  }
  std::vector<std::byte> part;
  if (from_file_) {
    TIERKV_ASSIGN_OR_RETURN(part, read_file_part(name_, place.at, place.bytes));
  }
  const std::span<const std::byte> section = from_file_ ? std::span<const std::byte>(part) : bytes_.subspan(place.at, place.bytes);
  if (section.size() != place.bytes || checksum(section) != place.checksum) {
    return damaged(name_, std::string("the section of ") + kSections[kind].what + " changed since it was loaded");
  }
  TIERKV_ASSIGN_OR_RETURN(auto tables, get_tables<Tables>(section, name_, kSections[kind].what, model));
  std::lock_guard lock(mutex_);
  if (auto held = known()) return held;  // another thread read them meanwhile
  held_[kind] = tables;
  if (const auto keeper = keeper_.lock()) keeper->push_back(tables);
  return tables;
}

Result<std::shared_ptr<const KltTables>> Calibration::klt_tables() const {
  return read(kKlt, klt, "section of bases for klt: make it again with `tierkv calibrate`");
}
Result<std::shared_ptr<const KvquantTables>> Calibration::kvquant_tables() const {
  return read(kKvquant, kvquant, "KVQuant tables; `tierkv calibrate` makes them");
}
Result<std::shared_ptr<const SquatTables>> Calibration::squat_tables() const {
  return read(kSquat, squat, "query subspace for squat; `tierkv calibrate` makes one");
}
Result<std::shared_ptr<const OscarTables>> Calibration::oscar_tables() const {
  return read(kOscar, oscar, "rotations for oscar; `tierkv calibrate` makes them");
}
Result<std::shared_ptr<const DeepTables>> Calibration::deep_tables() const {
  return read(kDeep, deep, "tables for deep archives; `tierkv calibrate --deep` makes them");
}

std::shared_ptr<const void> Calibration::hold() const {
  std::lock_guard lock(mutex_);
  auto keeper = keeper_.lock();
  if (!keeper) keeper_ = keeper = std::make_shared<Keeper>();
  return keeper;
}

size_t Calibration::bytes() const {
  size_t total = sizeof *this + model.name.capacity() + origin.text.capacity() + origin.made_by.capacity() + name_.capacity();
  total += size_of(ropes) + size_of(turner_of_);
  for (const Rope& rope : ropes) total += size_of(rope);
  for (const auto& turner : turners_) total += turner->bytes();
  std::lock_guard lock(mutex_);
  for (const auto& [bits, choices] : choices_) total += size_of(choices);
  const auto add = [&]<class Tables>(Kind kind, const std::shared_ptr<const Tables>& solved) {
    const auto held = solved ? solved : std::static_pointer_cast<const Tables>(held_[kind].lock());
    if (held) total += bytes_of(*held);
  };
  add(kKlt, klt);
  add(kKvquant, kvquant);
  add(kSquat, squat);
  add(kDeep, deep);
  add(kOscar, oscar);
  return total;
}

Result<KltChoice> Calibration::klt_choice(double bits, bool joint, uint32_t layer, uint32_t head) const {
  const size_t index = static_cast<size_t>(layer) * model.kv_heads + head;
  {
    std::lock_guard lock(mutex_);
    const auto known = choices_.find({bits, joint});
    if (known != choices_.end()) return known->second[index];
  }
  TIERKV_ASSIGN_OR_RETURN(const auto tables, klt_tables());
  std::vector<KltChoice> choices = tables->allocate(bits, joint);
  std::lock_guard lock(mutex_);
  return choices_.try_emplace({bits, joint}, std::move(choices)).first->second[index];
}

Status Calibration::check_model(const ModelId& other) const {
  if (other.layers != model.layers || other.heads != model.heads || other.kv_heads != model.kv_heads ||
      other.head_dim != model.head_dim) {
    return error(StatusCode::invalid_argument, "the calibration is for ", model.name, " (", model.layers, " layers, ", model.heads,
                 "/", model.kv_heads, " heads, head_dim ", model.head_dim, "), the cache has ", other.layers, " layers, ",
                 other.heads, "/", other.kv_heads, " heads, head_dim ", other.head_dim);
  }
  if (other.fingerprint != 0 && other.fingerprint != model.fingerprint) {
    return error(StatusCode::invalid_argument, "the calibration was made for another model: ", model.name, " (fingerprint ",
                 hex(model.fingerprint), "), this is ", other.name, " (", hex(other.fingerprint),
                 "); make one with `tierkv calibrate`");
  }
  return {};
}

}  // namespace tierkv::calib

namespace tierkv {

Result<CalibrationPtr> load_calibration(const std::string& path) try { return calib::Calibration::load(path); }
TIERKV_NO_MEMORY("read a calibration")

Result<CalibrationPtr> parse_calibration(std::span<const std::byte> bytes, const std::string& name, bool bytes_stay) try {
  return calib::Calibration::parse(bytes, name, bytes_stay);
}
TIERKV_NO_MEMORY("read a calibration")

Status check_fit(const calib::Calibration& calibration, const CalibrationInfo& model) try {
  TIERKV_RETURN_IF_ERROR(calibration.check_model(
      {model.model, model.fingerprint, model.num_layers, model.num_heads, model.num_kv_heads, model.head_dim}));
  return model.ropes.empty() ? Status() : calib::check_ropes(calibration.ropes, model.ropes);
}
TIERKV_NO_MEMORY("compare a calibration with a model")

Result<CalibrationPtr> with_ropes(const CalibrationPtr& calibration, const std::vector<calib::Rope>& ropes) try {
  if (!calibration) return error(StatusCode::invalid_argument, "there is no calibration to give another RoPE");
  if (calib::compare(calibration->ropes, ropes) == calib::RopeFit::pairs) return calib::check_ropes(calibration->ropes, ropes);
  for (const calib::Rope& rope : ropes) {
    for (const calib::RopePair& pair : rope) {
      if (!std::isfinite(pair.angle)) return error(StatusCode::invalid_argument, "an angle of a RoPE is not a number");
    }
  }
  const calib::Calibration& from = *calibration;
  auto copy = std::make_shared<calib::Calibration>();
  copy->model = from.model;
  copy->origin = from.origin;
  copy->block = from.block, copy->sinks = from.sinks, copy->distance = from.distance;
  copy->ropes = ropes;
  if (from.has_klt()) {
    TIERKV_ASSIGN_OR_RETURN(copy->klt, from.klt_tables());
  }
  if (from.has_kvquant()) {
    TIERKV_ASSIGN_OR_RETURN(copy->kvquant, from.kvquant_tables());
  }
  if (from.has_squat()) {
    TIERKV_ASSIGN_OR_RETURN(copy->squat, from.squat_tables());
  }
  if (from.has_oscar()) {
    TIERKV_ASSIGN_OR_RETURN(copy->oscar, from.oscar_tables());
  }
  if (from.has_deep()) {
    TIERKV_ASSIGN_OR_RETURN(copy->deep, from.deep_tables());
  }
  TIERKV_RETURN_IF_ERROR(copy->finish());
  return CalibrationPtr(std::move(copy));
}
TIERKV_NO_MEMORY("give a calibration another RoPE")

CalibrationInfo describe(const calib::Calibration& c) {
  CalibrationInfo info;
  info.id = c.id_text();
  info.model = c.model.name;
  info.fingerprint = c.model.fingerprint;
  info.num_layers = c.model.layers;
  info.num_heads = c.model.heads;
  info.num_kv_heads = c.model.kv_heads;
  info.head_dim = c.model.head_dim;
  info.block = c.block;
  info.text = c.origin.text;
  info.tokens = c.origin.tokens;
  if (c.has_klt()) info.codecs.push_back("klt");
  if (c.has_kvquant()) info.codecs.push_back("kvquant");
  if (c.has_squat()) info.codecs.push_back("squat");
  if (c.has_oscar()) info.codecs.push_back("oscar");
  if (c.has_deep()) info.codecs.push_back("deep");
  info.ropes = c.ropes;
  return info;
}

}  // namespace tierkv
