// codec.h — one side (keys or values) of one block: rows of one KV head <-> packed bytes, and attention on those bytes.
//
// A Codec is made for a spec, a side and a block shape, holds what it can precompute, and is immutable afterwards.
// It turns `shape.tokens` rows of `shape.head_dim` floats into exactly bytes() bytes.
//
// Frames: a rotated codec stores its rows in another orthonormal frame. Rotating the query instead of every key leaves scores
// unchanged, and sums of values are rotated back once per output row, so scores() takes queries in frame() and
// accumulate() adds in frame(): the attention loop transforms each query once per frame, not once per block.
// Frame::block is for codecs whose query transform depends on the block (a block-relative RoPE frame): they get the plain
// query and transform it themselves.
//
// Threads:  every method is const and may run on many threads at once; scratch is the caller's Workspace.
// Errors:   encode() refuses non-finite rows and rows its metadata cannot represent, and writes nothing then;
//           validate() refuses bytes that encode() could not have written in a way that would poison attention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quant/kernels.h"
#include "tierkv/status.h"

namespace tierkv::quant {

enum class Side : uint8_t { key = 0, value = 1 };

enum class Frame : uint8_t { plain = 0, hadamard = 1, block = 2 };

struct BlockShape {
  uint32_t tokens = 0;    // rows a full block holds, 1..256
  uint32_t head_dim = 0;  // 32..256, a multiple of 16
  bool operator==(const BlockShape&) const = default;
};

class Codec;
class ErrorFeedback;
struct SideLayout;
struct SideCoding;
struct GuideTables;

// What a codec may need to know about a block beside its rows.
struct BlockContext {
  uint32_t layer = 0;
  uint32_t kv_head = 0;
  uint32_t first_position = 0;          // of row 0
  const uint32_t* positions = nullptr;  // of each row when they are not consecutive, else null
  // For encode(), which may do without. A codec of the same KV head that knows where its queries look (directions()), so that
  // another one can keep its errors out of there; and the rule that it makes of that for a codec inside it, in that one's frame.
  const Codec* guide = nullptr;
  const ErrorFeedback* feedback = nullptr;

  // Encoding: how much attention each row got so far, not negative, in any unit; a row with 0 is not worth bits of its own. Null:
  // nobody knows, all rows count alike.
  const float* mass = nullptr;
};

inline constexpr uint32_t kMostDirections = 32;

// Scratch that grows to what the codecs of a thread need and is reused; nothing in it outlives a call, but for queries as bytes:
// whoever asks for scores of the same queries over many blocks numbers them (queries_id, 0: not numbered), so that they are rounded
// once. Codecs that are asked with one number live until the next is given.
struct Workspace {
  std::vector<float> a, b, c;
  std::vector<int8_t> bytes;
  Ahead ahead;  // what the caller will have read after this call, or nothing

  // Rounding of queries and weights may add up to one percent to the variance of the codes' own error: 2-bit codes of rotated rows
  // then take one plane of factor bytes instead of two. What it is worth: docs/build/measurements.md, "Factors of 8 bits".
  bool coarse = false;

  uint64_t queries_id = 0;
  // A codec may keep its tables as floats here while it is asked for them, block after block: a cache has too many heads to keep
  // all of them so. `of`: a number that no other codec has or will have.
  struct {
    uint64_t of = 0;
    std::vector<float> table;
    std::vector<int32_t> pairs;  // or, where kernels are faster so, as 16-bit integers, and what brings rows to such
    std::vector<float> scales;
  } widened;
  // What brings numbered queries to 16-bit integers of kPairLength; turning them changes no length.
  struct {
    uint64_t id = 0;
    const float* of = nullptr;
    uint32_t count = 0;
    std::vector<float> scales;
  } lengths;
  // Numbered queries turned to where the last block began (turned_queries.h).
  struct Turned {
    uint64_t id = 0;
    const void* of = nullptr;
    const float* queries = nullptr;
    uint32_t count = 0, first = 0, steps = 0;
    std::vector<float> rows, step;
  } turned;
  bool prepared = false;        // error_queries() was called: scores() goes on from there
  std::vector<float> products;  // of queries with better rows (overlaid.h); no other codec uses it
  struct {
    uint64_t id = 0;
    const float* of = nullptr;
    uint32_t count = 0, dim = 0, group = 0, planes = 0;
    std::vector<int8_t> factors;
    std::vector<RoundedRow> terms;
  } rounded;
};

// Which codec, exactly: what is stored on disk beside a block. Modifiers in text: "kivi2-g64+s8+clip+top4".
struct CodecSpec {
  enum Flag : uint16_t {
    hadamard = 1,  // "+had"    rotate before quantization (rot* has it built in)
    scale8 = 2,    // "+s8"     8-bit coded scales
    scale4 = 4,    // "+s4"     4-bit coded scales
    clip = 8,      // "+clip"   error-minimising clipping of each group
    center = 16,   // "+center" remove each channel's mean over the block first (keys; exact in the scores)
  };
  uint16_t id = 0;     // registry row
  uint8_t bits = 0;    // per code; 0 where the row has one width
  uint8_t top = 0;     // "+topN": rows of a block that are kept better (overlaid.h)
  uint16_t group = 0;  // values that share a scale; 0: the row's default
  uint16_t flags = 0;
  bool operator==(const CodecSpec&) const = default;
};
static_assert(sizeof(CodecSpec) == 8, "stored on disk");

// Queries on their way to an error frame (Codec::error_queries()), count x error_channels(). The last step, where one is left, is
// to_hadamard_by() of frame.h: whoever multiplies them takes it on the way.
struct ErrorQueries {
  const float* rows = nullptr;
  const float* factors = nullptr;  // of that step; null: they are there
};

class Codec {
 public:
  virtual ~Codec() = default;

  const CodecSpec& spec() const { return spec_; }
  Side side() const { return side_; }
  const BlockShape& shape() const { return shape_; }
  size_t bytes() const { return bytes_; }
  Frame frame() const { return frame_; }
  // How far scores() and accumulate() may be from the sums over decoded rows, relative to |q||k| and to the sum of
  // |w||v|/sqrt(head_dim): the kernels round queries and weights to bytes (kernels.h), far less than the codes are off. The scalar
  // code stays below 1e-4.
  double tolerance() const { return tolerance_; }

  // rows: shape.tokens x shape.head_dim, row-major, plain frame. out: exactly bytes() bytes, all of them written.
  virtual Status encode(const float* rows, const BlockContext& ctx, std::span<std::byte> out) const = 0;

  // Rows first..first+count-1 in the plain frame, row-major.
  virtual void decode(std::span<const std::byte> in, const BlockContext& ctx, uint32_t first, uint32_t count, float* out) const = 0;

  // Keys: out[i*stride + t] = dot(queries[i], row t) for t < rows. queries: count x head_dim, in frame().
  virtual void scores(std::span<const std::byte> in, const BlockContext& ctx, const float* queries, uint32_t count, uint32_t rows,
                      float* out, size_t stride, Workspace& ws) const = 0;

  // Values: acc[i] += sum over t < rows of weights[i*stride + t] * row t. acc: count x head_dim, in frame().
  virtual void accumulate(std::span<const std::byte> in, const BlockContext& ctx, const float* weights, size_t stride,
                          uint32_t count, uint32_t rows, float* acc, Workspace& ws) const = 0;

  // Where queries look: with D the rows it gives, an error e of a key weighs floor·|e|² + |De|². At most kMostDirections rows of
  // head_dim, in the plain frame for keys at `position`; how many. 0: it does not know.
  virtual uint32_t directions(uint32_t position, float* rows, float& floor) const {
    (void)position, (void)rows, (void)floor;
    return 0;
  }

  // The same as tables, for whoever encodes elsewhere. False: there are none.
  virtual bool guide_tables(GuideTables& out) const {
    (void)out;
    return false;
  }

  // encode(), and what the rows lost by it, in a frame in which an error does as much harm in every direction, as far as the codec
  // knows, spread evenly over error_channels() channels: shape.tokens x error_channels(). For overlaid.h, which codes it there.
  // Directions in which next to nothing is lost may be left out. The error frame of a codec in Frame::hadamard is that frame.
  virtual uint32_t error_channels() const { return shape_.head_dim; }  // a multiple of 16, at most head_dim
  virtual Status encode_with_errors(const float* rows, const BlockContext& ctx, std::span<std::byte> out, float* errors) const;
  // And back, into frame(). `rows` are used up, `out` is apart from them. `exact`: the same bits on every machine, as decode() has
  // to give.
  virtual void from_error_frame(const BlockContext& ctx, float* rows, uint32_t count, bool exact, float* out) const;
  // Keys: the queries turned the other way. Their product with a row of the error frame is what that row adds to a score, so a few
  // queries need no row turned back. In `ws` until its next use. The next call with `ws` has to be scores() of the same block and
  // queries, which goes on from there: so what is made of these queries does not wait for the scores.
  virtual ErrorQueries error_queries(const BlockContext& ctx, const float* queries, uint32_t count, Workspace& ws) const;

  // Memory of its own, calibrated tables of one head included.
  virtual size_t table_bytes() const { return 0; }

  // Says how its bytes are to be read without it (layout.h). False: only the codec itself can read them. Pointers in `out` are the
  // codec's own.
  virtual bool layout(SideLayout& out) const {
    (void)out;
    return false;
  }

  // Says how its bytes are to be made without it. False: only the codec itself can make them.
  virtual bool coding(SideCoding& out) const {
    (void)out;
    return false;
  }

  // For bytes from outside: every scale and mean finite, every code in range.
  virtual Status validate(std::span<const std::byte> in) const = 0;

 protected:
  Codec(CodecSpec spec, Side side, BlockShape shape, Frame frame) : spec_(spec), side_(side), shape_(shape), frame_(frame) {}
  size_t bytes_ = 0;  // set by the constructor of the codec
  double tolerance_ = 1e-4;

 private:
  CodecSpec spec_;
  Side side_;
  BlockShape shape_;
  Frame frame_;
};

}  // namespace tierkv::quant
