// One .safetensors file: what is written comes back bit for bit; what is not such a file is refused by name.
#include "hf/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "hf/hf_folder.h"

namespace perigee {
namespace {

using namespace testing;

TEST(Safetensors, every_pattern_of_bits_of_the_16_bit_types_survives_widening_and_narrowing) {
    for (ElementType const type : {ElementType::bf16, ElementType::f16}) {
        std::vector<uint16_t> bits(1 << 16), back(1 << 16, 0x5555);
        for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
        std::vector<float> values(bits.size());
        widen(std::as_bytes(std::span(bits)).data(), type, values);
        EXPECT_TRUE(narrow(values, type, std::as_writable_bytes(std::span(back)).data()));
        for (size_t i = 0; i < bits.size(); ++i)
            ASSERT_TRUE(std::isnan(values[i]) || bits[i] == back[i]) << to_string(type) << " " << i;
    }
}

TEST(Safetensors, fp16_means_what_ieee_754_says) {
    std::vector<uint16_t> const bits = {0x3c00, 0xc000, 0x7bff, 0x0001, 0x0400, 0x7c00, 0x3555};
    std::vector<float> values(bits.size());
    widen(std::as_bytes(std::span(bits)).data(), ElementType::f16, values);
    EXPECT_THAT(values, ::testing::ElementsAre(1.0f, -2.0f, 65504.0f, 0x1p-24f, 0x1p-14f,
                                               std::numeric_limits<float>::infinity(), 0x1.554p-2f));
    std::vector<float> const halves = {1 + 0x1p-11f, 1 + 3 * 0x1p-11f};  // ties go to the even neighbour
    std::vector<uint16_t> rounded(2);
    EXPECT_TRUE(narrow(halves, ElementType::f16, std::as_writable_bytes(std::span(rounded)).data()));
    EXPECT_THAT(rounded, ::testing::ElementsAre(0x3c00, 0x3c02));
    EXPECT_FALSE(narrow(std::vector{65520.0f}, ElementType::f16, std::as_writable_bytes(std::span(rounded)).data()));
}

TEST(Safetensors, the_file_is_laid_out_as_the_format_says) {
    MemoryFileSystem files;
    SafetensorsWriter writer(files, "/file", {{"b", ElementType::bf16, {2}}, {"a", ElementType::f32, {1, 1}}});
    writer.write("b", 0, std::vector{1.0f, -2.0f});
    writer.write("a", 0, std::vector{1.0f});
    writer.finish();
    std::string header = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},)"
                         R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]}})";
    header += "   ";  // the values begin at a multiple of 8
    ASSERT_EQ(header.size() % 8, 0u);
    EXPECT_EQ(files.contents("/")["/file"],
              raw_safetensors(header, std::string("\0\0\x80\x3f", 4) + std::string("\x80\x3f\0\xc0", 4)));
    EXPECT_EQ(writer.bytes(), files.file_size("/file"));
}

TEST(Safetensors, parts_of_tensors_are_written_and_read_alone) {
    MemoryFileSystem files;
    auto const values = exact_values(7 * 300, 5);
    SafetensorsWriter writer(files, "/file", {{"x", ElementType::f16, {7, 300}}, {"none", ElementType::f32, {0, 3}}});
    for (int64_t row : {6, 2, 0, 1, 5, 4, 3})
        writer.write("x", 300 * row, std::span(values).subspan(static_cast<size_t>(300 * row), 300));
    writer.finish();
    SafetensorsFile const file(files, "/file");
    ASSERT_EQ(file.tensors().size(), 2u);
    SafetensorsFile::Tensor const& tensor = file.tensors().at("x");
    EXPECT_EQ(tensor.shape, (Shape{7, 300}));
    auto part = poisoned<float>(451);
    file.read(tensor, ElementType::f16, 299, part);
    EXPECT_EQ(part, std::vector<float>(values.begin() + 299, values.begin() + 750));
}

TEST(Safetensors, a_value_too_large_for_the_type_is_refused_by_name) {
    MemoryFileSystem files;
    SafetensorsWriter writer(files, "/file", {{"x", ElementType::f16, {1}}});
    EXPECT_EQ(error_of(Category::checkpoint, [&] { writer.write("x", 0, std::vector{70000.0f}); }),
              "/file: a value of tensor `x` is too large for float16");
}

TEST(Safetensors, a_file_that_is_not_finished_is_our_fault) {
    MemoryFileSystem files;
    SafetensorsWriter writer(files, "/file", {{"x", ElementType::f16, {2}}});
    writer.write("x", 0, std::vector{1.0f});
    EXPECT_THAT(error_of(Category::internal, [&] { writer.finish(); }),
                ::testing::HasSubstr("98 of 100 bytes were written"));
}

struct Bad {
    char const* name;
    std::string file;
    std::string message;  ///< after "/file"
};

std::string entry(std::string const& dtype, std::string const& shape, std::string const& offsets) {
    return fmt::format(R"({{"w":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
}

std::vector<Bad> bad_files() {
    std::string const eight(8, 'v');
    auto const tensor = [&](std::string const& dtype, std::string const& shape, std::string const& offsets) {
        return raw_safetensors(entry(dtype, shape, offsets), eight);
    };
    std::string const huge = std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8);
    std::string const two = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)";
    return {
        {"short", "1234567", " has 7 bytes, too few for a safetensors file"},
        {"huge_header", huge + "{}",
         ": not a safetensors file: a header of 9223372036854775807 bytes in a file of 10; at most 16777216 are "
         "accepted"},
        {"git_lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n",
         " is a pointer of Git LFS, not the weights: `git lfs pull` fetches them"},
        {"header_beyond_the_end", raw_safetensors("{}", "").substr(0, 9),
         ": not a safetensors file: a header of 2 bytes in a file of 9; at most 16777216 are accepted"},
        {"not_json", raw_safetensors("{\"w\":", ""), ": header: not JSON at byte 6"},
        {"not_utf8", raw_safetensors("{\"\xff\":1}", ""), ": header: not JSON at byte 3"},
        {"list", raw_safetensors("[]", ""), ": the header is not a JSON object"},
        {"deep", raw_safetensors("{\"w\":[[[[1]]]]}", ""), ": header: nested deeper than 4 levels"},
        {"same_name", raw_safetensors("{\"w\":1,\"w\":2}", ""), ": header: the key \"w\" is there twice"},
        {"metadata", raw_safetensors("{\"__metadata__\":{\"a\":1}}", ""), ": __metadata__ is not an object of texts"},
        {"entry", raw_safetensors("{\"w\":1}", ""),
         ": tensor `w`: its entry is not an object of dtype, shape and data_offsets"},
        {"more_fields", raw_safetensors(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", eight),
         ": tensor `w`: its entry is not an object of dtype, shape and data_offsets"},
        {"dtype", tensor("F31", "[2]", "[0,8]"), ": tensor `w`: its dtype \"F31\" is not known"},
        {"negative_extent", tensor("F32", "[-2]", "[0,8]"), ": tensor `w`: its shape [-2] is not a list of counts"},
        {"fraction", tensor("F32", "[2.0]", "[0,8]"), ": tensor `w`: its shape [2.0] is not a list of counts"},
        {"extent_beyond_64_bits", tensor("F32", "[18446744073709551615]", "[0,8]"),
         ": tensor `w`: its shape [18446744073709551615] is not a list of counts"},
        {"overflow", tensor("F32", "[281474976710656,281474976710656]", "[0,8]"),
         ": tensor `w`: its shape [281474976710656, 281474976710656] is absurd"},
        {"rank", tensor("F32", "[1,1,1,1,2]", "[0,8]"), ": tensor `w`: it has 5 dimensions; at most 4 are accepted"},
        {"range", tensor("F32", "[2]", "[8,0]"), ": tensor `w`: its data_offsets [8, 0] are not a range"},
        {"one_offset", tensor("F32", "[2]", "[8]"), ": tensor `w`: its data_offsets [8] are not a range"},
        {"offset_type", tensor("F32", "[2]", "\"0\""), ": tensor `w`: its data_offsets \"0\" is not a list of counts"},
        {"beyond", tensor("F32", "[4]", "[0,16]"),
         ": tensor `w`: its bytes 0 to 16 reach behind the file's 8 bytes of values"},
        {"size", tensor("F32", "[3]", "[0,8]"), ": tensor `w`: F32 [3] takes 12 bytes, but its data_offsets hold 8"},
        {"gap", raw_safetensors(two + R"("b":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})", eight),
         ": tensor `b`: it begins at byte 6 of the values, after the end of the one before it, 4"},
        {"overlap", raw_safetensors(two + R"("b":{"dtype":"U8","shape":[6],"data_offsets":[2,8]}})", eight),
         ": tensor `b`: it begins at byte 2 of the values, before the end of the one before it, 4"},
        {"tail", tensor("F32", "[1]", "[0,4]"), ": 8 bytes of values, but the header accounts for 4"},
    };
}

TEST(Safetensors, what_is_not_such_a_file_is_refused_by_name) {
    for (Bad const& bad : bad_files()) {
        MemoryFileSystem files;
        write_text(files, "/file", bad.file);
        EXPECT_EQ(error_of(Category::checkpoint, [&] { SafetensorsFile(files, "/file"); }), "/file" + bad.message)
            << bad.name;
    }
}

}  // namespace
}  // namespace perigee
