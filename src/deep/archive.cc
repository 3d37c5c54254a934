#include "deep/archive.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "deep/archive_file.h"
#include "deep/chunk.h"

namespace tierkv::deep {
namespace {

uint64_t fp16_bytes(const calib::DeepTables& t, uint32_t tokens) { return 2ull * tokens * t.dim() * t.coded.size(); }

std::vector<Transform> make_transforms(const calib::DeepTables& tables, bool analysis, ThreadPool& pool) {
  std::vector<std::optional<Transform>> made(tables.coded.size());
  pool.run(static_cast<uint32_t>(made.size()), [&](uint32_t i) { made[i].emplace(tables, tables.coded[i], analysis); });
  std::vector<Transform> out;
  out.reserve(made.size());
  for (auto& t : made) out.push_back(std::move(*t));
  return out;
}

// --- the classes of tokens

// log2 of the weight of every token against an ordinary one's, [coded layer][token].
std::vector<float> log_weights(const Shared& shared, uint32_t tokens, const ReadRows& read, const EncodeOptions& options,
                               ThreadPool& pool) {
  const calib::DeepTables& tables = *shared.model->tables;
  const size_t layers = tables.coded.size();
  std::vector<float> out(layers * tokens);
  if (!options.weights.empty()) {
    for (size_t i = 0; i < layers; ++i) {
      const float* w = options.weights.data() + i * tokens;
      std::vector<float> sorted(w, w + tokens);
      const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
      std::nth_element(sorted.begin(), middle, sorted.end());
      for (uint32_t t = 0; t < tokens; ++t)
        out[i * tokens + t] = *middle > 0.0f ? std::log2(std::max(w[t] / *middle, 1e-6f)) : 0.0f;
    }
    return out;
  }
  const uint32_t blocks = chunks_of(tokens, kCodingBlock), dim = tables.dim();
  pool.run(blocks, [&](uint32_t b) {
    const uint32_t first = b * kCodingBlock, count = std::min(kCodingBlock, tokens - first);
    std::vector<float> rows(static_cast<size_t>(count) * dim), centred(dim);
    for (size_t i = 0; i < layers; ++i) {
      const calib::DeepLayer& layer = tables.coded[i];
      gather(shared, shared.transforms[i], first, count, read, rows.data());
      for (uint32_t t = 0; t < count; ++t) {
        const float* row = rows.data() + static_cast<size_t>(t) * dim;
        for (uint32_t c = 0; c < dim; ++c) centred[c] = row[c] - layer.mean[c];
        out[i * tokens + first + t] = 1.442695f * tables.log_weight(layer, row, centred.data());
      }
    }
  });
  return out;
}

// The nearest class by weight.
std::vector<uint8_t> classes_of(const std::vector<float>& weights, double power) {
  std::vector<uint8_t> classes(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const double octaves = std::isfinite(weights[i]) ? power * static_cast<double>(weights[i]) : 0.0;
    uint32_t c = 0;
    while (c + 1 < kClasses && octaves > 0.5 * (kClassWeight[c] + kClassWeight[c + 1])) ++c;
    classes[i] = static_cast<uint8_t>(c);
  }
  return classes;
}

// --- one pass over some or all chunks

class Encoding {
 public:
  Encoding(const ModelTables& model, uint32_t first_position, uint32_t tokens, const ReadRows& read, const EncodeOptions& options)
      : options_(options), tokens_(tokens), read_(read), pool_(options.threads) {
    shared_.model = &model;
    shared_.transforms = make_transforms(*model.tables, true, pool_);
    shared_.first_position = first_position;
    classes_.assign(model.tables->coded.size() * tokens, static_cast<uint8_t>(kMiddle));
    if (options.weight_power > 0.0) classes_ = classes_of(log_weights(shared_, tokens, read, options, pool_), options.weight_power);
    for (uint32_t first = 0; first < tokens; first += options.chunk)
      all_.push_back({first, std::min(options.chunk, tokens - first)});
    // A few short stretches are enough to come near the step.
    if (tokens > 8 * kCodingBlock) {
      for (const uint32_t sixth : {1u, 3u, 5u})
        sample_.push_back(
            {static_cast<uint32_t>(static_cast<uint64_t>(tokens) * sixth / 6 / kCodingBlock * kCodingBlock), 2 * kCodingBlock});
      for (Stretch& s : sample_) s.count = std::min(s.count, tokens - s.first);
    }
    at_ = std::clamp(static_cast<int32_t>(std::lround(256.0 * first_guess())), -kMostLogStep, kMostLogStep);
  }

  Result<std::vector<std::byte>> run(EncodeReport* report) {
    if (!sample_.empty()) search(sample_);
    search(all_);
    if (!finite_) return error(StatusCode::invalid_argument, "rows to archive are not finite: nothing was encoded");
    TIERKV_RETURN_IF_ERROR(verify());
    std::vector<std::byte> bytes = write();
    if (report) fill(*report, bytes.size());
    return bytes;
  }

 private:
  struct Stretch {
    uint32_t first = 0, count = 0;
  };
  struct Pass {
    std::vector<ChunkResult> chunks;
    float step = 1.0f;
    int32_t log_step = 0;
    Centroids centroids;
    double lost = 0.0, energy = 0.0;
    uint64_t bytes = 0;
  };

  Pass pass(int32_t log_step, const std::vector<Stretch>& which) {
    shared_.log_step = log_step;
    shared_.step = static_cast<float>(std::exp2(log_step / 256.0));
    const Models models(*shared_.model->tables, log_step);
    Pass p;
    p.step = shared_.step;
    p.log_step = log_step;
    p.centroids = shared_.centroids;
    p.chunks.resize(which.size());
    pool_.run(static_cast<uint32_t>(which.size()), [&](uint32_t i) {
      p.chunks[i] = encode_chunk(shared_, models, which[i].first, which[i].count, read_, classes_.data(), tokens_);
    });
    Landing landing;
    for (const ChunkResult& c : p.chunks) {
      p.bytes += c.bytes.size() + kArchiveTableBytes;
      p.lost += c.lost;
      p.energy += c.energy;
      finite_ &= c.finite;
      landing.add(c.landing);
    }
    shared_.centroids = landing.centroids(shared_.centroids);
    passes_ += &which == &all_;
    return p;
  }

  // log2 of a step to start from: where a Laplace source of the calibrated spreads would take about the bits asked for.
  double first_guess() const {
    const double bits = options_.ratio > 0.0 ? 16.0 / options_.ratio : 0.8;
    double low = -16.0, high = 16.0;
    for (int i = 0; i < 20; ++i) {
      const double middle = 0.5 * (low + high);
      double sum = 0.0, count = 0.0;
      for (const calib::DeepLayer& layer : shared_.model->tables->coded) {
        for (const int16_t spread : layer.basis[layer.sources ? calib::kDeepPredicted : calib::kDeepPlain].spread) {
          sum += calib::deep_bits(std::exp2(spread / 256.0 - middle));
          count += 1.0;
        }
      }
      (sum / count > bits ? low : high) = middle;
    }
    return 0.5 * (low + high);
  }

  // Falls as the step grows; what is wanted lies between want_low() and want_high().
  double position_of(const Pass& p, const std::vector<Stretch>& which) const {
    if (options_.ratio > 0.0) {
      double share = 0.0;
      for (const Stretch& stretch : which) share += stretch.count;
      const double allowed = static_cast<double>(fp16_bytes(*shared_.model->tables, tokens_)) / options_.ratio - kArchiveFixedBytes;
      return std::log2(static_cast<double>(p.bytes) / std::max(1.0, allowed * share / tokens_));
    }
    return -std::log2(std::max(p.lost, 1e-300) / std::max(p.energy * (1.0 - options_.quality), 1e-290));
  }
  double want_low() const { return options_.ratio > 0.0 ? -0.015 : 0.0; }
  double want_high() const { return options_.ratio > 0.0 ? 0.0 : 0.06; }

  // Moves along a line through the last two points, held between the nearest points on either side. Leaves the best pass in best_.
  void search(const std::vector<Stretch>& which) {
    constexpr int kTries = 9;
    double slope = slope_;
    int32_t low = -kMostLogStep, high = kMostLogStep;  // too much at low, too little at high
    bool have_low = false, have_high = false;
    double y_low = 0.0, y_high = 0.0;
    int32_t at = at_;
    bool found = false;
    for (int i = 0; i < kTries; ++i) {
      Pass p = pass(at, which);
      const double y = position_of(p, which);
      if (!found || better(y, best_y_)) {
        best_ = std::move(p);
        best_y_ = y;
        at_ = at;
        found = true;
      }
      if ((y >= want_low() && y <= want_high()) || !finite_) break;
      if (y > want_high()) {
        low = at, y_low = y, have_low = true;
      } else {
        high = at, y_high = y, have_high = true;
      }
      if (have_low && have_high) slope = (y_high - y_low) / static_cast<double>(high - low);
      slope = std::min(slope, -0.05 / 256.0);
      const double middle = 0.5 * (want_low() + want_high());
      int32_t next = at + static_cast<int32_t>(std::lround(std::clamp((middle - y) / slope, -1024.0, 1024.0)));
      if (have_low && have_high && high - low > 1) next = std::clamp(next, low + 1, high - 1);
      next = std::clamp(next, -kMostLogStep, kMostLogStep);
      if (next == at || (have_low && have_high && high - low <= 1)) break;
      at = next;
    }
    slope_ = slope;
  }

  // Something that meets the target beats what does not; then what comes nearest to it.
  bool better(double y, double than) const {
    const auto meets = [&](double v) { return options_.ratio > 0.0 ? v <= want_high() : v >= want_low(); };
    if (meets(y) != meets(than)) return meets(y);
    return std::fabs(y) < std::fabs(than);
  }

  // Decodes what was written: what cannot be read back is not handed out.
  Status verify() {
    shared_.step = best_.step;
    shared_.log_step = best_.log_step;
    shared_.centroids = best_.centroids;
    const Models models(*shared_.model->tables, best_.log_step);
    std::vector<uint8_t> good(all_.size());
    pool_.run(static_cast<uint32_t>(all_.size()), [&](uint32_t c) {
      good[c] = decode_chunk(shared_, models, all_[c].first, all_[c].count, best_.chunks[c].bytes, best_.chunks[c].check, {});
    });
    for (size_t c = 0; c < good.size(); ++c) {
      if (!good[c])
        return error(StatusCode::internal, "the deep archive does not read back as written from token ", c * options_.chunk,
                     " on; nothing is stored");
    }
    return {};
  }

  std::vector<std::byte> write() const {
    const calib::DeepTables& tables = *shared_.model->tables;
    ArchiveFile file;
    file.info.calibration = shared_.model->id;
    file.info.layers = static_cast<uint32_t>(tables.coded.size());
    file.info.kv_heads = tables.kv_heads;
    file.info.head_dim = tables.head_dim;
    file.info.first_position = shared_.first_position;
    file.info.tokens = tokens_;
    file.info.chunk = options_.chunk;
    file.step = best_.step;
    file.log_step = best_.log_step;
    file.centroids = best_.centroids;
    for (const ChunkResult& c : best_.chunks) {
      file.chunks.push_back(c.bytes);
      file.checks.push_back(c.check);
    }
    return write_archive(file);
  }

  void fill(EncodeReport& report, size_t bytes) const {
    report = {};
    report.bytes = bytes;
    report.ratio = static_cast<double>(fp16_bytes(*shared_.model->tables, tokens_)) / static_cast<double>(bytes);
    report.quality = best_.energy > 0.0 ? 1.0 - best_.lost / best_.energy : 1.0;
    report.step = static_cast<double>(best_.step);
    report.passes = passes_;
    for (const ChunkResult& c : best_.chunks) {
      report.predicted += c.predicted;
      report.plain += c.plain;
      report.finer += c.finer;
      report.raw += c.raw;
    }
  }

  const EncodeOptions& options_;
  uint32_t tokens_;
  const ReadRows& read_;
  ThreadPool pool_;
  Shared shared_;
  std::vector<uint8_t> classes_;
  std::vector<Stretch> all_, sample_;
  bool finite_ = true;
  uint32_t passes_ = 0;
  int32_t at_ = 0;
  double slope_ = -0.8 / 256.0;
  Pass best_;
  double best_y_ = 0.0;
};

Status damaged(const std::string& what) { return error(StatusCode::data_loss, "the deep archive is damaged: ", what); }

}  // namespace

Result<std::vector<std::byte>> encode(const ModelTables& model, uint32_t first_position, uint32_t tokens, const ReadRows& read,
                                      const EncodeOptions& options, EncodeReport* report) {
  if (tokens == 0 || first_position >= (1u << 21) || tokens > (1u << 21) - first_position) {
    return error(StatusCode::invalid_argument, "a deep archive holds tokens of positions below ", 1u << 21, ", not ", tokens,
                 " from ", first_position, " on");
  }
  const bool by_ratio = options.ratio > 0.0, by_quality = options.quality > 0.0;
  if (by_ratio == by_quality)
    return error(StatusCode::invalid_argument, "a deep archive needs a ratio or a quality to aim at, one of them");
  if (by_ratio && !(options.ratio >= 2.0 && options.ratio <= 1000.0))
    return error(StatusCode::invalid_argument, "a ratio of ", options.ratio, "; 2 to 1000 is allowed");
  if (by_quality && !(options.quality < 1.0))
    return error(StatusCode::invalid_argument, "a quality of ", options.quality, "; above 0 and below 1 is allowed");
  if (options.chunk < kCodingBlock || options.chunk > kMostChunk || options.chunk % kCodingBlock != 0) {
    return error(StatusCode::invalid_argument, "chunks of ", options.chunk, " tokens; multiples of ", kCodingBlock, " up to ",
                 kMostChunk, " are allowed");
  }
  if (!options.weights.empty() && options.weights.size() != static_cast<size_t>(tokens) * model.tables->coded.size()) {
    return error(StatusCode::invalid_argument, options.weights.size(), " weights for ", tokens, " tokens of ",
                 model.tables->coded.size(), " layers");
  }
  return Encoding(model, first_position, tokens, read, options).run(report);
}

Result<ArchiveInfo> inspect(std::span<const std::byte> bytes) {
  TIERKV_ASSIGN_OR_RETURN(const ArchiveFile p, parse_archive(bytes));
  return p.info;
}

struct Decoder::State {
  ArchiveFile file;
  ModelTables model;
  Shared shared;
  std::optional<Models> models;
};

Decoder::Decoder(std::unique_ptr<State> state) : state_(std::move(state)) {}
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;
const ArchiveInfo& Decoder::info() const { return state_->file.info; }
uint32_t Decoder::chunks() const { return static_cast<uint32_t>(state_->file.chunks.size()); }

Result<Decoder> Decoder::open(std::span<const std::byte> bytes, const ModelTables& model, ThreadPool& pool) {
  TIERKV_ASSIGN_OR_RETURN(ArchiveFile p, parse_archive(bytes));
  if (p.info.calibration != model.id) {
    return error(StatusCode::failed_precondition, "the deep archive was encoded with another calibration: with ", std::hex,
                 p.info.calibration, ", not ", model.id);
  }
  const calib::DeepTables& tables = *model.tables;
  if (p.info.layers != tables.coded.size() || p.info.kv_heads != tables.kv_heads || p.info.head_dim != tables.head_dim) {
    return damaged("its shape is not that of its calibration");
  }
  auto state = std::make_unique<State>();
  state->model = model;
  Shared& shared = state->shared;
  shared.model = &state->model;
  shared.transforms = make_transforms(tables, false, pool);
  shared.step = p.step;
  shared.log_step = p.log_step;
  shared.centroids = p.centroids;
  shared.first_position = p.info.first_position;
  state->models.emplace(tables, p.log_step);
  state->file = std::move(p);
  return Decoder(std::move(state));
}

Status Decoder::decode(uint32_t first_chunk, uint32_t count, ThreadPool& pool, const WriteRows& write) const {
  const ArchiveFile& p = state_->file;
  std::vector<uint8_t> good(count);
  pool.run(count, [&](uint32_t i) {
    const uint32_t c = first_chunk + i, first = c * p.info.chunk;
    good[i] = decode_chunk(state_->shared, *state_->models, first, std::min(p.info.chunk, p.info.tokens - first), p.chunks[c],
                           p.checks[c], write);
  });
  for (uint32_t i = 0; i < count; ++i) {
    if (good[i]) continue;
    return damaged("the chunk at token " + std::to_string((first_chunk + i) * p.info.chunk) +
                   " does not decode to what was encoded");
  }
  return {};
}

Status decode(std::span<const std::byte> bytes, const ModelTables& model, uint32_t threads, const WriteRows& write) {
  ThreadPool pool(threads);
  TIERKV_ASSIGN_OR_RETURN(const Decoder decoder, Decoder::open(bytes, model, pool));
  return decoder.decode(0, decoder.chunks(), pool, write);
}

}  // namespace tierkv::deep
