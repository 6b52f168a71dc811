#include "io/tensor_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "io/sha256.h"
#include "support/fault_file_system.h"
#include "support/memory_file_system.h"
#include "support/random.h"
#include "support/temporary_folder.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FaultFileSystem;
using ::testing::HasSubstr;
using testing::MemoryFileSystem;

std::vector<std::byte> random_bytes(int64_t count, uint64_t seed) {
    Philox const random(seed, Purpose::mock_data);
    std::vector<std::byte> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::byte>(random.u64(i));
    return values;
}

std::string error_of(FileSystem& files, Path const& path) {
    try {
        open_tensor_file(files, path, Category::checkpoint);
    } catch (Error const& e) {
        EXPECT_EQ(e.category(), Category::checkpoint);
        EXPECT_THAT(e.what(), HasSubstr(path.string()));
        return e.what();
    }
    return "accepted";
}

class TensorFile : public ::testing::Test {
  protected:
    MemoryFileSystem files_;
};

TEST_F(TensorFile, GivesBackEveryTypeAndShape) {
    std::vector<Shape> const shapes{Shape{},     Shape{0},       Shape{1},          Shape{7},
                                    Shape{3, 5}, Shape{4, 0, 2}, Shape{2, 3, 4, 5}, Shape{100'000}};
    std::vector<DType> const types{DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8};
    std::map<std::string, std::vector<std::byte>> expected;
    auto writer = create_tensor_file(files_, "/f.h5");
    for (DType type : types) {
        for (size_t s = 0; s < shapes.size(); ++s) {
            std::string const name = fmt::format("group.{}/tensor.{}", to_string(type), s);
            auto& values = expected[name] = random_bytes(shapes[s].size() * size_of(type), 30 + expected.size());
            writer->write(name, {values.data(), type, shapes[s]},
                          {{"index", {static_cast<int64_t>(s)}}, {"list", {-1, 2, INT64_MIN}}, {"none", {}}});
        }
    }
    auto const result = writer->finish();
    EXPECT_EQ(result.bytes, files_.file_size("/f.h5"));
    EXPECT_EQ(result.sha256, sha256(files_.read_text("/f.h5", INT64_MAX)));

    auto const reader = open_tensor_file(files_, "/f.h5", Category::data);
    EXPECT_EQ(reader->names().size(), types.size() * shapes.size());
    for (DType type : types) {
        for (size_t s = 0; s < shapes.size(); ++s) {
            std::string const name = fmt::format("group.{}/tensor.{}", to_string(type), s);
            auto const info = reader->info(name);
            EXPECT_EQ(info.dtype, type);
            EXPECT_EQ(info.shape, shapes[s]);
            EXPECT_EQ(info.attributes,
                      (Attributes{{"index", {static_cast<int64_t>(s)}}, {"list", {-1, 2, INT64_MIN}}, {"none", {}}}));
            std::vector<std::byte> found(expected[name].size(), std::byte{0xee});
            reader->read(name, {found.data(), type, Shape{shapes[s].size()}});
            EXPECT_EQ(found, expected[name]) << name;
        }
    }
}

TEST_F(TensorFile, ReadsRanges) {
    auto const values = testing::random_normal<float>(1000, 31);
    auto writer = create_tensor_file(files_, "/f.h5");
    writer->write("x", ConstView(values.data(), Shape{10, 100}));
    writer->finish();
    auto const reader = open_tensor_file(files_, "/f.h5", Category::data);
    for (int64_t first : {0, 1, 99, 500, 990}) {
        auto found = testing::poisoned<float>(10);
        reader->read_range("x", first, TensorView(found.data(), Shape{10}));
        EXPECT_TRUE(std::equal(found.begin(), found.end(), values.begin() + first)) << first;
    }
    auto found = testing::poisoned<float>(10);
    EXPECT_THROW(reader->read_range("x", 991, TensorView(found.data(), Shape{10})), Error);
    EXPECT_THROW(reader->read_range("x", -1, TensorView(found.data(), Shape{10})), Error);
    EXPECT_THROW(reader->read("x", TensorView(found.data(), Shape{10})), Error);
    EXPECT_THROW(reader->read("y", TensorView(found.data(), Shape{10})), Error);
    std::vector<int32_t> other(1000);
    EXPECT_THROW(reader->read("x", TensorView(other.data(), Shape{1000})), Error);
}

TEST_F(TensorFile, HoldsManyTensorsAndLargeOnesInFewOperations) {
    FaultFileSystem counting(files_);
    std::vector<float> const small = testing::random_normal<float>(16, 32),
                             large = testing::random_normal<float>(1 << 20, 33);
    auto writer = create_tensor_file(counting, "/f.h5");
    for (int i = 0; i < 500; ++i)
        writer->write(fmt::format("layers.{}/weight", i), ConstView(small.data(), Shape{4, 4}));
    for (int i = 0; i < 8; ++i) writer->write(fmt::format("large.{}", i), ConstView(large.data(), Shape{1 << 20}));
    writer->finish();
    auto const operations = counting.operations();
    auto const writes =
        std::count_if(operations.begin(), operations.end(), [](auto const& o) { return o.name == "write"; });
    EXPECT_LT(writes, 2000);
    auto const reader = open_tensor_file(files_, "/f.h5", Category::data);
    EXPECT_EQ(reader->names().size(), 508u);
    for (std::string const& name : reader->names()) {
        auto const& expected = name.starts_with("large") ? large : small;
        auto found = testing::poisoned<float>(std::ssize(expected));
        reader->read(name, TensorView(found.data(), Shape{std::ssize(found)}));
        EXPECT_EQ(found, expected);
    }
}

TEST_F(TensorFile, IsTheSameBytesForTheSameContents) {
    auto const values = testing::random_normal<float>(50, 34);
    std::string hashes[2];
    for (int i = 0; i < 2; ++i) {
        auto writer = create_tensor_file(files_, fmt::format("/f{}.h5", i));
        writer->write("a/b", ConstView(values.data(), Shape{50}), {{"begin", {1, 2}}});
        hashes[i] = writer->finish().sha256;
        if (i == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // HDF5 times have seconds
    }
    EXPECT_EQ(hashes[0], hashes[1]);
}

TEST_F(TensorFile, RefusesNamesThatOtherReadersWouldTakeForPaths) {
    std::vector<float> const values(4);
    auto writer = create_tensor_file(files_, "/f.h5");
    writer->write("a", ConstView(values.data(), Shape{4}));
    for (std::string const& name :
         {std::string(""), std::string("/a"), std::string("b/"), std::string("b//c"), std::string("../b"),
          std::string("b/./c"), std::string("a"), std::string("a/b"), std::string(2000, 'x'), std::string("a\0b", 3)}) {
        EXPECT_THROW(writer->write(name, ConstView(values.data(), Shape{4})), Error) << name;
    }
    writer->write("b", ConstView(values.data(), Shape{4}));
    writer->finish();
    EXPECT_THAT(open_tensor_file(files_, "/f.h5", Category::data)->names(), ElementsAre("a", "b"));
}

TEST_F(TensorFile, ReportsEveryFailingOperationAndGoesOnWorking) {
    std::vector<float> const values = testing::random_normal<float>(30'000, 35);
    auto write = [&](FileSystem& files) {
        auto writer = create_tensor_file(files, "/f.h5");
        for (int i = 0; i < 20; ++i)
            writer->write(fmt::format("group/{}", i), ConstView(values.data(), Shape{30'000}), {{"i", {i}}});
        return writer->finish();
    };
    FaultFileSystem counting(files_);
    auto const whole = write(counting);
    auto const operations = std::ssize(counting.operations());
    EXPECT_GT(operations, 20);
    for (int64_t i = 0; i < operations; ++i) {
        FaultFileSystem faulty(files_);
        faulty.fail_at(i, i % 2 == 0 ? ENOSPC : EIO);
        try {
            write(faulty);
            FAIL() << "operation " << i << " failed unnoticed";
        } catch (IoError const& e) {
            EXPECT_EQ(e.errno_value(), i % 2 == 0 ? ENOSPC : EIO);
            EXPECT_THAT(e.what(), HasSubstr("/f.h5"));
        }
    }
    EXPECT_EQ(write(files_).sha256, whole.sha256);
    FaultFileSystem counting_reads(files_);
    open_tensor_file(counting_reads, "/f.h5", Category::data);
    for (int64_t i = 0; i < std::ssize(counting_reads.operations()); ++i) {
        FaultFileSystem faulty(files_);
        faulty.fail_at(i, EIO);
        EXPECT_THAT(error_of(faulty, "/f.h5"), HasSubstr("Input/output error")) << i;
    }
}

TEST_F(TensorFile, LeavesNothingValidBehindWhenAbandoned) {
    std::vector<float> const values(4);
    create_tensor_file(files_, "/f.h5")->write("a", ConstView(values.data(), Shape{4}));
    EXPECT_NE(error_of(files_, "/f.h5"), "accepted");
}

TEST_F(TensorFile, CanBeUsedFromSeveralThreads) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            auto const values = testing::random_normal<float>(5000, static_cast<uint64_t>(40 + t));
            for (int round = 0; round < 5; ++round) {
                Path const path = fmt::format("/f{}.h5", t);
                auto writer = create_tensor_file(files_, path);
                writer->write("x", ConstView(values.data(), Shape{5000}));
                writer->finish();
                auto found = testing::poisoned<float>(5000);
                open_tensor_file(files_, path, Category::data)->read("x", TensorView(found.data(), Shape{5000}));
                EXPECT_EQ(found, values);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
}

TEST_F(TensorFile, RefusesTextAndTruncatedFiles) {
    std::vector<float> const values(1000);
    auto writer = create_tensor_file(files_, "/f.h5");
    writer->write("a", ConstView(values.data(), Shape{1000}));
    writer->finish();
    std::string const whole = files_.read_text("/f.h5", INT64_MAX);
    for (size_t size : {size_t{0}, size_t{1}, size_t{100}, size_t{2000}, whole.size() - 1}) {
        files_.damage("/f.h5", whole.substr(0, size));
        EXPECT_NE(error_of(files_, "/f.h5"), "accepted") << size;
    }
    files_.damage("/f.h5", "model: llama\n");
    EXPECT_THAT(error_of(files_, "/f.h5"), HasSubstr("not a readable HDF5 file"));
    EXPECT_THAT(error_of(files_, "/missing.h5"), HasSubstr("No such file"));
}

/// Files as other programs may write them, made with the HDF5 library itself.
class ForeignFile : public ::testing::Test {
  protected:
    testing::TemporaryFolder folder_;
    Path path_ = folder_.path() / "foreign.h5";
    std::unique_ptr<FileSystem> files_ = make_file_system();
    hid_t file_ = H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);

    /// A dataset of 8 x 8 values; `prepare` changes how it is stored.
    void add(std::string const& name, hid_t type, std::function<void(hid_t)> const& prepare = {},
             std::vector<hsize_t> extents = {8, 8}, bool fill = true) {
        hid_t const space = H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr);
        hid_t const creation = H5Pcreate(H5P_DATASET_CREATE);
        if (prepare) prepare(creation);
        hid_t const dataset = H5Dcreate2(file_, name.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
        ASSERT_GE(dataset, 0) << name;
        std::vector<std::byte> const zeros(64 * 64);
        if (fill) {
            ASSERT_GE(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data()), 0);
        }
        H5Dclose(dataset), H5Pclose(creation), H5Sclose(space);
    }
    std::string error() {
        H5Fclose(file_);
        return error_of(*files_, path_);
    }
};

TEST_F(ForeignFile, IsReadWhereItIsPlain) {
    add("q", H5T_IEEE_F32LE);
    add("cu_seqlens", H5T_STD_I32LE, {}, {3});
    EXPECT_EQ(error(), "accepted");
}
TEST_F(ForeignFile, MayNotUseSoftLinks) {
    add("q", H5T_IEEE_F32LE);
    H5Lcreate_soft("/q", file_, "again", H5P_DEFAULT, H5P_DEFAULT);
    EXPECT_THAT(error(), AllOf(HasSubstr("`again`"), HasSubstr("links")));
}
TEST_F(ForeignFile, MayNotUseExternalLinks) {
    H5Lcreate_external("/etc/passwd", "/x", file_, "outside", H5P_DEFAULT, H5P_DEFAULT);
    EXPECT_THAT(error(), AllOf(HasSubstr("`outside`"), HasSubstr("links")));
}
TEST_F(ForeignFile, MayNotLoop) {
    hid_t const group = H5Gcreate2(file_, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_hard(file_, "group", group, "itself", H5P_DEFAULT, H5P_DEFAULT);
    H5Gclose(group);
    EXPECT_THAT(error(), HasSubstr("linked to twice"));
}
TEST_F(ForeignFile, MayNotNestForEver) {
    hid_t const links = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(links, 1);
    std::string name = "a";
    for (int i = 0; i < 100; ++i) name += "/a";
    H5Gclose(H5Gcreate2(file_, name.c_str(), links, H5P_DEFAULT, H5P_DEFAULT));
    H5Pclose(links);
    EXPECT_THAT(error(), HasSubstr("deeper than"));
}
TEST_F(ForeignFile, MayNotBeChunkedNorCompressed) {
    hsize_t const chunk[] = {4, 4};
    add("packed", H5T_IEEE_F32LE, [&](hid_t creation) {
        H5Pset_chunk(creation, 2, chunk);
        H5Pset_deflate(creation, 1);
    });
    EXPECT_THAT(error(), AllOf(HasSubstr("`packed`"), HasSubstr("contiguous")));
}
TEST_F(ForeignFile, MayNotBeCompact) {
    add("small", H5T_IEEE_F32LE, [](hid_t creation) { H5Pset_layout(creation, H5D_COMPACT); });
    EXPECT_THAT(error(), HasSubstr("contiguous"));
}
TEST_F(ForeignFile, MayNotBeVirtual) {
    hsize_t const extent = 8;
    add("source", H5T_IEEE_F32LE, {}, {8});
    hid_t const space = H5Screate_simple(1, &extent, nullptr);
    add(
        "view", H5T_IEEE_F32LE, [&](hid_t creation) { H5Pset_virtual(creation, space, ".", "source", space); }, {8},
        false);
    H5Sclose(space);
    EXPECT_THAT(error(), AllOf(HasSubstr("`view`"), HasSubstr("contiguous")));
}
TEST_F(ForeignFile, MayNotStoreItsValuesElsewhere) {
    std::string const outside = (folder_.path() / "outside.bin").string();
    add("elsewhere", H5T_IEEE_F32LE, [&](hid_t creation) { H5Pset_external(creation, outside.c_str(), 0, 256); });
    EXPECT_THAT(error(), HasSubstr("external storage"));
}
TEST_F(ForeignFile, MayNotHoldOtherTypes) {
    hid_t const compound = H5Tcreate(H5T_COMPOUND, 8);
    H5Tinsert(compound, "re", 0, H5T_IEEE_F32LE);
    H5Tinsert(compound, "im", 4, H5T_IEEE_F32LE);
    add("complex", compound);
    EXPECT_THAT(error(), AllOf(HasSubstr("`complex`"), HasSubstr("bf16")));
    H5Tclose(compound);
}
TEST_F(ForeignFile, MayNotBeBigEndian) {
    add("network", H5T_IEEE_F32BE);
    EXPECT_THAT(error(), HasSubstr("little-endian"));
}
TEST_F(ForeignFile, MayNotClaimMoreThanItHolds) {
    add("huge", H5T_IEEE_F32LE, {}, {1ull << 40, 1ull << 10}, false);
    EXPECT_THAT(error(), AllOf(HasSubstr("`huge`"), HasSubstr("more than the file's")));
}
TEST_F(ForeignFile, MayNotClaimAnAbsurdExtent) {
    add("absurd", H5T_STD_U8LE, {}, {1ull << 60}, false);
    EXPECT_THAT(error(), HasSubstr("absurd"));
}
TEST_F(ForeignFile, MayNotHideAnOverflowBehindAnEmptyDimension) {
    add("wrapped", H5T_STD_U8LE, {}, {1ull << 31, 1ull << 31, 0, 1ull << 31}, false);
    EXPECT_THAT(error(), HasSubstr("absurd"));
}
TEST_F(ForeignFile, MayNotHaveFiveDimensions) {
    add("deep", H5T_IEEE_F32LE, {}, {2, 2, 2, 2, 2});
    EXPECT_THAT(error(), HasSubstr("5 dimensions"));
}
TEST_F(ForeignFile, MayNotLeaveValuesOut) {
    add("forgotten", H5T_IEEE_F32LE, {}, {8, 8}, false);
    EXPECT_THAT(error(), HasSubstr("never written"));
}

TEST(Bf16File, IsAFloatToOtherPrograms) {
    testing::TemporaryFolder const folder;
    auto const files = make_file_system();
    std::vector<bf16> const values{to_bf16(1.0f), to_bf16(-2.5f), to_bf16(3e38f), to_bf16(1e-39f)};
    auto writer = create_tensor_file(*files, folder.path() / "f.h5");
    writer->write("x", ConstView(values.data(), Shape{4}));
    writer->finish();
    hid_t const file = H5Fopen((folder.path() / "f.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    hid_t const dataset = H5Dopen2(file, "x", H5P_DEFAULT);
    std::vector<float> found(4);
    ASSERT_GE(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, found.data()), 0);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(found[i], to_float(values[i]));
    H5Dclose(dataset), H5Fclose(file);
}

}  // namespace
}  // namespace perigee
