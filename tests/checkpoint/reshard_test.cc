// Whatever cut wrote a tensor, any other cut reads it, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/example.h"
#include "io/tensor_file.h"
#include "support/memory_file_system.h"
#include "support/thread_comm.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace testing;

Shape with(Shape const& shape, int dim, int64_t extent) {
    std::vector<int64_t> extents;
    for (int i = 0; i < shape.rank(); ++i) extents.push_back(i == dim ? extent : shape[i]);
    return Shape(std::span<int64_t const>(extents));
}

/// Equal slices of dimension `dim`; a whole tensor on the first rank when it has no such dimension.
std::vector<Shard> slices(Shape const& shape, int dim, int64_t ranks) {
    Shard const whole = whole_shard(shape);
    if (dim >= shape.rank()) return {whole};
    std::vector<Shard> shards;
    for (int64_t r = 0; r < ranks; ++r) {
        int64_t const begin = shape[dim] * r / ranks, end = shape[dim] * (r + 1) / ranks;  // uneven ones too
        Shard shard = whole;
        shard.begin = with(whole.begin, dim, begin);
        shard.extent = with(shape, dim, end - begin);
        shard.flat_count = shard.extent.size();
        shards.push_back(shard);
    }
    return shards;
}

/// Each shard cut into flat ranges, as ZeRO does with what tensor parallelism left.
std::vector<Shard> flat_ranges(std::vector<Shard> const& boxes, int64_t ranks) {
    std::vector<Shard> shards;
    for (Shard const& box : boxes) {
        for (int64_t r = 0; r < ranks; ++r) {
            Shard shard = box;
            shard.flat_begin = box.flat_count * r / ranks;
            shard.flat_count = box.flat_count * (r + 1) / ranks - shard.flat_begin;
            shards.push_back(shard);
        }
    }
    return shards;
}

std::vector<Shard> cuts(Shape const& shape, int kind) {
    switch (kind) {
        case 0:
            return {whole_shard(shape)};
        case 1:
            return slices(shape, 0, 2);
        case 2:
            return slices(shape, 1, 2);
        case 3:
            return slices(shape, 1, 3);
        case 4:
            return slices(shape, 2, 2);
        case 5:
            return flat_ranges({whole_shard(shape)}, 5);
        case 6:
            return flat_ranges(slices(shape, 1, 2), 3);
        default:
            return flat_ranges(slices(shape, 0, 3), 2);
    }
}
constexpr int kCuts = 8;

Tensors many_tensors(uint64_t seed) {
    Tensors tensors;
    tensors.add("a/vector", DType::f32, {37}, seed);
    tensors.add("a/matrix", DType::bf16, {12, 10}, seed);
    tensors.add("b.cube", DType::f64, {5, 6, 7}, seed);
    tensors.add("b.four", DType::u8, {3, 4, 2, 5}, seed);
    tensors.add("scalar", DType::i64, {}, seed);
    tensors.add("empty", DType::i32, {0, 3}, seed);
    return tensors;
}

std::vector<Part> all_parts(Tensors const& tensors, int kind) {
    std::vector<Part> parts;
    for (auto const& [name, tensor] : tensors.all) {
        for (Shard const& shard : cuts(tensor.shape, kind)) parts.push_back(cut(tensors, name, shard));
    }
    return parts;
}

TEST(Reshard, ReadsEveryCutOutOfEveryOther) {
    MemoryFileSystem files;
    Tensors const tensors = many_tensors(50);
    for (int from = 0; from < kCuts; ++from) {
        auto written = all_parts(tensors, from);
        save_checkpoint(files, *make_single_host_comm(), "/c", example_state(from), views(written), {});
        Checkpoint const checkpoint = Checkpoint::open(files, fmt::format("/c/step_{:08}", from));
        for (int to = 0; to < kCuts; ++to) {
            auto const expected = all_parts(tensors, to);
            auto found = expected;
            for (Part& part : found) std::fill(part.bytes.begin(), part.bytes.end(), std::byte{0xff});
            checkpoint.read(views(found));
            for (size_t i = 0; i < found.size(); ++i) {
                EXPECT_EQ(found[i].bytes, expected[i].bytes) << found[i].name << " from cut " << from << " to " << to;
            }
        }
    }
}

TEST(Reshard, ReadsLargePiecesThroughBoundedWindows) {
    MemoryFileSystem files;
    Tensors tensors;
    tensors.add("large", DType::f32, {1024, 1500}, 51);  // 6 MB: several windows
    for (int from : {2, 5}) {
        auto written = all_parts(tensors, from);
        save_checkpoint(files, *make_single_host_comm(), "/c", example_state(from), views(written), {});
        Checkpoint const checkpoint = Checkpoint::open(files, fmt::format("/c/step_{:08}", from));
        for (int to : {0, 3, 6}) {
            auto const expected = all_parts(tensors, to);
            auto found = expected;
            for (Part& part : found) std::fill(part.bytes.begin(), part.bytes.end(), std::byte{0xff});
            checkpoint.read(views(found));
            for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].bytes == expected[i].bytes);
        }
    }
}

TEST(Reshard, SpreadsWritingOverRanksAndReadsUnderAnotherNumberOfRanks) {
    MemoryFileSystem files;
    Tensors const tensors = many_tensors(52);
    for (int writers : {1, 2, 3, 4}) {
        auto parts = all_parts(tensors, 6);
        run_ranks(writers, [&](HostComm& world) {
            std::vector<StoredTensor> mine;
            auto const all = views(parts);
            // The last of four ranks has nothing to write.
            int const active = std::min(writers, 3);
            for (size_t i = 0; i < all.size(); ++i) {
                if (static_cast<int>(i) % active == world.rank()) mine.push_back(all[i]);
            }
            save_checkpoint(files, world, "/c", example_state(writers), mine, {});
        });
        EXPECT_EQ(files.exists(fmt::format("/c/step_{:08}/rank_0003.h5", writers)), false);
        run_ranks(5 - writers, [&](HostComm& world) {
            auto const checkpoint = find_latest(files, world, "/c");
            ASSERT_TRUE(checkpoint.has_value());
            EXPECT_EQ(checkpoint->state(), example_state(writers));
            EXPECT_EQ(load(*checkpoint, tensors), tensors);
        });
    }
}

TEST(Reshard, ListsItsTensorsAndKeepsTheState) {
    MemoryFileSystem files;
    Tensors const tensors = many_tensors(53);
    save(files, "/c", 12, tensors);
    Checkpoint const checkpoint = Checkpoint::open(files, "/c/step_00000012");
    EXPECT_EQ(checkpoint.state(), example_state(12));
    EXPECT_EQ(checkpoint.tensors().size(), tensors.all.size());
    for (auto const& [name, shape] : checkpoint.tensors()) EXPECT_EQ(shape, tensors.all.at(name).shape);
    auto const file = open_tensor_file(files, "/c/step_00000012/rank_0000.h5", Category::data);
    EXPECT_EQ(file->info("a/matrix").shape, (Shape{12, 10}));
    EXPECT_EQ(file->info("a/matrix").attributes.at("flat"), (std::vector<int64_t>{0, 120}));
}

TEST(Reshard, RefusesWhatTheCheckpointDoesNotHold) {
    MemoryFileSystem files;
    Tensors const tensors = many_tensors(54);
    save(files, "/c", 1, tensors);
    Checkpoint const checkpoint = Checkpoint::open(files, "/c/step_00000001");
    auto error = [&](std::string const& name, DType dtype, Shape shape) {
        Tensors wanted = many_tensors(55);
        wanted.all.erase(name);
        wanted.add(name, dtype, shape, 56);
        Tensors untouched = wanted;
        std::vector<StoredTensor> parts;
        for (auto& [key, tensor] : wanted.all) {
            parts.push_back(
                {key, whole_shard(tensor.shape), TensorView(tensor.bytes.data(), tensor.dtype, tensor.shape)});
        }
        std::string const message = checkpoint_error([&] { checkpoint.read(parts); });
        EXPECT_EQ(wanted, untouched) << "a tensor was filled before the error was found";
        return message;
    };
    EXPECT_THAT(error("zzz", DType::f32, {3}), AllOf(HasSubstr("no tensor `zzz`"), HasSubstr("step_00000001")));
    EXPECT_THAT(error("b.cube", DType::f64, {5, 7, 6}),
                AllOf(HasSubstr("`b.cube`"), HasSubstr("[5, 6, 7]"), HasSubstr("[5, 7, 6]")));
    EXPECT_THAT(error("b.cube", DType::f32, {5, 6, 7}), AllOf(HasSubstr("f64"), HasSubstr("f32")));
}

TEST(Reshard, RefusesToSaveWhatDoesNotTileATensor) {
    MemoryFileSystem files;
    Tensors const tensors = many_tensors(57);
    auto error = [&](int kind, size_t doubled, size_t left_out) {
        auto parts = all_parts(tensors, kind);
        auto stored = views(parts);
        if (left_out < stored.size()) stored.erase(stored.begin() + static_cast<std::ptrdiff_t>(left_out));
        if (doubled < stored.size()) stored.push_back(stored[doubled]);
        return checkpoint_error(
            [&] { save_checkpoint(files, *make_single_host_comm(), "/c", example_state(1), stored, {}); });
    };
    EXPECT_EQ(error(6, 999, 999), "nothing was thrown");
    EXPECT_THAT(error(6, 3, 999), HasSubstr("more than"));
    EXPECT_THAT(error(6, 999, 3), HasSubstr("are stored; its shape"));
    EXPECT_THAT(error(6, 3, 2), HasSubstr("twice"));  // 0-5 are the six equal pieces of one matrix
}

}  // namespace
}  // namespace perigee
