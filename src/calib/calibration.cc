#include "calib/calibration.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace tierkv::calib {
namespace {

constexpr unsigned char kMagic[8] = {0x89, 'T', 'K', 'C', '\r', '\n', 0x1A, '\n'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMostBytes = uint64_t{4} << 30;
constexpr uint32_t kMostText = 4096;
constexpr uint32_t kMostLayers = 4096, kMostHeads = 1024, kMostDim = 256;

constexpr char kKltTag[] = "KLT1", kKvquantTag[] = "KVQT", kSquatTag[] = "SQUA", kDeepTag[] = "DEEP";

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

void put_rotations(ByteWriter& out, const std::vector<Rotation>& rotations) {
  for (const Rotation& rotation : rotations) {
    out.put(static_cast<uint32_t>(rotation.size()));
    for (const RotatedPair& pair : rotation) {
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
    Rotation& rotation = c.rotations.emplace_back();
    const uint32_t pairs = in.get<uint32_t>();
    if (pairs > c.model.head_dim / 2) return damaged(name, "a rotation turns more channels than there are");
    std::vector<bool> named(c.model.head_dim);
    for (uint32_t p = 0; p < pairs && in.ok(); ++p) {
      RotatedPair pair;
      pair.a = in.get<uint16_t>();
      pair.b = in.get<uint16_t>();
      pair.angle = in.get<double>();
      if (pair.a >= c.model.head_dim || pair.b >= c.model.head_dim || pair.a == pair.b || named[pair.a] || named[pair.b] || !std::isfinite(pair.angle)) {
        return damaged(name, "a rotation names a channel that is not there, or twice");
      }
      named[pair.a] = named[pair.b] = true;
      rotation.push_back(pair);
    }
  }
  return {};
}

template <class Tables>
Status get_tables(ByteReader& in, const std::string& name, const char* what, const ModelId& model, std::shared_ptr<const Tables>& tables) {
  auto read = Tables::read(in, model);
  if (!read.ok()) return damaged(name, read.status().message());
  if (!in.at_end()) return damaged(name, std::string("the section of ") + what + " is longer than its heads");
  tables = std::make_shared<Tables>(std::move(*read));
  return {};
}

Result<std::shared_ptr<const DeepTables>> read_deep(std::span<const std::byte> bytes, const std::string& name, const ModelId& model) {
  ByteReader in(bytes);
  auto tables = DeepTables::read(in, model);
  if (!tables.ok()) return damaged(name, tables.status().message());
  if (!in.at_end()) return damaged(name, "the section of the deep archive is longer than its layers");
  return std::shared_ptr<const DeepTables>(std::make_shared<DeepTables>(std::move(*tables)));
}

Status get_section(std::span<const std::byte> tag, std::span<const std::byte> bytes, const std::string& name, Calibration& c) {
  ByteReader in(bytes);
  if (std::memcmp(tag.data(), kKltTag, 4) == 0) return get_tables(in, name, "bases", c.model, c.klt);
  if (std::memcmp(tag.data(), kKvquantTag, 4) == 0) return get_tables(in, name, "codebooks", c.model, c.kvquant);
  if (std::memcmp(tag.data(), kSquatTag, 4) == 0) return get_tables(in, name, "query directions", c.model, c.squat);
  if (std::memcmp(tag.data(), kDeepTag, 4) == 0) {
    TIERKV_ASSIGN_OR_RETURN(c.deep, read_deep(bytes, name, c.model));
  }
  return {};  // a section of a newer version: whoever needs one will say what is missing
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
  put_rotations(out, rotations);
  put_section(out, kKltTag, klt);
  put_section(out, kKvquantTag, kvquant);
  put_section(out, kSquatTag, squat);
  put_section(out, kDeepTag, deep);
  out.put(checksum(out.bytes()));
  return std::move(out.bytes());
}

Status Calibration::finish() {
  if (rotations.size() != model.layers) {
    return error(StatusCode::invalid_argument, "a calibration of ", model.layers, " layers has ", rotations.size(), " rotations");
  }
  turners_.clear();
  turner_of_.clear();
  for (const Rotation& rotation : rotations) {
    const auto same = std::find_if(turners_.begin(), turners_.end(), [&](const auto& t) { return t->rotation() == rotation; });
    turner_of_.push_back(static_cast<size_t>(same - turners_.begin()));
    if (same == turners_.end()) turners_.push_back(std::make_unique<Turner>(rotation, model.head_dim));
  }
  const std::vector<std::byte> bytes = serialize();
  std::memcpy(&id_, bytes.data() + bytes.size() - sizeof id_, sizeof id_);
  return {};
}

Status Calibration::save(const std::string& path) const {
  if (deep || !deep_bytes_) return write_file_atomic(path, std::span<const std::byte>(serialize()));
  TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read_file(path_, kMostBytes));  // with the tables that were left in the file
  return write_file_atomic(path, std::span<const std::byte>(bytes));
}

Result<std::shared_ptr<const Calibration>> Calibration::load(const std::string& path) {
  TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read_file(path, kMostBytes));
  return parse(bytes, path, false);
}

Result<std::shared_ptr<const Calibration>> Calibration::parse(std::span<const std::byte> bytes, const std::string& name) { return parse(bytes, name, true); }

Result<std::shared_ptr<const Calibration>> Calibration::parse(std::span<const std::byte> bytes, const std::string& name, bool keep_deep) {
  if (bytes.size() < sizeof kMagic + 12 || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    return error(StatusCode::data_loss, name, " is not a calibration file (`tierkv calibrate` makes one)");
  }
  const std::span<const std::byte> body = bytes.first(bytes.size() - sizeof(uint64_t));
  ByteReader in(body.subspan(sizeof kMagic));
  if (const uint32_t version = in.get<uint32_t>(); version != kVersion) {
    return error(StatusCode::unsupported, name, ": a calibration file of version ", version, ", and this build knows version ", kVersion);
  }
  uint64_t stored = 0;
  std::memcpy(&stored, bytes.data() + body.size(), sizeof stored);
  if (checksum(body) != stored) return damaged(name, "its checksum does not match: the file is damaged or was cut short");

  auto result = std::make_shared<Calibration>();
  Calibration& c = *result;
  c.model.name = in.get_text(kMostText);
  c.model.fingerprint = in.get<uint64_t>();
  for (uint32_t* v : {&c.model.layers, &c.model.heads, &c.model.kv_heads, &c.model.head_dim, &c.block, &c.sinks, &c.distance}) *v = in.get<uint32_t>();
  c.origin.text = in.get_text(kMostText);
  c.origin.tokens = in.get<uint64_t>();
  c.origin.made_by = in.get_text(kMostText);
  const ModelId& m = c.model;
  if (!in.ok() || m.layers == 0 || m.layers > kMostLayers || m.kv_heads == 0 || m.kv_heads > kMostHeads || m.heads % m.kv_heads != 0 ||
      m.heads == 0 || m.head_dim < 32 || m.head_dim > kMostDim || m.head_dim % 16 != 0 || c.block == 0 || c.block > 4096) {
    return damaged(name, "its header does not describe a model");
  }
  TIERKV_RETURN_IF_ERROR(get_rotations(in, name, c));
  while (in.ok() && !in.at_end()) {
    const auto tag = in.get_bytes(4);
    const uint64_t size = in.get<uint64_t>(), expected = in.get<uint64_t>();
    const auto section = in.get_bytes(size);
    if (!in.ok()) break;
    if (checksum(section) != expected) return damaged(name, "a section does not match its checksum");
    if (!keep_deep && std::memcmp(tag.data(), kDeepTag, 4) == 0) {
      c.path_ = name;
      c.deep_at_ = static_cast<uint64_t>(section.data() - bytes.data());
      c.deep_bytes_ = size;
      c.deep_checksum_ = expected;
      continue;
    }
    TIERKV_RETURN_IF_ERROR(get_section(tag, section, name, c));
  }
  if (!in.ok()) return damaged(name, "it ends in the middle of a section");
  TIERKV_RETURN_IF_ERROR(c.finish());
  c.id_ = stored;  // of the file itself, sections that this build does not know included
  return std::shared_ptr<const Calibration>(std::move(result));
}

Result<std::shared_ptr<const DeepTables>> Calibration::deep_tables() const {
  if (deep) return deep;
  if (!deep_bytes_) {
    return error(StatusCode::failed_precondition, "the calibration of ", model.name, " has no tables for deep archives; `tierkv calibrate --deep` makes them");
  }
  std::lock_guard lock(mutex_);
  if (auto held = deep_held_.lock()) return held;
  TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read_file(path_, kMostBytes));
  if (deep_at_ > bytes.size() || deep_bytes_ > bytes.size() - deep_at_) return damaged(path_, "it is shorter than when it was loaded");
  const auto section = std::span<const std::byte>(bytes).subspan(deep_at_, deep_bytes_);
  if (checksum(section) != deep_checksum_) return damaged(path_, "the tables of the deep archive changed since it was loaded");
  TIERKV_ASSIGN_OR_RETURN(auto tables, read_deep(section, path_, model));
  deep_held_ = tables;
  return tables;
}

size_t Calibration::bytes() const {
  size_t total = sizeof *this;
  if (deep) {
    for (const DeepLayer& layer : deep->coded) {
      total += layer.predict.size() * sizeof(int16_t) + (layer.metric.size() + 4 * layer.mean.size()) * sizeof(float);
      for (const DeepBasis& basis : layer.basis) total += basis.rows.size() * sizeof(uint16_t);
    }
  }
  for (const auto& turner : turners_) total += turner->bytes();
  if (klt) {
    const size_t d = model.head_dim;
    for (const KltHead& head : klt->heads) {
      if (!head.mean.empty()) total += sizeof(KltHead) + 2 * d * d * sizeof(uint16_t) + (2 + 2 * kKltWidths) * d * sizeof(float);
    }
  }
  if (kvquant) {
    for (const KvquantHead& head : kvquant->heads) total += sizeof head + 3 * head.low.size() * sizeof(float);
    for (const KvquantCodebook& book : kvquant->codebooks) total += sizeof book + (book.levels.size() + book.edges.size()) * sizeof(float);
  }
  if (squat) total += squat->directions.size() * sizeof(float);
  return total;
}

KltChoice Calibration::klt_choice(double bits, bool joint, uint32_t layer, uint32_t head) const {
  std::lock_guard lock(mutex_);
  auto [at, fresh] = choices_.try_emplace({bits, joint});
  if (fresh) at->second = klt->allocate(bits, joint);
  return at->second[static_cast<size_t>(layer) * model.kv_heads + head];
}

Status Calibration::check_model(const ModelId& other) const {
  if (other.layers != model.layers || other.heads != model.heads || other.kv_heads != model.kv_heads || other.head_dim != model.head_dim) {
    return error(StatusCode::invalid_argument, "the calibration is for ", model.name, " (", model.layers, " layers, ", model.heads, "/", model.kv_heads,
                 " heads, head_dim ", model.head_dim, "), the cache has ", other.layers, " layers, ", other.heads, "/", other.kv_heads, " heads, head_dim ",
                 other.head_dim);
  }
  if (other.fingerprint != 0 && other.fingerprint != model.fingerprint) {
    return error(StatusCode::invalid_argument, "the calibration was made for another model: ", model.name, " (fingerprint ", hex(model.fingerprint),
                 "), this is ", other.name, " (", hex(other.fingerprint), "); make one with `tierkv calibrate`");
  }
  return {};
}

}  // namespace tierkv::calib

namespace tierkv {

Result<CalibrationPtr> load_calibration(const std::string& path) { return calib::Calibration::load(path); }

Result<CalibrationPtr> parse_calibration(std::span<const std::byte> bytes, const std::string& name) { return calib::Calibration::parse(bytes, name); }

Status check_fit(const calib::Calibration& calibration, const CalibrationInfo& model) {
  return calibration.check_model({model.model, model.fingerprint, model.num_layers, model.num_heads, model.num_kv_heads, model.head_dim});
}

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
  if (c.klt) info.codecs.push_back("klt");
  if (c.kvquant) info.codecs.push_back("kvquant");
  if (c.squat) info.codecs.push_back("squat");
  if (c.has_deep()) info.codecs.push_back("deep");
  return info;
}

}  // namespace tierkv
