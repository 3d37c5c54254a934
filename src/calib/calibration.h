// calibration.h — what is known about one model's keys and values: the tables of the codecs that need some, in one file.
//
// Layout:   magic, version, ModelId, frame (block, sinks, distance), rotations of the layers, where it came from; then sections, each a
//           tag of four letters, a length, a checksum and its bytes; XXH3-64 of everything at the end. A reader refuses a section it does
//           not know only when something needs it. A file of another version, or with a bit flipped, is refused whole.
// Identity: id() is the checksum at the end. Blocks and files that were encoded with the tables carry it; another calibration of the same
//           model is another id, and never decodes them.
// Threads:  immutable after load() or finish(), but for what it remembers of allocations, under a lock of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "calib/deep.h"
#include "calib/klt.h"
#include "calib/kvquant.h"
#include "calib/squat.h"
#include "calib/statistics.h"
#include "tierkv/calibration.h"
#include "tierkv/status.h"

namespace tierkv::calib {

struct Origin {
  std::string text;     // what was read, in words
  uint64_t tokens = 0;  // of it
  std::string made_by;  // version of the program
};

class Calibration {
 public:
  static Result<std::shared_ptr<const Calibration>> load(const std::string& path);
  static Result<std::shared_ptr<const Calibration>> parse(std::span<const std::byte> bytes, const std::string& name);

  Calibration() = default;
  // Of the model and the frame that the statistics are of, without sections.
  Calibration(const Statistics& statistics, Origin from)
      : model(statistics.model), origin(std::move(from)), block(statistics.block), sinks(statistics.sinks), distance(statistics.distance),
        rotations(statistics.rotations) {}
  ModelId model;
  Origin origin;
  uint32_t block = 0, sinks = 0, distance = 0;  // as in Statistics
  std::vector<Rotation> rotations;              // of each layer

  // Sections; null where the file has none.
  std::shared_ptr<const KltTables> klt;
  std::shared_ptr<const KvquantTables> kvquant;
  std::shared_ptr<const SquatTables> squat;
  std::shared_ptr<const DeepTables> deep;  // as solved; from a file they are read when asked for, see deep_tables()

  // Makes the sections' derived parts and the id. Call once, when everything above is set. REQUIRES: one rotation per layer.
  Status finish();
  std::vector<std::byte> serialize() const;
  Status save(const std::string& path) const;

  uint64_t id() const { return id_; }
  std::string id_text() const;  // sixteen hexadecimal digits
  size_t bytes() const;         // that its tables take in memory
  const Turner& turner(uint32_t layer) const { return *turners_[turner_of_[layer]]; }
  // The deep archive's tables are large and seldom needed: of a calibration that load() read they stay in the file until asked for, and go when
  // nobody holds them. failed_precondition: it has none. data_loss, io_error: the file is not what it was.
  bool has_deep() const { return deep || deep_bytes_; }
  Result<std::shared_ptr<const DeepTables>> deep_tables() const;
  // What one head gets (KltTables::allocate). The whole model's are worked out once for every width asked for.
  KltChoice klt_choice(double bits, bool joint, uint32_t layer, uint32_t head) const;
  // Refuses when `other` is another model or has another shape.
  Status check_model(const ModelId& other) const;

 private:
  uint64_t id_ = 0;
  std::vector<std::unique_ptr<Turner>> turners_;  // each different rotation once
  std::vector<size_t> turner_of_;
  static Result<std::shared_ptr<const Calibration>> parse(std::span<const std::byte> bytes, const std::string& name, bool keep_deep);
  std::string path_;                 // of the file that has the deep tables
  uint64_t deep_at_ = 0, deep_bytes_ = 0, deep_checksum_ = 0;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<double, bool>, std::vector<KltChoice>> choices_;  // by bits, and whether joint
  mutable std::weak_ptr<const DeepTables> deep_held_;
};

// The tables of one KV head of one layer, as a codec is given them.
struct HeadTables {
  std::shared_ptr<const Calibration> calibration;
  uint32_t layer = 0;
  uint32_t head = 0;
};

}  // namespace tierkv::calib
