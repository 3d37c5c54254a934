// calibration.h — what is known about one model's keys and values: the tables of the codecs that need some, in one file.
//
// Layout:   magic, version, ModelId, frame (block, sinks, distance), ropes of the layers, where it came from; then sections,
//           each a tag of four letters, a length, a checksum and its bytes; XXH3-64 of everything at the end. A reader refuses a
//           section it does not know only when something needs it. A file of another version, or with a bit flipped, is refused
//           whole.
// Memory:   of a calibration from a file, or from bytes that stay, only its header and the RoPE tables are kept. Sections are read
//           when asked for and go when nobody holds them: codecs keep what they need of them, in their own form.
// Identity: id() is the checksum at the end. Blocks and files that were encoded with the tables carry it; another calibration of
//           the same model is another id, and never decodes them.
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
#include "calib/oscar.h"
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
  // `bytes_stay`: as parse_calibration() has it.
  static Result<std::shared_ptr<const Calibration>> parse(std::span<const std::byte> bytes, const std::string& name,
                                                          bool bytes_stay = false);

  Calibration() = default;
  // Of the model and the frame that the statistics are of, without sections.
  Calibration(const Statistics& statistics, Origin from)
      : model(statistics.model),
        origin(std::move(from)),
        block(statistics.block),
        sinks(statistics.sinks),
        distance(statistics.distance),
        ropes(statistics.ropes) {}
  ModelId model;
  Origin origin;
  uint32_t block = 0, sinks = 0, distance = 0;  // as in Statistics
  std::vector<Rope> ropes;                      // of each layer

  // Sections as solved, or as parsed from bytes that go away; null where there is none, and where it is read when asked for.
  std::shared_ptr<const KltTables> klt;
  std::shared_ptr<const KvquantTables> kvquant;
  std::shared_ptr<const SquatTables> squat;
  std::shared_ptr<const OscarTables> oscar;
  std::shared_ptr<const DeepTables> deep;

  // Makes the sections' derived parts and the id. Call once, when everything above is set. `file`, if wanted, gets the bytes that
  // save() would write. REQUIRES: one rope per layer.
  Status finish(std::vector<std::byte>* file = nullptr);
  // REQUIRES: made by finish() or parsed from bytes that go away: its sections are in memory.
  std::vector<std::byte> serialize() const;
  Status save(const std::string& path) const;

  uint64_t id() const { return id_; }
  std::string id_text() const;  // sixteen hexadecimal digits
  size_t bytes() const;         // in memory now, tables that somebody holds included
  const Turner& turner(uint32_t layer) const { return *turners_[turner_of_[layer]]; }

  bool has_klt() const { return klt || places_[kKlt].bytes; }
  bool has_kvquant() const { return kvquant || places_[kKvquant].bytes; }
  bool has_squat() const { return squat || places_[kSquat].bytes; }
  bool has_oscar() const { return oscar || places_[kOscar].bytes; }
  bool has_deep() const { return deep || places_[kDeep].bytes; }
  // failed_precondition: it has none. data_loss, io_error: they are not in order, or the file is not what it was.
  Result<std::shared_ptr<const KltTables>> klt_tables() const;
  Result<std::shared_ptr<const KvquantTables>> kvquant_tables() const;
  Result<std::shared_ptr<const SquatTables>> squat_tables() const;
  Result<std::shared_ptr<const OscarTables>> oscar_tables() const;
  Result<std::shared_ptr<const DeepTables>> deep_tables() const;
  // While the result lives, tables that are read stay: for whoever makes the codecs of many heads.
  std::shared_ptr<const void> hold() const;
  // What one head gets (KltTables::allocate). The whole model's are worked out once for every width asked for.
  Result<KltChoice> klt_choice(double bits, bool joint, uint32_t layer, uint32_t head) const;
  // Refuses when `other` is another model or has another shape.
  Status check_model(const ModelId& other) const;

 private:
  enum Kind { kKlt, kKvquant, kSquat, kDeep, kOscar, kKinds };
  enum class Source { goes, stays, file };  // of the bytes that are parsed
  struct Place {
    uint64_t at = 0, bytes = 0, checksum = 0;
  };
  using Keeper = std::vector<std::shared_ptr<const void>>;

  static Result<std::shared_ptr<const Calibration>> parse(std::span<const std::byte> bytes, const std::string& name, Source source);
  Status get_section(std::span<const std::byte> tag, const Place& place, std::span<const std::byte> bytes, Source source);
  Status make_turners();
  template <class Tables>
  Result<std::shared_ptr<const Tables>> read(Kind kind, const std::shared_ptr<const Tables>& solved, const char* missing) const;

  uint64_t id_ = 0;
  std::vector<std::unique_ptr<Turner>> turners_;  // each different rope once
  std::vector<size_t> turner_of_;
  std::string name_;  // of the bytes, for messages; the path of a file
  bool from_file_ = false;
  std::span<const std::byte> bytes_;  // that stay
  Place places_[kKinds];              // of sections that are read when asked for
  mutable std::mutex mutex_;
  mutable std::map<std::pair<double, bool>, std::vector<KltChoice>> choices_;  // by bits, and whether joint
  mutable std::weak_ptr<const void> held_[kKinds];
  mutable std::weak_ptr<Keeper> keeper_;
};

// The tables of one KV head of one layer, as a codec is given them.
struct HeadTables {
  std::shared_ptr<const Calibration> calibration;
  uint32_t layer = 0;
  uint32_t head = 0;
};

}  // namespace tierkv::calib
