#include "serve/sha256.h"

#include <openssl/evp.h>

#include <new>

namespace tierkv::serve {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

// OpenSSL's calls fail for want of memory alone: the algorithm is always there.
Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (state_->context == nullptr || EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) != 1) throw std::bad_alloc();
}

Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  if (EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) != 1) throw std::bad_alloc();
}

Sha256::Digest Sha256::finish() {
  Digest digest;
  if (EVP_DigestFinal_ex(state_->context, digest.data(), nullptr) != 1) throw std::bad_alloc();
  return digest;
}

}  // namespace tierkv::serve
