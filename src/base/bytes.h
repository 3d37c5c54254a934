// bytes.h — little-endian values in and out of byte strings, for files that are small enough to be read whole.
//
// A reader never reads past its end: the first value that does not fit makes it fail, everything after that is zero, and ok() says
// so, so that a format is read straight through and checked once. Lengths are checked against what is left before anything is
// allocated.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tierkv {

static_assert(std::endian::native == std::endian::little, "values are written as they lie in memory");

class ByteWriter {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    raw(&value, sizeof value);
  }
  void put_text(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    raw(text.data(), text.size());
  }
  // Its length, then its values.
  template <class T>
  void put_array(const std::vector<T>& values) {
    static_assert(std::is_arithmetic_v<T>);
    put(static_cast<uint64_t>(values.size()));
    raw(values.data(), values.size() * sizeof(T));
  }
  void put_bytes(std::span<const std::byte> bytes) { raw(bytes.data(), bytes.size()); }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  void raw(const void* data, size_t size) {
    const auto* p = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), p, p + size);
  }
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  T get() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    if (take(sizeof value)) std::memcpy(&value, taken_.data(), sizeof value);
    return value;
  }
  std::string get_text(uint32_t most) {
    const uint32_t size = get<uint32_t>();
    if (size > most || !take(size)) {
      ok_ = false;
      return {};
    }
    return std::string(reinterpret_cast<const char*>(taken_.data()), size);
  }
  // REQUIRES of the file: exactly `expected` values.
  template <class T>
  std::vector<T> get_array(uint64_t expected) {
    static_assert(std::is_arithmetic_v<T>);
    const uint64_t size = get<uint64_t>();
    if (size != expected || size > rest_.size() / sizeof(T) || !take(size * sizeof(T))) {
      ok_ = false;
      return {};
    }
    std::vector<T> values(size);
    if (size) std::memcpy(values.data(), taken_.data(), size * sizeof(T));
    return values;
  }
  std::span<const std::byte> get_bytes(uint64_t size) { return take(size) ? taken_ : std::span<const std::byte>(); }

  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && rest_.empty(); }

 private:
  bool take(uint64_t size) {
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      return false;
    }
    taken_ = rest_.first(size);
    rest_ = rest_.subspan(size);
    return true;
  }
  std::span<const std::byte> rest_, taken_;
  bool ok_ = true;
};

}  // namespace tierkv
