// Operations have the digest of others only where every argument is the same.
#include "ops/digest.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "ops/members.h"

namespace perigee::testing {

namespace {

template <class T>
T* at_other(T* data) {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(data) + 1);
}

/// Changes one member in place: another address, number, span or alternative.
struct Change {
    template <class T>
    void operator()(T& x) const {
        static std::array<int32_t, 3> const borders = {0, 5, 9};
        static std::array<double, 2> const frequencies = {0.5, 0.25};
        if constexpr (std::is_same_v<T, TensorView> || std::is_same_v<T, ConstView>)
            x.data = at_other(x.data);
        else if constexpr (std::is_same_v<T, std::span<int32_t const>>)
            x = borders;
        else if constexpr (std::is_same_v<T, std::span<double const>>)
            x = frequencies;
        else if constexpr (std::is_same_v<T, Attended>)
            x = BlockSparse{.budget = {.block_size = 64, .top_k = 2}};
        else if constexpr (std::is_same_v<T, Selection>)
            x = NearestBlocks{};
        else if constexpr (std::is_same_v<T, CachePages>)
            x.table_SM.data = at_other(x.table_SM.data);
        else if constexpr (std::is_same_v<T, QuantTensor> || std::is_same_v<T, ConstQuantTensor>)
            x.scales.data = at_other(x.scales.data);
        else if constexpr (std::is_same_v<T, DecodeSelect> || std::is_same_v<T, DecodeAttend>)
            x.q_SHK.data = at_other(x.q_SHK.data);
        else if constexpr (std::is_same_v<T, bool>)
            x = !x;
        else
            x = static_cast<T>(x + 1);
    }
};

template <class Args>
void expect_every_member_counts() {
    Args args{};
    std::set<Digest> seen;
    Operation const unchanged = args;
    seen.insert(digest_of({&unchanged, 1}));
    size_t members = 0;
    each_member(args, [&](auto const& member) {
        auto& place = const_cast<std::remove_cvref_t<decltype(member)>&>(member);
        auto const before = place;
        Change{}(place);
        Operation const changed = args;
        EXPECT_TRUE(seen.insert(digest_of({&changed, 1})).second) << Args::kName << ", member " << members;
        place = before;
        ++members;
    });
    EXPECT_GE(members, 1u);
}

template <class... Args>
void expect_every_member_counts(std::variant<Args...> const*) {
    auto const each = [&]<class One>(std::type_identity<One>) {
        if constexpr (kCanWait<One>) expect_every_member_counts<One>();
    };
    (each(std::type_identity<Args>{}), ...);
}

TEST(Digest, DiffersWithEveryMemberOfEveryOperationThatCanWait) {
    expect_every_member_counts(static_cast<Operation const*>(nullptr));
    EXPECT_TRUE(can_wait(MatMul{}) && kCanWait<AttentionBackward> && kCanWait<CopyRows>);
    EXPECT_FALSE(kCanWait<Upload> || kCanWait<Download> || kCanWait<AdamW>);
}

TEST(Digest, KnowsWhatLiesBeneathTheMembers) {
    std::array<int32_t, 3> const some = {0, 7, 9}, others = {0, 8, 9}, same = {0, 7, 9};
    std::array<std::byte, 64> memory{};
    TensorView const x(memory.data(), DType::bf16, {4, 8});
    auto const of = [](AttentionForward const& args) {
        Operation const operation = args;
        return digest_of({&operation, 1});
    };
    AttentionForward args;
    args.q_THK = x, args.cu_seqlens = some, args.attended = BlockSparse{.budget = {64, 2}};
    AttentionForward other = args;
    other.cu_seqlens = same;
    EXPECT_EQ(of(other), of(args)) << "where the borders lie does not matter";
    other.cu_seqlens = others;
    EXPECT_NE(of(other), of(args));
    other = args, other.q_THK = x.reshape({8, 4});
    EXPECT_NE(of(other), of(args));
    other = args, other.q_THK.dtype = DType::u8;
    EXPECT_NE(of(other), of(args));
    other = args, std::get<BlockSparse>(other.attended).budget.top_k = 3;
    EXPECT_NE(of(other), of(args));
    other = args, std::get<BlockSparse>(other.attended).routing_L = x;
    EXPECT_NE(of(other), of(args));

    auto const select = [](MobaOptions const& options) {
        SelectBlocks args;
        args.selection = options;
        Operation const operation = args;
        return digest_of({&operation, 1});
    };
    std::set<Digest> const rules = {select({}),
                                    select({.block_size = 64}),
                                    select({.top_k = 2}),
                                    select({.force_previous = true}),
                                    select({.force_first = true}),
                                    select({.selection = MobaSelection::per_group})};
    EXPECT_EQ(rules.size(), 6u);
}

TEST(Digest, DependsOnTheOrderAndNumberOfOperations) {
    std::array<std::byte, 8> memory{};
    TensorView const x(memory.data(), DType::f32, {2});
    std::vector<Operation> const ab = {FillZero{x}, Scale{x, 2}}, ba = {Scale{x, 2}, FillZero{x}}, a = {FillZero{x}};
    EXPECT_NE(digest_of(ab), digest_of(ba));
    EXPECT_NE(digest_of(ab), digest_of(a));
    std::vector<int64_t> const numbers = {1, 2, 3}, fewer = {1, 2}, swapped = {2, 1, 3};
    EXPECT_NE(digest_of(numbers), digest_of(fewer));
    EXPECT_NE(digest_of(numbers), digest_of(swapped));
    EXPECT_EQ(digest_of(numbers), digest_of(std::vector<int64_t>{1, 2, 3}));
}

TEST(Digest, RefusesWhatCannotWait) {
    Operation const upload = Upload{};
    EXPECT_THROW(digest_of({&upload, 1}), Error);
}

}  // namespace

}  // namespace perigee::testing
