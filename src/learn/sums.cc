#include "learn/sums.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/descriptor.h"
#include "base/file.h"
#include "base/guarded.h"
#include "base/status_macros.h"

namespace tierkv::learn {
namespace {

constexpr unsigned char kMagic[8] = {0x89, 'T', 'K', 'S', '\r', '\n', 0x1A, '\n'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMostBytes = uint64_t{4} << 30;
constexpr uint32_t kMostText = 4096;

template <class T>
void add_to(std::vector<T>& sum, const std::vector<T>& other) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
}

template <class T>
bool finite(const std::vector<T>& values) {
  return std::all_of(values.begin(), values.end(), [](T x) { return std::isfinite(x); });
}

Status damaged(const std::string& path, const char* what) {
  return error(StatusCode::data_loss, path, ": ", what, "; what it held of the model is learnt anew");
}

void put_head(ByteWriter& out, const HeadSums& head) {
  out.put(head.keys);
  out.put_array(head.key);
  out.put_array(head.square);
  for (int kind = 0; kind < kKinds; ++kind) {
    out.put_array(head.metric[kind]);
    out.put_array(head.value[kind]);
  }
  out.put(head.weight);
  out.put(head.size);
}

HeadSums get_head(ByteReader& in, const calib::ModelId& model) {
  HeadSums head;
  head.keys = in.get<uint64_t>();
  head.key = in.get_array<double>(model.head_dim);
  head.square = in.get_array<double>(triangle(model.head_dim));
  for (int kind = 0; kind < kKinds; ++kind) {
    head.metric[kind] = in.get_array<float>(triangle(model.head_dim));
    head.value[kind] = in.get_array<double>(model.heads / model.kv_heads);
  }
  head.weight = in.get<double>();
  head.size = in.get<double>();
  return head;
}

std::vector<std::byte> serialize(const SumsFrame& frame, const Sums& sums) {
  ByteWriter out;
  out.put_bytes(std::as_bytes(std::span(kMagic)));
  out.put(kVersion);
  out.put_text(frame.model.name);
  out.put(frame.model.fingerprint);
  for (const uint32_t v : {frame.model.layers, frame.model.heads, frame.model.kv_heads, frame.model.head_dim, frame.block,
                           frame.sinks, frame.distance}) {
    out.put(v);
  }
  out.put(sums.tokens);
  out.put(sums.variety);
  for (const LayerSums& layer : sums.layers) {
    out.put(static_cast<uint8_t>(!layer.heads.empty()));
    for (const uint64_t n : layer.queries) out.put(n);
    for (const HeadSums& head : layer.heads) put_head(out, head);
  }
  out.put(checksum(out.bytes()));
  return std::move(out.bytes());
}

Result<Sums> parse(std::span<const std::byte> bytes, const std::string& path, const SumsFrame& frame) {
  if (bytes.size() < sizeof kMagic + 12 || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    return error(StatusCode::data_loss, path, " does not hold the sums of a model");
  }
  const std::span<const std::byte> body = bytes.first(bytes.size() - sizeof(uint64_t));
  uint64_t stored = 0;
  std::memcpy(&stored, bytes.data() + body.size(), sizeof stored);
  if (checksum(body) != stored) return damaged(path, "its checksum does not match: the file is damaged or was cut short");
  ByteReader in(body.subspan(sizeof kMagic));
  if (const uint32_t version = in.get<uint32_t>(); version != kVersion) {
    return error(StatusCode::unsupported, path, ": sums of version ", version, ", and this build knows version ", kVersion);
  }
  calib::ModelId model = frame.model;
  model.name = in.get_text(kMostText);
  uint32_t block = 0, sinks = 0, distance = 0;
  model.fingerprint = in.get<uint64_t>();
  for (uint32_t* v : {&model.layers, &model.heads, &model.kv_heads, &model.head_dim, &block, &sinks, &distance})
    *v = in.get<uint32_t>();
  const std::string name = model.name;
  model.name = frame.model.name;  // what a file calls itself does not make another model
  if (model != frame.model || block != frame.block || sinks != frame.sinks || distance != frame.distance) {
    return error(StatusCode::invalid_argument, path, ": sums of another model (", name, ") or of another length of blocks");
  }
  Sums sums;
  sums.tokens = in.get<uint64_t>();
  sums.variety = in.get<uint32_t>();
  sums.layers.resize(model.layers);
  for (uint32_t i = 0; i < model.layers && in.ok(); ++i) {
    LayerSums& layer = sums.layers[i];
    const bool learnt = in.get<uint8_t>() != 0;
    if (learnt != frame.learnt[i])
      return error(StatusCode::invalid_argument, path, ": sums of other layers than the model archives");
    for (uint64_t& n : layer.queries) n = in.get<uint64_t>();
    for (uint32_t h = 0; learnt && h < model.kv_heads; ++h) layer.heads.push_back(get_head(in, model));
  }
  if (!in.at_end()) return damaged(path, "it is not as long as it says");
  for (const LayerSums& layer : sums.layers) {
    if (!all_finite(layer)) return damaged(path, "its sums are not finite");
  }
  return sums;
}

// Holds back other processes that merge in the same folder. A file system without locks goes on without.
Descriptor lock_folder(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() >= 0) (void)::flock(descriptor.get(), LOCK_EX);
  return descriptor;
}

}  // namespace

void LayerSums::add(const LayerSums& other) {
  for (size_t h = 0; h < heads.size(); ++h) {
    HeadSums& to = heads[h];
    const HeadSums& from = other.heads[h];
    to.keys += from.keys;
    add_to(to.key, from.key);
    add_to(to.square, from.square);
    for (int kind = 0; kind < kKinds; ++kind) {
      add_to(to.metric[kind], from.metric[kind]);
      add_to(to.value[kind], from.value[kind]);
    }
    to.weight += from.weight;
    to.size += from.size;
  }
  for (int kind = 0; kind < kKinds; ++kind) queries[kind] += other.queries[kind];
}

LayerSums empty_layer(uint32_t kv_heads, uint32_t heads, uint32_t dim) {
  HeadSums head;
  head.key.assign(dim, 0.0);
  head.square.assign(triangle(dim), 0.0);
  for (int kind = 0; kind < kKinds; ++kind) {
    head.metric[kind].assign(triangle(dim), 0.0f);
    head.value[kind].assign(heads / kv_heads, 0.0);
  }
  LayerSums layer;
  layer.heads.assign(kv_heads, head);
  return layer;
}

bool all_finite(const LayerSums& sums) {
  return std::all_of(sums.heads.begin(), sums.heads.end(), [](const HeadSums& head) {
    bool ok = finite(head.key) && finite(head.square) && std::isfinite(head.weight) && std::isfinite(head.size);
    for (int kind = 0; kind < kKinds; ++kind) ok = ok && finite(head.metric[kind]) && finite(head.value[kind]);
    return ok;
  });
}

Result<Sums> load_sums(const std::string& path, const SumsFrame& frame) {
  TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read_file(path, kMostBytes));
  return parse(bytes, path, frame);
}

Status save_sums(const std::string& path, const SumsFrame& frame, const Sums& sums) {
  for (const LayerSums& layer : sums.layers) {
    if (!all_finite(layer)) return error(StatusCode::invalid_argument, "sums that are not finite are not kept");
  }
  const Descriptor lock = lock_folder(path);
  Sums all = sums;
  if (const auto there = load_sums(path, frame); there.ok()) {
    all.tokens += there->tokens;
    all.variety = std::max(all.variety, there->variety);
    for (size_t i = 0; i < all.layers.size(); ++i) all.layers[i].add(there->layers[i]);
  } else if (there.status().code() == StatusCode::unsupported) {
    return there.status();  // a newer program's, which it can still use
  }
  return write_file_atomic(path, std::span<const std::byte>(serialize(frame, all)));
}

}  // namespace tierkv::learn
