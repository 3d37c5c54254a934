// The prefix store as files: names, what is refused, who goes first, and disks that do not work.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>

#include "serve/prefix_store.h"
#include "serve/sha256.h"

namespace tierkv::serve {
namespace {

namespace fs = std::filesystem;

std::string hex_sha256(const std::string& text) {
  Sha256 hash;
  for (const char& c : text) hash.add(std::as_bytes(std::span(&c, 1)));  // in the smallest pieces
  std::string out;
  char digits[3];
  for (const uint8_t byte : hash.finish()) {
    std::snprintf(digits, sizeof digits, "%02x", byte);
    out += digits;
  }
  return out;
}

// FIPS 180-4's own examples.
TEST(StoreNames, HashIsSha256) {
  EXPECT_EQ(hex_sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex_sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex_sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex_sha256(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(StoreNames, AreReadAsTheyAreWrittenAndNothingElseIs) {
  const ChunkKey root = root_key("a model");
  const Tokens tokens = {1, 2, 3};
  for (const ChunkKind kind : {ChunkKind::run, ChunkKind::rest}) {
    const ChunkName name{child_key(root, kind, tokens), root, 3, kind};
    EXPECT_EQ(parse_chunk_name(name.file()), name);
    EXPECT_FALSE(parse_chunk_name(name.file() + ".tmp.0011223344556677"));
    EXPECT_FALSE(parse_chunk_name("0" + name.file()));
    EXPECT_FALSE(parse_chunk_name(name.file().substr(1)));
  }
  for (const char* other : {"", "a", ".", "..", "README.md"}) EXPECT_FALSE(parse_chunk_name(other)) << other;
  // Whatever differs in the text, its order, its cut or its kind gives another key.
  const Tokens turned = {2, 1, 3}, longer = {1, 2, 3, 4};
  EXPECT_NE(child_key(root, ChunkKind::run, tokens), child_key(root, ChunkKind::run, turned));
  EXPECT_NE(child_key(root, ChunkKind::run, tokens), child_key(root, ChunkKind::run, longer));
  EXPECT_NE(child_key(root, ChunkKind::run, tokens), child_key(root, ChunkKind::rest, tokens));
  EXPECT_NE(child_key(root, ChunkKind::run, tokens), child_key(root_key("another"), ChunkKind::run, tokens));
}

class Store : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tierkv_store_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    CacheConfig config;
    config.num_layers = 1;
    config.num_kv_heads = 1;
    config.head_dim = 32;
    config.archive_block = config.warm_block = 16;
    config.tiers = {16, 16, "rot4", "rot2", 2, 0};
    cache_ = AdaptiveKVCache::create(config).value();
    for (llama_token i = 0; i < 300; ++i) tokens_.push_back(i * 7 % 101);
    sequence_ = cache_->add_sequence().value();
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::vector<float> rows(tokens_.size() * 32);
    for (float& x : rows) x = normal(rng);
    const RowsView view = RowsView::f32(rows.data(), static_cast<uint32_t>(tokens_.size()), 1, 32);
    ASSERT_TRUE(cache_->append(sequence_, 0, view, view).ok());
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::unique_ptr<PrefixStore> open(uint64_t most = 1 << 20) {
    StoreOptions options;
    options.folder = folder_;
    options.most_bytes = most;
    options.pause_s = 0.0;
    return std::make_unique<PrefixStore>(options, *cache_, [] {});
  }

  // The chain of the sequence: a run every 64 tokens, and the rest.
  void put_all(PrefixStore& store, const ChunkKey& root) {
    ChunkKey parent = root;
    uint32_t first = 0;
    const auto put = [&](uint32_t end, ChunkKind kind) {
      const Tokens part(tokens_.begin() + first, tokens_.begin() + end);
      const ChunkName name{child_key(parent, kind, part), parent, end - first, kind};
      store.put({name, first, part, cache_->freeze_run(sequence_, first, end).value(), std::nullopt});
      parent = name.key;
      first = end;
    };
    const std::vector<uint32_t> ends = cache_->run_ends(sequence_).value();
    for (const uint32_t end : ends) {
      if (end >= first + 64) put(end, ChunkKind::run);
    }
    put(static_cast<uint32_t>(tokens_.size()), ChunkKind::rest);
  }

  static LoadingPtr load(PrefixStore& store, const StoredPrefix& prefix, const Tokens& tokens) {
    const LoadingPtr loading = store.load(prefix, tokens);
    while (!loading->done) std::this_thread::yield();
    return loading;
  }
  StoredPrefix find(const PrefixStore& store, bool rest) const {
    const Tokens& all = tokens_;
    return store.find(root_, std::span(all).first(rest ? all.size() : all.size() - 1), 1000, true);
  }
  std::vector<fs::path> files(const std::string& ending = "") const {
    std::vector<fs::path> out;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().string().ends_with(ending)) out.push_back(entry.path());
    }
    return out;
  }

  std::string folder_;
  std::unique_ptr<AdaptiveKVCache> cache_;
  SeqId sequence_ = 0;
  Tokens tokens_;
  const ChunkKey root_ = root_key("this model");
};

TEST_F(Store, WhatWasPutIsThereAfterARestartBitForBit) {
  {
    const auto store = open();
    put_all(*store, root_);
    ASSERT_TRUE(store->flush(20.0));
    put_all(*store, root_);  // again: nothing is written twice
    ASSERT_TRUE(store->flush(20.0));
  }
  const auto store = open();
  EXPECT_EQ(store->counts().files, files().size());
  const StoredPrefix prefix = find(*store, true);
  EXPECT_TRUE(prefix.rest);
  EXPECT_EQ(prefix.tokens, tokens_.size());
  const LoadingPtr loading = load(*store, prefix, tokens_);
  const auto back = cache_->unfreeze_runs(loading->runs);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(cache_->freeze(*back).value(), cache_->freeze(sequence_).value());
  EXPECT_GT(store->counts().loaded_bytes, 0u);
  // Without its end the runs serve, and another root knows nothing.
  const StoredPrefix runs = find(*store, false);
  EXPECT_FALSE(runs.rest);
  EXPECT_GE(runs.tokens, 128u);
  EXPECT_LT(runs.tokens, tokens_.size());
  EXPECT_EQ(store->find(root_key("another model"), tokens_, 1000, true).tokens, 0u);
  Tokens other = tokens_;
  other[0] = 99;
  EXPECT_EQ(store->find(root_, other, 1000, true).tokens, 0u);
}

// Whatever byte of whatever file changes, wherever it is cut, whatever lies there instead: it is counted, goes, and the runs before
// it serve.
TEST_F(Store, DamagedCutAndForeignFilesAreRejectedAndRemoved) {
  {
    const auto store = open();
    put_all(*store, root_);
    ASSERT_TRUE(store->flush(20.0));
  }
  const fs::path saved = folder_ + "_saved";
  fs::copy(folder_, saved);
  std::mt19937 rng(2);
  uint64_t rejected = 0;
  for (int i = 0; i < 60; ++i) {
    fs::remove_all(folder_);
    fs::copy(saved, folder_);
    const auto all = files();
    const fs::path victim = all[rng() % all.size()];
    const auto size = fs::file_size(victim);
    if (i % 3 == 0) {
      fs::resize_file(victim, rng() % size);
    } else if (i % 3 == 1) {
      std::fstream file(victim, std::ios::in | std::ios::out | std::ios::binary);
      const auto at = static_cast<std::streamoff>(rng() % size);
      file.seekg(at);
      const char old = static_cast<char>(file.get());
      file.seekp(at);
      file.put(static_cast<char>(old ^ (1 << rng() % 8)));
    } else {
      const fs::path source = all[rng() % all.size()];
      if (source == victim) continue;
      fs::copy_file(source, victim, fs::copy_options::overwrite_existing);
    }
    const auto store = open();
    const LoadingPtr loading = load(*store, find(*store, true), tokens_);
    EXPECT_LT(loading->prefix.tokens, tokens_.size()) << "round " << i;
    EXPECT_FALSE(fs::exists(victim)) << "round " << i;
    for (const uint64_t count : store->counts().rejected) rejected += count;
    const bool archived = !loading->runs.empty() && !loading->prefix.rest;
    EXPECT_TRUE(!archived || cache_->unfreeze_runs(loading->runs).ok()) << "round " << i;
  }
  EXPECT_GE(rejected, 50u);
  fs::remove_all(saved);
}

TEST_F(Store, WhatAKilledWriterLeftIsSweptAndStrangersFilesAreNot) {
  const std::string name = ChunkName{root_, root_, 5, ChunkKind::run}.file();
  std::ofstream(folder_ + "/" + name + ".tmp.0123456789abcdef") << "half a chunk";
  std::ofstream(folder_ + "/notes.tmp.txt") << "mine";
  const auto store = open();
  EXPECT_EQ(files().size(), 1u);
  EXPECT_TRUE(fs::exists(folder_ + "/notes.tmp.txt"));
  EXPECT_EQ(store->counts().files, 0u);
}

TEST_F(Store, TheOldestEndsOfChainsGoFirstAndTheLimitHolds) {
  const auto store = open(60000);
  std::vector<ChunkKey> roots;
  for (int i = 0; i < 12; ++i) {
    roots.push_back(root_key("root " + std::to_string(i)));
    put_all(*store, roots.back());
    ASSERT_TRUE(store->flush(20.0));
    if (i > 0) (void)load(*store, store->find(roots[0], tokens_, 1000, true), tokens_);  // the first stays in use
    EXPECT_LE(store->counts().bytes, 60000u);
  }
  uint64_t bytes = 0;
  for (const fs::path& file : files()) bytes += fs::file_size(file);
  EXPECT_EQ(bytes, store->counts().bytes);
  EXPECT_GT(store->counts().evicted_chunks, 0u);
  EXPECT_TRUE(store->find(roots.back(), tokens_, 1000, true).rest);
  EXPECT_TRUE(store->find(roots[0], tokens_, 1000, true).rest);
  EXPECT_EQ(store->find(roots[1], tokens_, 1000, true).tokens, 0u);
}

// A file may not grow past a limit: what a full disk does, for this process alone.
TEST_F(Store, AFullDiskIsCountedAndLeavesNothing) {
  const auto store = open();
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  put_all(*store, root_);
  const bool flushed = store->flush(20.0);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, ignored);
  EXPECT_TRUE(flushed);
  EXPECT_GE(store->counts().failed_writes, 1u);
  EXPECT_FALSE(store->counts().last_error.empty());
  EXPECT_TRUE(files().empty());
  put_all(*store, root_);  // there is space again
  ASSERT_TRUE(store->flush(20.0));
  EXPECT_TRUE(find(*store, true).rest);
}

TEST_F(Store, AFolderThatCannotBeMadeIsAStoreThatHoldsNothing) {
  std::ofstream(folder_ + "/file") << "not a folder";
  StoreOptions options;
  options.folder = folder_ + "/file/store";
  PrefixStore store(options, *cache_, [] {});
  put_all(store, root_);
  EXPECT_TRUE(store.flush(20.0));
  EXPECT_FALSE(store.counts().last_error.empty());
  EXPECT_EQ(store.find(root_, tokens_, 1000, true).tokens, 0u);
}

TEST_F(Store, TwoServersShareAFolder) {
  StoreOptions options;
  options.folder = folder_;
  options.rescan_s = 0.05;
  PrefixStore one(options, *cache_, [] {}), two(options, *cache_, [] {});
  put_all(one, root_);
  put_all(two, root_);
  ASSERT_TRUE(one.flush(20.0) && two.flush(20.0));
  const ChunkKey other = root_key("only the first writes it");
  put_all(one, other);
  ASSERT_TRUE(one.flush(20.0));
  for (int i = 0; i < 400 && !two.find(other, tokens_, 1000, true).rest; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const LoadingPtr loading = load(two, two.find(other, tokens_, 1000, true), tokens_);
  EXPECT_EQ(loading->prefix.tokens, tokens_.size());
  // One of them removes what the other still knows of: that is no fault, and nothing is found.
  for (const fs::path& file : files()) fs::remove(file);
  EXPECT_EQ(load(one, one.find(other, tokens_, 1000, true), tokens_)->prefix.tokens, 0u);
  for (const uint64_t count : one.counts().rejected) EXPECT_EQ(count, 0u);
}

}  // namespace
}  // namespace tierkv::serve
