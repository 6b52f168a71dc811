// The gradient of the embedding table adds up in an order that the ids alone decide, whatever the GPU does first: every
// bit is that of a host that adds in the order of the kernel's header.
#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

#include "kernels/embedding/embedding.h"
#include "kernels/gpu_moba.h"

namespace perigee {
namespace {

using testing::GpuArray;

constexpr int64_t kUnit = 32;  // tokens

struct EmbeddingCase {
    std::vector<int32_t> ids;
    int64_t vocab;
    int64_t width;
    int64_t vocab_begin = 0;
    int64_t tokens() const { return std::ssize(ids); }
};

struct EmbeddingInputs {
    std::vector<float> table;
    std::vector<bf16> dx;
};

/// Numbers of very different sizes: almost every sum is rounded, so that another order gives other bits.
EmbeddingInputs make_inputs(EmbeddingCase const& c, uint64_t seed) {
    Philox const random(seed, Purpose::sample_order);
    std::vector<double> dx = testing::random_normal<double>(c.tokens() * c.width, seed + 1000);
    for (size_t i = 0; i < dx.size(); ++i) dx[i] = std::ldexp(dx[i], static_cast<int>(random.below(i, 25)) - 12);
    return {.table = testing::random_normal<float>(c.vocab * c.width, seed), .dx = testing::to_bf16(dx)};
}

/// The tokens of this table in the order that the kernels sort them in.
std::vector<int64_t> sorted_tokens(EmbeddingCase const& c) {
    auto const row = [&](int64_t t) { return c.ids[static_cast<size_t>(t)] - c.vocab_begin; };
    std::vector<int64_t> tokens(c.ids.size());
    std::iota(tokens.begin(), tokens.end(), 0);
    std::erase_if(tokens, [&](int64_t t) { return row(t) < 0 || row(t) >= c.vocab; });
    std::ranges::stable_sort(tokens, {}, [&](int64_t t) { return std::pair(row(t) % 128, row(t) / 128); });
    return tokens;
}

std::vector<uint32_t> bits(std::vector<float> const& values) {
    std::vector<uint32_t> all;
    for (float const x : values) all.push_back(std::bit_cast<uint32_t>(x));
    return all;
}

/// Of one column of a row's tokens, whose first is the `place`-th of all: sums of those in the same unit, then the sum
/// of those.
float sum_in_units(std::vector<float> const& tokens, int64_t place, int64_t unit) {
    float all = 0, sum = 0;
    for (size_t i = 0; i < tokens.size(); ++i, ++place) {
        sum += tokens[i];
        if (i + 1 < tokens.size() && (place + 1) % unit != 0) continue;
        all += sum;
        sum = 0;
    }
    return all;
}

std::vector<float> on_host(EmbeddingCase const& c, EmbeddingInputs const& in, int64_t unit = kUnit) {
    std::vector<float> table = in.table;
    std::vector<int64_t> const tokens = sorted_tokens(c);
    auto const id = [&](size_t place) { return c.ids[static_cast<size_t>(tokens[place])]; };
    for (size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
        while (end < tokens.size() && id(end) == id(begin)) ++end;
        for (int64_t i = 0; i < c.width; ++i) {
            std::vector<float> column;
            for (size_t place = begin; place < end; ++place)
                column.push_back(to_float(in.dx[static_cast<size_t>(tokens[place] * c.width + i)]));
            table[static_cast<size_t>((id(begin) - c.vocab_begin) * c.width + i)] +=
                sum_in_units(column, static_cast<int64_t>(begin), unit);
        }
    }
    return table;
}

class GpuEmbeddingOrder : public ::testing::Test {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
        device_ = std::make_unique<CudaDevice>(0);
    }

    void expect_bits_of_host(EmbeddingCase const& c, uint64_t seed) {
        EmbeddingInputs const in = make_inputs(c, seed);
        auto const expected = bits(on_host(c, in));
        GpuArray<int32_t> const ids(*device_, c.ids);
        GpuArray<bf16> const dx(*device_, in.dx);
        GpuArray<unsigned char> const scratch(
            *device_, static_cast<int64_t>(kernels::embedding_backward_scratch(c.tokens(), c.width)));
        for (int run = 0; run < 5; ++run) {
            GpuArray<float> const table(*device_, in.table);
            kernels::embedding_backward({.dtable_accumulated = table.data(),
                                         .ids = ids.data(),
                                         .dx = dx.data(),
                                         .tokens = c.tokens(),
                                         .vocab = c.vocab,
                                         .width = c.width,
                                         .vocab_begin = c.vocab_begin,
                                         .scratch = scratch.data()},
                                        device_->stream());
            auto const found = bits(table.get());
            int64_t const wrong = std::inner_product(found.begin(), found.end(), expected.begin(), int64_t{0},
                                                     std::plus{}, std::not_equal_to{});
            EXPECT_EQ(wrong, 0) << "elements of " << found.size() << ", run " << run << ", " << c.tokens()
                                << " tokens, width " << c.width;
        }
        scratch.get();  // its guards
    }

    std::unique_ptr<CudaDevice> device_;
};

/// Ids that are frequent and rare at random: of id k about vocab / (k + 1) times as many as of the last.
std::vector<int32_t> uneven_ids(int64_t count, double vocab, uint64_t seed) {
    Philox const random(seed, Purpose::sample_order);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i)
        ids.push_back(static_cast<int32_t>(std::pow(vocab, random.uniform(static_cast<uint64_t>(i)))) - 1);
    return ids;
}

/// Widths that the kernels take by single columns, and by four at a time, of less and of more than one block.
constexpr int64_t kWidths[] = {37, 64, 1288};

TEST_F(GpuEmbeddingOrder, IsThatOfTheTokensAndTheirUnits) {
    for (int64_t const width : kWidths) {
        // One id in a unit, in two, in three; then among others, which shift where its units end.
        for (int64_t const count : {1, 31, 32, 33, 64, 65})
            expect_bits_of_host(
                {.ids = std::vector<int32_t>(static_cast<size_t>(count), 3), .vocab = 7, .width = width},
                static_cast<uint64_t>(count));
        expect_bits_of_host({.ids = uneven_ids(300, 60, 1), .vocab = 60, .width = width}, 11);
        expect_bits_of_host({.ids = uneven_ids(300, 60, 2), .vocab = 20, .width = width, .vocab_begin = 2}, 12);
    }
}

TEST_F(GpuEmbeddingOrder, IsThatOfTheTokensAndTheirUnitsAtLength) {
    for (int64_t const width : kWidths) {
        expect_bits_of_host({.ids = std::vector<int32_t>(3000, 3), .vocab = 7, .width = width}, 3000);
        expect_bits_of_host({.ids = uneven_ids(2000, 60, 1), .vocab = 60, .width = width}, 11);
        expect_bits_of_host({.ids = uneven_ids(2000, 60, 2), .vocab = 20, .width = width, .vocab_begin = 2}, 12);
        expect_bits_of_host({.ids = uneven_ids(3000, 1000, 3), .vocab = 1000, .width = width}, 13);
    }
}

TEST(EmbeddingOrder, CanBeToldFromOthers) {
    EmbeddingCase const c{.ids = uneven_ids(2000, 60, 1), .vocab = 60, .width = 37};
    EmbeddingInputs const in = make_inputs(c, 11);
    for (int64_t const unit : {int64_t{1}, kUnit / 2, 2 * kUnit, c.tokens()})
        EXPECT_NE(bits(on_host(c, in, unit)), bits(on_host(c, in))) << "units of " << unit;
}

}  // namespace
}  // namespace perigee
