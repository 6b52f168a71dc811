#include "io/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "base/error.h"

namespace perigee {

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    PERIGEE_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
                  "libcrypto cannot begin a SHA-256");
}

void Sha256::update(std::span<std::byte const> bytes) {
    PERIGEE_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1,
                  "libcrypto cannot add {} bytes to a SHA-256", bytes.size());
}

std::string Sha256::finish() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> hash;
    unsigned size = 0;
    PERIGEE_CHECK(EVP_DigestFinal_ex(context_.get(), hash.data(), &size) == 1, "libcrypto cannot end a SHA-256");
    std::string text;
    for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", hash[i]);
    return text;
}

std::string sha256(std::string_view text) {
    Sha256 hash;
    hash.update(std::as_bytes(std::span(text)));
    return hash.finish();
}

}  // namespace perigee
