#include "io/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#ifdef __SHA__
#include <immintrin.h>
#endif

namespace perigee {

namespace {

constexpr size_t kBlock = 64;

alignas(16) constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(std::byte const* bytes) {
    uint32_t word;
    std::memcpy(&word, bytes, sizeof(word));
    return __builtin_bswap32(word);
}

void compress_portable(std::array<uint32_t, 8>& state, std::byte const* block) {
    auto rotr = [](uint32_t x, int n) { return std::rotr(x, n); };
    std::array<uint32_t, 64> w;
    for (size_t i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
    for (size_t i = 16; i < 64; ++i) {
        uint32_t const s0 = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
        uint32_t const s1 = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (size_t i = 0; i < 64; ++i) {
        uint32_t const t1 = h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
        uint32_t const t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    std::array<uint32_t, 8> const mixed{a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) state[i] += mixed[i];
}

#ifdef __SHA__
/// The instructions keep the state as (A, B, E, F) and (C, D, G, H) and do two rounds each; four message words at a
/// time are extended while earlier ones are consumed.
void compress_native(std::array<uint32_t, 8>& state, std::byte const* blocks, size_t count) {
    __m128i const swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    auto* words = reinterpret_cast<__m128i*>(state.data());
    __m128i const dcba = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xB1);
    __m128i const hgfe = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1B);
    __m128i abef = _mm_alignr_epi8(dcba, hgfe, 8);
    __m128i cdgh = _mm_blend_epi16(hgfe, dcba, 0xF0);
    for (; count > 0; --count, blocks += kBlock) {
        __m128i const abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];  // message words 4i..4i+3 of the last 16, in a ring
        for (size_t i = 0; i < 16; ++i) {
            __m128i& now = w[i % 4];
            if (i < 4) {
                now = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<__m128i const*>(blocks + 16 * i)), swap);
            } else {
                __m128i const last = w[(i + 3) % 4];
                __m128i const seven_back = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);
                now = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) % 4]), seven_back);
                now = _mm_sha256msg2_epu32(now, last);
            }
            __m128i const input = _mm_add_epi32(now, _mm_load_si128(reinterpret_cast<__m128i const*>(&kRound[4 * i])));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, input);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(input, 0x0E));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    __m128i const feba = _mm_shuffle_epi32(abef, 0x1B);
    __m128i const dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
}
#endif

}  // namespace

void Sha256::compress(std::byte const* blocks, size_t count) {
#ifdef __SHA__
    if (code_ == Code::fastest) return compress_native(state_, blocks, count);
#endif
    for (; count > 0; --count, blocks += kBlock) compress_portable(state_, blocks);
}

void Sha256::update(std::span<std::byte const> bytes) {
    size_t const used = length_ % kBlock;
    length_ += bytes.size();
    if (used > 0) {
        size_t const n = std::min(kBlock - used, bytes.size());
        std::copy_n(bytes.begin(), n, pending_.begin() + static_cast<std::ptrdiff_t>(used));
        bytes = bytes.subspan(n);
        if (used + n < kBlock) return;
        compress(pending_.data(), 1);
    }
    compress(bytes.data(), bytes.size() / kBlock);
    bytes = bytes.subspan(bytes.size() / kBlock * kBlock);
    std::copy(bytes.begin(), bytes.end(), pending_.begin());
}

std::string Sha256::finish() {
    uint64_t const bits = length_ * 8;
    std::array<std::byte, 2 * kBlock> padding{std::byte{0x80}};
    size_t const used = length_ % kBlock;
    size_t const zeros_end = (used < kBlock - 8 ? kBlock : 2 * kBlock) - 8 - used;
    for (size_t i = 0; i < 8; ++i) padding[zeros_end + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
    update(std::span(padding).first(zeros_end + 8));
    std::string text;
    for (uint32_t word : state_) {
        for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[(word >> shift) & 15u];
    }
    return text;
}

std::string sha256(std::string_view text) {
    Sha256 hash;
    hash.update(std::as_bytes(std::span(text)));
    return hash.finish();
}

}  // namespace perigee
