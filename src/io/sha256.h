// SHA-256, incremental: how checkpoints prove that every byte read is the byte that was written.
// Source: FIPS 180-4. Uses the processor's SHA instructions where the build targets them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace perigee {

class Sha256 {
  public:
    enum class Code { fastest, portable };  ///< portable: plain C++ whatever the processor, for comparison in tests
    explicit Sha256(Code code = Code::fastest) : code_(code) {}

    void update(std::span<std::byte const> bytes);
    /// 64 hexadecimal digits, lower case. Ends the computation: nothing may be added afterwards.
    std::string finish();

  private:
    void compress(std::byte const* blocks, size_t count);

    Code code_;
    std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::byte, 64> pending_{};  ///< the last, incomplete block
    uint64_t length_ = 0;                  ///< bytes so far
};

std::string sha256(std::string_view text);

}  // namespace perigee
