// Layouts of tiles in shared memory: places do not collide, and eight rows of a column lie in different banks.
#include <gtest/gtest.h>

#include <set>

#include "kernels/ampere/tile.cuh"

namespace perigee {
namespace {

template <class Layout, int D>
void check_layout(int most_values) {
    std::set<int> places;
    for (int row = 0; row < 64; ++row)
        for (int column = 0; column < D; column += 8) places.insert(Layout::at(row, column) / 8);
    EXPECT_EQ(static_cast<int>(places.size()), 64 * D / 8) << D;
    EXPECT_GE(*places.begin(), 0);
    EXPECT_LT(*places.rbegin() * 8, most_values) << D;
    for (int row = 0; row < 64; row += 8)
        for (int column = 0; column < D; column += 8) {
            std::set<int> banks;  // groups of four, 16 bytes
            for (int i = 0; i < 8; ++i) banks.insert(Layout::at(row + i, column) / 8 % 8);
            EXPECT_EQ(banks.size(), 8u) << D << " row " << row << " column " << column;
        }
}

template <int D>
void check() {
    check_layout<ampere::Padded<D>, D>(64 * (D + 8));
    check_layout<ampere::Swizzled<D>, D>(64 * D);
}

TEST(TileLayout, SpreadsEightRowsOverAllBanks) {
    check<32>();
    check<64>();
    check<96>();
    check<128>();
}

}  // namespace
}  // namespace perigee
