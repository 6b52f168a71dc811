#include "parallel/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(ParallelOptions const& options, int world) {
    try {
        resolve_mesh(options, world);
    } catch (Error const& error) {
        EXPECT_EQ(error.category(), Category::config);
        return error.what();
    }
    return "";
}

TEST(ResolveMesh, DataTakesTheRanksThatTensorAndContextLeave) {
    for (int tp : {1, 2, 3}) {
        for (int cp : {1, 2, 5}) {
            for (int dp : {1, 4}) {
                auto const shape = resolve_mesh({.tensor = tp, .context = cp}, tp * cp * dp);
                EXPECT_EQ(shape.tp, tp);
                EXPECT_EQ(shape.cp, cp);
                EXPECT_EQ(shape.dp, dp);
                EXPECT_EQ(shape.world(), tp * cp * dp);
            }
        }
    }
}

TEST(ResolveMesh, AcceptsAnExplicitDataAxisThatFits) { EXPECT_EQ(resolve_mesh({.tensor = 2, .data = 3}, 6).dp, 3); }

TEST(ResolveMesh, NamesBothNumbersWhereTheyDoNotFit) {
    EXPECT_THAT(refusal({.tensor = 2, .context = 2}, 6), AllOf(HasSubstr("= 4 "), HasSubstr("6 ranks")));
    EXPECT_THAT(refusal({.data = 2}, 3), AllOf(HasSubstr("= 2 "), HasSubstr("3 ranks")));
    EXPECT_THAT(refusal({.tensor = 8}, 4), AllOf(HasSubstr("tensor 8"), HasSubstr("4 ranks")));
    EXPECT_THAT(refusal({.data = 0}, 4), AllOf(HasSubstr("data 0"), HasSubstr("4 ranks")));
    EXPECT_THAT(refusal({.tensor = int64_t{1} << 40, .context = int64_t{1} << 40}, 4), HasSubstr("4 ranks"));
}

TEST(Mesh, OfOneRankIsTheOriginOfEveryAxis) {
    auto world = make_single_host_comm();
    Mesh const mesh({}, *world);
    EXPECT_EQ(mesh.shape().world(), 1);
    EXPECT_EQ(mesh.dp_rank() + mesh.cp_rank() + mesh.tp_rank(), 0);
    EXPECT_EQ(mesh.dp_cp().size(), 1);
    EXPECT_EQ(&mesh.world(), world.get());
}

TEST(ParallelOptions, AreDescribedWithRanges) {
    ParallelOptions options;
    Schema schema;
    describe(schema, options);
    ASSERT_EQ(schema.fields().size(), 12u);
    for (auto const& field : schema.fields()) {
        EXPECT_FALSE(field.help.empty());
        if (!std::holds_alternative<int64_t*>(field.target)) continue;
        EXPECT_EQ(field.range.low, field.key == "data" ? -1 : 1) << field.key;
    }
}

TEST(Comm, KeepsMemoryByNameAndReplacesWhatIsTooSmall) {
    auto const device = make_host_device();
    auto const comm = make_single_comm();
    std::byte* const keys = comm->keep(*device, "keys", 100);
    EXPECT_NE(comm->keep(*device, "values", 100), keys);
    EXPECT_EQ(comm->keep(*device, "keys", 50), keys);
    EXPECT_EQ(comm->kept_bytes(), 200);
    comm->keep(*device, "keys", 1000);
    EXPECT_EQ(comm->kept_bytes(), 1100);
}

}  // namespace
}  // namespace perigee
