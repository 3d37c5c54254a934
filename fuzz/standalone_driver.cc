// standalone_driver.cc — runs LLVMFuzzerTestOneInput without libFuzzer, for compilers that have none.
//
//   foo_fuzzer [--seconds N] [--runs N] [--seed N] [--max-len N] [--dict FILE] [--artifacts DIR] [corpus directory or file]...
//
// Every seed runs as it is; then random seeds are mutated (bits, bytes, integers, dictionary words, splices, truncations) until the
// time or the runs are over. --runs 0 replays the given files and stops. There is no coverage feedback: this is the quick check of
// every CI run; `make fuzz` is the thorough one.
//
// A crash, a sanitizer report or an input that takes longer than 20 seconds leaves the input in DIR and its path on stderr.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// A fuzzer may bring its own mutator, for instance one that makes checksums right again so that damage gets past them.
extern "C" __attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed);
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

namespace {

using Bytes = std::vector<uint8_t>;

constexpr unsigned kSecondsPerInput = 20;

struct Options {
  double seconds = 4;
  uint64_t runs = UINT64_MAX;
  uint64_t seed = 0;
  size_t max_len = 1 << 16;
  std::string artifacts = ".";
  std::vector<Bytes> corpus;
};

std::mt19937_64 rng;
std::vector<Bytes> dictionary;

// What the crash handlers need, ready before the crash: in a handler only write() and friends are safe.
Bytes current;
std::string crash_path;
volatile sig_atomic_t saved = 0;

void save_current() {
  if (saved) return;
  saved = 1;
  const int fd = creat(crash_path.c_str(), 0644);
  size_t done = 0;
  while (fd >= 0 && done < current.size()) {
    const ssize_t n = write(fd, current.data() + done, current.size() - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  const char* text = fd >= 0 ? "\nfuzz: the failing input is in " : "\nfuzz: could not write the failing input to ";
  for (const char* part : {text, crash_path.c_str(), "\n"}) {
    if (write(STDERR_FILENO, part, strlen(part)) < 0) return;
  }
}

void on_signal(int number) {
  if (number == SIGALRM) {
    const char text[] = "\nfuzz: the input below took too long\n";
    if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0) _exit(1);
  }
  save_current();
  signal(number, SIG_DFL);
  raise(number);
}

void install_handlers() {
  // Under ASan the sanitizer's own report comes first and the death callback saves the input.
  if (__sanitizer_set_death_callback) {
    __sanitizer_set_death_callback(save_current);
  } else {
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) signal(number, on_signal);
  }
  signal(SIGABRT, on_signal);
  signal(SIGALRM, on_signal);
}

uint64_t below(uint64_t n) { return n ? rng() % n : 0; }

void overwrite(Bytes& data, size_t at, const void* from, size_t n) {
  if (at + n > data.size()) data.resize(at + n);
  std::memcpy(data.data() + at, from, n);
}

void insert(Bytes& data, size_t at, const uint8_t* from, size_t n) {
  data.insert(data.begin() + static_cast<ptrdiff_t>(at), from, from + n);
}

// Lengths, counts and offsets break at their edges; so do integers of every width inside a binary file.
void interesting_integer(Bytes& data) {
  static const uint64_t values[] = {0,
                                    1,
                                    2,
                                    15,
                                    16,
                                    31,
                                    32,
                                    64,
                                    127,
                                    128,
                                    255,
                                    256,
                                    4096,
                                    32767,
                                    32768,
                                    65535,
                                    65536,
                                    0x7FFFFFFF,
                                    0x80000000,
                                    0xFFFFFFFF,
                                    0x100000000,
                                    0x7FFFFFFFFFFFFFFF,
                                    0x8000000000000000,
                                    UINT64_MAX};
  uint64_t value = values[below(std::size(values))];
  if (below(4) == 0) value = data.size() + below(3) - 1;
  overwrite(data, below(data.size()), &value, size_t{1} << below(4));
}

void mutate_once(Bytes& data, const std::vector<Bytes>& corpus) {
  if (data.empty()) data.push_back(static_cast<uint8_t>(rng()));
  switch (below(11)) {
    case 0: data[below(data.size())] ^= static_cast<uint8_t>(1u << below(8)); break;
    case 1: data[below(data.size())] = static_cast<uint8_t>(rng()); break;
    case 2: data[below(data.size())] += static_cast<uint8_t>(below(2) ? 1 : -1); break;
    case 3: interesting_integer(data); break;
    case 4: data.resize(below(data.size() + 1)); break;
    case 5: {  // forget a stretch
      const size_t at = below(data.size()), n = 1 + below(std::min<size_t>(64, data.size() - at));
      data.erase(data.begin() + static_cast<ptrdiff_t>(at), data.begin() + static_cast<ptrdiff_t>(at + n));
      break;
    }
    case 6: {  // repeat a stretch
      const size_t at = below(data.size()), n = 1 + below(std::min<size_t>(64, data.size() - at));
      const Bytes piece(data.begin() + static_cast<ptrdiff_t>(at), data.begin() + static_cast<ptrdiff_t>(at + n));
      insert(data, below(data.size() + 1), piece.data(), piece.size());
      break;
    }
    case 7: {
      const uint8_t noise[4] = {static_cast<uint8_t>(rng()), static_cast<uint8_t>(rng()), static_cast<uint8_t>(rng()), 0};
      insert(data, below(data.size() + 1), noise, 1 + below(4));
      break;
    }
    case 8: {  // the head of this, the tail of another
      if (corpus.empty()) break;
      const Bytes& other = corpus[below(corpus.size())];
      const size_t from = below(other.size() + 1);
      data.resize(below(data.size() + 1));
      data.insert(data.end(), other.begin() + static_cast<ptrdiff_t>(from), other.end());
      break;
    }
    default: {
      if (dictionary.empty()) break;
      const Bytes& word = dictionary[below(dictionary.size())];
      if (below(2)) insert(data, below(data.size() + 1), word.data(), word.size());
      else overwrite(data, below(data.size()), word.data(), word.size());
    }
  }
}

void mutate(Bytes& data, const std::vector<Bytes>& corpus, size_t max_len) {
  for (uint64_t n = uint64_t{1} << below(5); n > 0; --n) mutate_once(data, corpus);
  if (data.size() > max_len) data.resize(max_len);
}

void run_one(const Bytes& data) {
  current = data;
  alarm(kSecondsPerInput);
  // A copy of exactly this size, so that a sanitizer sees one byte too many.
  const Bytes exact(data.begin(), data.end());
  (void)LLVMFuzzerTestOneInput(exact.data(), exact.size());
  alarm(0);
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::fprintf(stderr, "fuzz: cannot read %s\n", path.c_str());
    std::exit(2);
  }
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// libFuzzer's syntax: name="word" or "word", with \\ \" \n \t \xHH; # starts a comment.
void read_dictionary(const std::string& path) {
  std::ifstream in(path);
  if (!in) {
    std::fprintf(stderr, "fuzz: cannot read the dictionary %s\n", path.c_str());
    std::exit(2);
  }
  for (std::string line; std::getline(in, line);) {
    const size_t open = line.find('"'), close = line.rfind('"');
    if (line.empty() || line[0] == '#' || open == std::string::npos || close <= open) continue;
    Bytes word;
    for (size_t i = open + 1; i < close; ++i) {
      if (line[i] != '\\' || i + 1 >= close) {
        word.push_back(static_cast<uint8_t>(line[i]));
        continue;
      }
      const char next = line[++i];
      if (next == 'x' && i + 2 < close && hex_digit(line[i + 1]) >= 0 && hex_digit(line[i + 2]) >= 0) {
        word.push_back(static_cast<uint8_t>(hex_digit(line[i + 1]) * 16 + hex_digit(line[i + 2])));
        i += 2;
      } else {
        word.push_back(static_cast<uint8_t>(next == 'n' ? '\n' : next == 't' ? '\t' : next));
      }
    }
    dictionary.push_back(std::move(word));
  }
}

void read_corpus(const std::string& path, Options& options) {
  if (!std::filesystem::is_directory(path)) {
    options.corpus.push_back(read_file(path));
    return;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());  // one seed number, one run, on every file system
  for (const auto& file : files) options.corpus.push_back(read_file(file));
}

Options parse(int argc, char** argv) {
  Options options;
  options.seed = std::random_device{}();
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name.rfind("--", 0) != 0) {
      read_corpus(name, options);
      continue;
    }
    if (name == "--help" || i + 1 >= argc) {
      std::printf("usage: %s [--seconds N] [--runs N] [--seed N] [--max-len N] [--dict FILE] [--artifacts DIR] [corpus]...\n",
                  argv[0]);
      std::exit(name == "--help" ? 0 : 2);
    }
    const char* value = argv[++i];
    if (name == "--seconds") options.seconds = std::atof(value);
    else if (name == "--runs") options.runs = std::strtoull(value, nullptr, 10);
    else if (name == "--seed") options.seed = std::strtoull(value, nullptr, 10);
    else if (name == "--max-len") options.max_len = std::strtoull(value, nullptr, 10);
    else if (name == "--artifacts") options.artifacts = value;
    else if (name == "--dict") read_dictionary(value);
    else {
      std::fprintf(stderr, "fuzz: unknown option %s\n", name.c_str());
      std::exit(2);
    }
  }
  return options;
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size) {
  Bytes bytes(data, data + size);
  mutate(bytes, {}, max_size);
  std::copy(bytes.begin(), bytes.end(), data);
  return bytes.size();
}

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::error_code ignored;
  std::filesystem::create_directories(options.artifacts, ignored);
  crash_path = options.artifacts + "/crash-" + std::to_string(options.seed) + "-" + std::to_string(getpid());
  install_handlers();
  rng.seed(options.seed);
  std::printf("fuzz: seed %llu, %zu seeds, %zu words\n", static_cast<unsigned long long>(options.seed), options.corpus.size(),
              dictionary.size());
  std::fflush(stdout);

  for (const Bytes& seed : options.corpus) run_one(seed);
  run_one({});

  const auto start = std::chrono::steady_clock::now();
  uint64_t runs = 0;
  for (; runs < options.runs; ++runs) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (elapsed.count() > options.seconds) break;
    Bytes data = options.corpus.empty() ? Bytes{} : options.corpus[below(options.corpus.size())];
    if (LLVMFuzzerCustomMutator && below(2)) {
      const size_t size = data.size(), room = std::max(options.max_len, size);
      data.resize(room);
      data.resize(LLVMFuzzerCustomMutator(data.data(), size, room, static_cast<unsigned>(rng())));
    } else {
      mutate(data, options.corpus, std::max(options.max_len, data.size()));
    }
    run_one(data);
  }
  std::printf("fuzz: %llu mutated inputs, no crash\n", static_cast<unsigned long long>(runs));
  return 0;
}
