// SHA-256, incremental: how checkpoints prove that every byte read is the byte that was written. libcrypto computes it
// and takes the processor's SHA instructions where there are some.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace perigee {

/// One thread at a time may use an object. Throws Category::internal where libcrypto fails.
class Sha256 {
  public:
    Sha256();

    void update(std::span<std::byte const> bytes);
    /// 64 hexadecimal digits, lower case. Ends the computation: nothing may be added afterwards.
    std::string finish();

  private:
    std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

std::string sha256(std::string_view text);

}  // namespace perigee
