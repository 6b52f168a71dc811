// Which packs cuDNN gets as documents of one length: others must not, and there must be few lengths.
#include "ops/cuda/dense_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace perigee {
namespace {

int64_t planned(std::vector<int32_t> const& cu_seqlens) { return planned_length(cu_seqlens); }

TEST(PlannedLength, IsThatOfAllDocuments) {
    EXPECT_EQ(planned({0, 512}), 512);
    EXPECT_EQ(planned({0, 640, 1280, 1920}), 640);
    EXPECT_EQ(planned({0, 1 << 30}), 1 << 30);
}

TEST(PlannedLength, IsNoneWhereDocumentsDiffer) {
    for (std::vector<int32_t> const& borders : {std::vector<int32_t>{},
                                                {0},
                                                {0, 0},
                                                {0, 0, 512},
                                                {0, 512, 1024, 1500},
                                                {0, 512, 1024, 1024},
                                                {0, 512, 1152},
                                                {0, 1024, 1536, 2560}})
        EXPECT_EQ(planned(borders), 0) << ::testing::PrintToString(borders);
}

TEST(PlannedLength, IsOneOfFourPerOctave) {
    std::vector<int64_t> lengths;
    for (int32_t length = 1; length <= 8192; ++length)
        if (planned({0, length, 2 * length}) != 0) lengths.push_back(length);
    EXPECT_THAT(lengths, ::testing::ElementsAre(512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584,
                                                4096, 5120, 6144, 7168, 8192));
}

}  // namespace
}  // namespace perigee
