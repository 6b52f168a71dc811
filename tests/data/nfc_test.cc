#include "data/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include <chrono>

namespace perigee {
namespace {

TEST(Nfc, MarksAreOrderedByClassAndComposed) {
    EXPECT_EQ(nfc("a\u0301\u0323"), "\u1ea1\u0301");  // the dot below comes first and joins
    EXPECT_EQ(nfc("a\u0323\u0301"), "\u1ea1\u0301");
    EXPECT_EQ(nfc("x\u0301\u0300\u0323\u0327"), "x\u0327\u0323\u0301\u0300");  // equal classes keep their order
    EXPECT_EQ(nfc("\u0301\u0323"), "\u0323\u0301");
    EXPECT_EQ(nfc("\u0344"), "\u0308\u0301");
    EXPECT_EQ(nfc("\u1100\u1161\u11a8 \u212b \uac00\u11a8"), "\uac01 \u00c5 \uac01");
    EXPECT_EQ(nfc("\u1f82"), "\u1f82");                            // decomposes to four characters
    EXPECT_EQ(nfc("q\u0307\u034f\u0323"), "q\u0307\u034f\u0323");  // a joiner of class 0 ends the run
}

TEST(Nfc, LongRunsOfMarksTakeNoLongerThanTheirLength) {
    // 800 KB in a second; utf8proc_decompose() takes the square, minutes.
    std::string text = "a", below, above;
    for (int i = 0; i < 200'000; ++i) text += "\u0301\u0323", above += "\u0301", below += "\u0323";
    auto const start = std::chrono::steady_clock::now();
    std::string const normalized = nfc(text);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
    EXPECT_EQ(normalized, "\u1ea1" + below.substr(2) + above);
}

}  // namespace
}  // namespace perigee
