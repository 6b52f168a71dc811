#include "data/text_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "base/philox.h"
#include "data/binary_file.h"
#include "data/text_reader.h"
#include "megatron_files.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::read_bytes;
using testing::write_bytes;

class TextTest : public ::testing::Test {
  protected:
    Path text_file(std::string const& name, std::string const& bytes) {
        write_bytes(folder_ / name, bytes);
        return folder_ / name;
    }
    Path gzip_file(std::string const& name, std::string const& bytes) {
        auto const path = (folder_ / name).string();
        gzFile file = gzopen(path.c_str(), "wb");
        gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
        gzclose(file);
        return path;
    }
    static std::string zstd(std::string const& bytes) {
        std::string out(ZSTD_compressBound(bytes.size()), '\0');
        out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 3));
        return out;
    }
    std::vector<std::string> documents(Path const& path, TextOptions const& options = {}) {
        std::vector<std::string> found;
        for_each_document(*files_, path, options, [&](std::string_view text, int64_t) { found.emplace_back(text); });
        return found;
    }
    std::string documents_error(Path const& path, TextOptions const& options = {}) {
        return error_of(Category::data, [&] { documents(path, options); });
    }
    /// What is skipped goes to skipped_.
    std::vector<Path> list(std::vector<Path> const& inputs, TextOptions::Format format = {}) {
        skipped_.clear();
        return list_text_files(*files_, inputs, {}, skipped_, format);
    }
    /// Text that does not compress to nothing, with lines of many lengths.
    static std::string long_text(uint64_t seed, size_t bytes) {
        Philox const random(seed, Purpose::mock_data);
        std::string text;
        for (size_t i = 0; i < bytes; ++i) {
            text.push_back(random.below(i, 50) == 0 ? '\n' : static_cast<char>('a' + random.u64(i) % 26));
        }
        return text;
    }

    testing::TemporaryFolder folder_;
    std::vector<SkippedFile> skipped_;
    std::unique_ptr<FileSystem> files_ = make_file_system();
};

TEST_F(TextTest, AByteOrderMarkIsNoText) {
    EXPECT_THAT(documents(text_file("a.txt", "\xEF\xBB\xBFone\n\xEF\xBB\xBFtwo")), ElementsAre("one\n\xEF\xBB\xBFtwo"));
}

TEST_F(TextTest, AFileIsOneDocumentByteForByte) {
    for (std::string const text : {"one\ntwo", "one\r\n\r\n\n two\n", "", "\n", "\xff\xfe binary \x01"}) {
        EXPECT_THAT(documents(text_file("a.txt", text)), ElementsAre(text));
    }
    std::string const text = long_text(1, 1000000);
    EXPECT_THAT(documents(text_file("a.txt", text)), ElementsAre(text));
}

TEST_F(TextTest, CompressedFilesReadLikePlainOnes) {
    std::string const text = long_text(2, 1000000);
    EXPECT_THAT(documents(gzip_file("a.txt.gz", text)), ElementsAre(text));
    EXPECT_THAT(documents(gzip_file("no_such_suffix", text)), ElementsAre(text));
    EXPECT_THAT(documents(gzip_file("zeros.gz", std::string(3000000, 'x'))), ElementsAre(std::string(3000000, 'x')));
    EXPECT_THAT(documents(gzip_file("empty.gz", "")), ElementsAre(""));
    EXPECT_THAT(documents(text_file("a.txt.zst", zstd(text))), ElementsAre(text));
    EXPECT_THAT(documents(text_file("suffixless", zstd(text))), ElementsAre(text));
    EXPECT_THAT(documents(text_file("empty.zst", zstd(""))), ElementsAre(""));
    std::string const skippable("\x50\x2A\x4D\x18\x02\0\0\0xx", 10);  // as pzstd begins
    EXPECT_THAT(documents(text_file("pzstd.zst", skippable + zstd(text))), ElementsAre(text));
}

TEST_F(TextTest, ACompressedFileCannotFillTheMemory) {
    std::string const bomb(static_cast<size_t>(TextReader::kFreeBytes) + 1, 'x');
    EXPECT_THAT(
        error_of(Category::data, [&] { documents(gzip_file("line.gz", bomb)); }),
        AllOf(HasSubstr("line.gz:1: a line of more than 67108864 bytes"), HasSubstr("decompress the file first")));
    EXPECT_THAT(error_of(Category::data, [&] { documents(text_file("line.zst", zstd(bomb))); }),
                HasSubstr("line.zst:1: a line of more than 67108864 bytes"));
    std::string lines = bomb;
    for (size_t i = 99; i < lines.size(); i += 100) lines[i] = '\n';
    EXPECT_THAT(error_of(Category::data, [&] { documents(gzip_file("lines.gz", lines)); }),
                AllOf(HasSubstr("a document of more than 67108864 bytes"), HasSubstr("decompress the file first")));
    EXPECT_EQ(documents(text_file("plain", lines)).front().size(), lines.size());
}

TEST_F(TextTest, CompressedStreamsEndToEndAreOneFile) {
    std::string const a = long_text(3, 300000), b = long_text(4, 300000);
    std::string const both = read_bytes(gzip_file("a.gz", a)) + read_bytes(gzip_file("b.gz", b));
    EXPECT_THAT(documents(text_file("both.gz", both)), ElementsAre(a + b));
    EXPECT_THAT(documents(text_file("both.zst", zstd(a) + zstd(b))), ElementsAre(a + b));
}

TEST_F(TextTest, DamagedCompressionIsAnError) {
    std::string const good = read_bytes(gzip_file("a.gz", long_text(5, 100000)));
    for (size_t const size : {size_t{3}, size_t{20}, good.size() / 2, good.size() - 9, good.size() - 1}) {
        EXPECT_THAT(documents_error(text_file("a.gz", good.substr(0, size))),
                    AllOf(HasSubstr("a.gz"), HasSubstr("truncated")));
    }
    std::string damaged = good;
    damaged[good.size() / 2] ^= 0x40;
    EXPECT_THAT(documents_error(text_file("a.gz", damaged)), HasSubstr("damaged compression"));
    EXPECT_THAT(documents_error(text_file("a.gz", good + "rubbish")), HasSubstr("damaged compression"));
}

TEST_F(TextTest, DamagedZstdIsAnError) {
    std::string const good = zstd(long_text(5, 100000));
    for (size_t const size : {size_t{5}, size_t{20}, good.size() / 2, good.size() - 1})
        EXPECT_THAT(documents_error(text_file("a.zst", good.substr(0, size))),
                    AllOf(HasSubstr("a.zst"), HasSubstr("truncated")));
    std::string damaged = good;
    damaged[6] = static_cast<char>(damaged[6] ^ 0x46);
    EXPECT_THAT(documents_error(text_file("a.zst", damaged)), HasSubstr("a.zst"));
    EXPECT_THAT(documents_error(text_file("a.zst", good + "rubbish")), HasSubstr("damaged compression"));
}

TEST_F(TextTest, LinesHaveACap) {
    TextReader reader(*files_, text_file("a.txt", "1234\n12345\n"));
    std::string line;
    ASSERT_TRUE(reader.read_line(line, 5));
    EXPECT_EQ(line, "1234\n");
    EXPECT_THAT(error_of(Category::data, [&] { reader.read_line(line, 5); }),
                AllOf(HasSubstr("a.txt:2:"), HasSubstr("5 bytes")));
}

TEST_F(TextTest, BlankLinesSplitDocuments) {
    Path const path = text_file("a.txt", "\n\n\na\n\nb\n \t\n\nc\n\n\n\n\nd");
    EXPECT_THAT(documents(path, {.blank_lines = 2}), ElementsAre("a\n\nb\n", "c\n", "d"));
    EXPECT_THAT(documents(path, {.blank_lines = 1}), ElementsAre("a\n", "b\n", "c\n", "d"));
    EXPECT_THAT(documents(path, {.blank_lines = 3}), ElementsAre("a\n\nb\n \t\n\nc\n", "d"));
    EXPECT_THAT(documents(text_file("b.txt", "a\n\n\n"), {.blank_lines = 2}), ElementsAre("a\n"));
}

TEST_F(TextTest, JsonLinesGiveTheirText) {
    std::string const lines =
        "{\"id\": 1, \"text\": \"one\\n\\u00e9\"}\n"
        "\n"
        "{\"meta\": {\"text\": \"inner\", \"list\": [1, {\"text\": 2}]}, \"text\": \"two\", \"x\": null}\r\n"
        "{\"text\": \"\"}";
    EXPECT_THAT(documents(text_file("a.jsonl", lines)), ElementsAre("one\n\xc3\xa9", "two", ""));
    EXPECT_THAT(documents(gzip_file("a.ndjson.gz", lines)), ElementsAre("one\n\xc3\xa9", "two", ""));
    TextOptions options{.format = TextOptions::Format::jsonl, .key = "body"};
    EXPECT_THAT(documents(text_file("a.txt", "{\"body\": \"b\", \"text\": 1}"), options), ElementsAre("b"));
    options.format = TextOptions::Format::text;
    EXPECT_THAT(documents(text_file("b.jsonl", "{}"), options), ElementsAre("{}"));
}

TEST_F(TextTest, JsonArraysAreRefusedWithTheWayToConvertThem) {
    for (char const* const array : {"[{\"text\": \"a\"}]", " \n\n [\n{\"text\": \"a\"}]", "\xEF\xBB\xBF[]"})
        EXPECT_THAT(documents_error(text_file("a.jsonl", array)),
                    AllOf(HasSubstr("a.jsonl: begins with \"[\""), HasSubstr("jq -c '.[]' FILE > FILE.jsonl")));
    EXPECT_THAT(documents(text_file("b.jsonl", "\n{\"text\": \"[\"}")), ElementsAre("["));
    EXPECT_THAT(documents(text_file("c.txt", "[text]")), ElementsAre("[text]"));
}

TEST_F(TextTest, JsonIsTextOnlyWhereTheFormatSaysSo) {
    using Format = TextOptions::Format;
    for (char const* const name : {"a.json", "a.json.gz", "a.json.zst"})
        EXPECT_THAT(unclear_json(name, Format::automatic).value_or(""),
                    AllOf(HasSubstr("--format text"), HasSubstr("--format jsonl"), HasSubstr("jq -c")));
    for (char const* const name : {"a.jsonl", "a.txt", "json"}) EXPECT_FALSE(unclear_json(name, Format::automatic));
    for (Format const format : {Format::text, Format::jsonl}) EXPECT_FALSE(unclear_json("a.json", format));
}

TEST_F(TextTest, UnclearJsonIsRefusedByNameAndSkippedInFoldersAndPatterns) {
    std::filesystem::create_directory(folder_ / "d");
    text_file("d/a.json", "{\"text\": \"a\"}");
    text_file("d/b.txt", "text");
    EXPECT_THAT(error_of(Category::data, [&] { list({folder_ / "d/a.json"}); }),
                HasSubstr("d/a.json: a .json file: give --format text"));
    for (char const* const input : {"d", "d/*"}) {
        EXPECT_THAT(list({folder_ / input}), ElementsAre(folder_ / "d/b.txt"));
        ASSERT_EQ(skipped_.size(), 1u);
        EXPECT_EQ(skipped_[0].path, folder_ / "d/a.json");
        EXPECT_THAT(skipped_[0].reason, HasSubstr("--format jsonl for one object per line"));
    }
    for (char const* const input : {"d", "d/*", "d/?.json"})
        EXPECT_THAT(list({folder_ / input}, TextOptions::Format::text), ::testing::Contains(folder_ / "d/a.json"));
}

TEST_F(TextTest, WhatTokenizeWritesIsSkippedInFoldersAndPatterns) {
    std::filesystem::create_directory(folder_ / "d");
    std::vector<Path> own, texts;
    for (char const* const name :
         {"01234567.x.chat.json.tmp", "01234567.x.resume.json.tmp", "01234567.x.tokenizer.json.tmp", "w.bin", "w.idx",
          "w.mask", "w.weights", "x.bin", "x.bin.tmp", "x.chat.json", "x.idx.tmp", "x.lock", "x.mask.tmp",
          "x.resume.json", "x.tokenizer.json", "x.weights.tmp"})
        own.push_back(text_file(std::string("d/") + name, "another tokenize"));
    text_file("d/w.idx", std::string("MMIDIDX\0\0", 9));
    for (char const* const name :
         {"chat.json", "v.idx", "x.json", "x.lock.txt", "x.txt.tmp", "y.bin", "y.tmp", "yarn.lock"})
        texts.push_back(text_file(std::string("d/") + name, "another text"));
    for (char const* const input : {"d", "d/*"}) {
        EXPECT_EQ(list({folder_ / input}, TextOptions::Format::text), texts);
        ASSERT_EQ(skipped_.size(), own.size());
        for (size_t i = 0; i < own.size(); ++i) EXPECT_EQ(skipped_[i].path, own[i]);
    }
    EXPECT_THAT(list({own[0]}), ElementsAre(own[0]));
}

TEST_F(TextTest, BadJsonLinesAreLocated) {
    auto const error_of_line = [&](std::string const& line) {
        return documents_error(text_file("a.jsonl", "{\"text\": \"good\"}\n" + line + "\n"));
    };
    EXPECT_THAT(error_of_line("{\"text\": "),
                AllOf(HasSubstr("a.jsonl:2: malformed JSON at byte"), HasSubstr("syntax error")));
    EXPECT_THAT(error_of_line("{\"text\": \"a\"} x"), HasSubstr("malformed"));
    EXPECT_THAT(error_of_line(std::string("{\"text\": \"a\"}\0{\"text\": \"b\"}", 27)),
                HasSubstr("byte 14: a NUL character"));
    EXPECT_THAT(error_of_line("{\"text\": \"\xff\"}"), HasSubstr("malformed"));
    EXPECT_THAT(error_of_line("{\"other\": \"a\"}"),
                HasSubstr("a.jsonl:2: no \"text\": --key names the field of the text, --chat reads conversations"));
    EXPECT_THAT(error_of_line("{\"text\": 7}"), HasSubstr("\"text\" is a number"));
    EXPECT_THAT(error_of_line("{\"text\": null}"), HasSubstr("\"text\" is null"));
    EXPECT_THAT(error_of_line("{\"text\": [\"a\"]}"), HasSubstr("\"text\" is an array"));
    EXPECT_THAT(error_of_line("{\"text\": {\"text\": \"a\"}}"), HasSubstr("\"text\" is an object"));
    EXPECT_THAT(error_of_line("\"text\""), HasSubstr("a string, where an object is expected"));
    EXPECT_THAT(error_of_line("[{\"text\": \"a\"}]"), HasSubstr("an array, where an object is expected"));
    std::string const deep = std::string(100, '[') + std::string(100, ']');
    EXPECT_THAT(error_of_line("{\"x\": " + deep + ", \"text\": \"a\"}"), HasSubstr("nested more than 100 deep"));
    EXPECT_EQ(error_of_line("{\"x\": " + deep.substr(1, 198) + ", \"text\": \"a\"}"), "no error");
    EXPECT_THAT(error_of_line("{\"x\": " + std::string(1000000, '[')), HasSubstr("nested more than 100 deep"));
}

TEST_F(TextTest, FoldersAreListedInOrder) {
    for (char const* const name : {"b", "b/c", "a"}) std::filesystem::create_directory(folder_ / name);
    for (char const* const name : {"b/2.txt", "b/1.txt.gz", "b/c/9.html", "a/7.txt", "z.css"}) text_file(name, "x");
    std::vector<SkippedFile> skipped;
    auto const names = [&](std::vector<Path> const& inputs, std::vector<std::string> const& suffixes) {
        std::vector<std::string> found;
        for (auto const& path : list_text_files(*files_, inputs, suffixes, skipped)) {
            found.push_back(std::filesystem::relative(path, folder_ / "").string());
        }
        return found;
    };
    EXPECT_THAT(names({folder_ / ""}, {}), ElementsAre("a/7.txt", "b/1.txt.gz", "b/2.txt", "b/c/9.html", "z.css"));
    EXPECT_THAT(names({folder_ / ""}, {".txt"}), ElementsAre("a/7.txt", "b/1.txt.gz", "b/2.txt"));
    EXPECT_THAT(names({folder_ / "z.css", folder_ / "a"}, {".txt"}), ElementsAre("z.css", "a/7.txt"));
    EXPECT_THAT(error_of(Category::data, [&] { list_text_files(*files_, {folder_ / "q"}, {}, skipped); }),
                HasSubstr("q: no such"));
}

TEST_F(TextTest, AFolderThatContainsItselfIsAnError) {
    std::filesystem::create_directory(folder_ / "a");
    std::filesystem::create_directory_symlink(folder_ / "a", folder_ / "a/self");
    std::vector<SkippedFile> skipped;
    EXPECT_THAT(error_of(Category::data, [&] { list_text_files(*files_, {folder_ / "a"}, {}, skipped); }),
                HasSubstr("self"));
}

TEST(BinaryFile, IsToldByItsFirstBytesOrByWhatIsNoText) {
    using namespace std::string_view_literals;
    auto const kind = [](std::string_view head) { return binary_kind(head).value_or("text"); };
    EXPECT_THAT(kind("\x28\xB5\x2F\xFD\x04\x00"sv), HasSubstr("zstd"));
    EXPECT_THAT(kind("PAR1\x15\x04"sv), HasSubstr("Parquet"));
    EXPECT_THAT(kind("\x89PNG\r\n\x1A\n"sv), HasSubstr("PNG"));
    EXPECT_THAT(kind("\xFF\xFEh\0i\0g\0"sv), HasSubstr("UTF-16"));
    EXPECT_THAT(kind("h\0i\0g\0h\0 \0"sv), HasSubstr("5 of its first 10 bytes"));
    std::string noise;
    Philox const random(3, Purpose::mock_data);
    for (uint64_t i = 0; i < 5000; ++i) noise += static_cast<char>(random.below(i, 256));
    EXPECT_THAT(kind(noise), HasSubstr("no UTF-8 text"));
    EXPECT_THAT(kind("BZh91AY&SY\x01"sv), HasSubstr("bzip2"));
    EXPECT_THAT(kind("name.txt" + std::string(249, '\0') + "ustar" + std::string(5000, 'a')), HasSubstr("tar"));
    // Text with damage, of one script or another, and cut inside a character.
    std::string const latin1 = "Le caf\xE9 est ferm\xE9 le lundi; ouvert mardi.";
    for (std::string_view const text :
         {""sv, "a"sv, "a\0 little damage\n"sv, std::string_view(latin1), "\u4e2d\u6587\xE4\xB8"sv,
          "PAR1 is a receptor"sv, "ARROW1"sv, "BZh is short for"sv})
        EXPECT_EQ(kind(text), "text") << text;
}

TEST_F(TextTest, BinaryFilesAreRefusedByNameAndSkippedInFolders) {
    std::filesystem::create_directory(folder_ / "d");
    text_file("d/a.txt", "text");
    text_file("d/b.table", "PAR1\x15 and more");
    // A header that is text, and one end that is none.
    std::string const header(100'000, 'a'), zeros(200'000, '\0'), letters = header + header + header;
    text_file("d/c.bin", header + zeros);
    text_file("d/d.bin", letters + zeros.substr(0, 50'000));
    text_file("d/e.txt", letters + "\u4e2d" + letters);
    std::vector<SkippedFile> skipped;
    EXPECT_THAT(list_text_files(*files_, {folder_ / "d"}, {}, skipped),
                ElementsAre(folder_ / "d/a.txt", folder_ / "d/e.txt"));
    ASSERT_EQ(skipped.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(skipped[i].path.filename(), (std::array{"b.table", "c.bin", "d.bin"}[i]));
    EXPECT_THAT(skipped[0].reason, HasSubstr("Parquet"));
    auto const named = list_text_files(*files_, {folder_ / "d/b.table"}, {}, skipped);
    ASSERT_EQ(named.size(), 1u);
    EXPECT_THAT(error_of(Category::data, [&] { for_each_document(*files_, named[0], {}, [](auto, auto) {}); }),
                HasSubstr("d/b.table: expected UTF-8 text"));
}

TEST_F(TextTest, LinksToNothingAreSkippedInFoldersAndRefusedByName) {
    std::filesystem::create_directory(folder_ / "d");
    text_file("d/a.txt", "text");
    std::filesystem::create_symlink(folder_ / "gone", folder_ / "d/b.txt");
    std::vector<SkippedFile> skipped;
    EXPECT_THAT(list_text_files(*files_, {folder_ / "d"}, {}, skipped), ElementsAre(folder_ / "d/a.txt"));
    ASSERT_EQ(skipped.size(), 1u);
    EXPECT_EQ(skipped[0].reason, "a link to nothing");
    EXPECT_THAT(error_of(Category::data, [&] { list_text_files(*files_, {folder_ / "d/b.txt"}, {}, skipped); }),
                HasSubstr("b.txt: no such"));
}

TEST_F(TextTest, PatternsMatchFilesAndFolders) {
    for (char const* const name : {"web", "web/2024", "books"}) std::filesystem::create_directory(folder_ / name);
    for (char const* const name : {"web/a.jsonl", "web/b.txt", "web/2024/c.jsonl", "books/d.jsonl", "books/[x].txt"})
        text_file(name, "x");
    text_file("web/image.jsonl", "\x89PNG\r\n\x1A\n");
    std::vector<SkippedFile> skipped;
    auto const names = [&](std::vector<std::string> const& patterns) {
        std::vector<Path> inputs;
        for (std::string const& pattern : patterns) inputs.push_back(folder_ / pattern);
        std::vector<std::string> found;
        skipped.clear();
        for (auto const& path : list_text_files(*files_, inputs, {}, skipped))
            found.push_back(std::filesystem::relative(path, folder_ / "").string());
        return found;
    };
    EXPECT_THAT(names({"web/*.jsonl"}), ElementsAre("web/a.jsonl"));
    EXPECT_THAT(skipped, ::testing::SizeIs(1));
    EXPECT_THAT(names({"*/?.jsonl"}), ElementsAre("books/d.jsonl", "web/a.jsonl"));
    EXPECT_THAT(names({"**/*.jsonl"}), ElementsAre("books/d.jsonl", "web/a.jsonl", "web/2024/c.jsonl"));
    // What a pattern matches more than once is one file, and so is what two inputs name.
    EXPECT_THAT(names({"web/**/*"}), ElementsAre("web/2024/c.jsonl", "web/a.jsonl", "web/b.txt"));
    EXPECT_THAT(skipped, ::testing::SizeIs(1)) << "the image";
    EXPECT_THAT(names({"**/**/*.jsonl"}), ElementsAre("books/d.jsonl", "web/a.jsonl", "web/2024/c.jsonl"));
    EXPECT_THAT(names({"web/a.jsonl", "web/*.jsonl", "web"}),
                ElementsAre("web/a.jsonl", "web/2024/c.jsonl", "web/b.txt"));
    EXPECT_THAT(std::ranges::count(skipped, "already given by an earlier input", &SkippedFile::reason), 1)
        << "told once";
    EXPECT_THAT(skipped, ::testing::SizeIs(2)) << "and the image";
    EXPECT_THAT(names({"web", "web/image.jsonl"}), ::testing::Contains("web/image.jsonl")) << "read where it is named";
    EXPECT_THAT(names({"books/d*", "web/b.t[xy]t"}), ElementsAre("books/d.jsonl", "web/b.txt"));
    EXPECT_THAT(names({"w*"}), ElementsAre("web/2024/c.jsonl", "web/a.jsonl", "web/b.txt"));
    EXPECT_THAT(names({"books/[x].txt"}), ElementsAre("books/[x].txt"));  // a file of that very name
    EXPECT_THAT(error_of(Category::data, [&] { names({"web/*.md"}); }), HasSubstr("the pattern matches nothing"));
}

TEST_F(TextTest, DocumentsReadBeforeAreLeftOut) {
    Path const lines = text_file("a.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b\"}\n{\"text\": \"c\"}\n");
    Path const blank = text_file("a.txt", "a\n\nb\n\nc\n");
    for (auto const& [path, options] : {std::pair{lines, TextOptions{}}, {blank, TextOptions{.blank_lines = 1}}}) {
        std::vector<std::string> whole, rest;
        for_each_document(*files_, path, options, [&](std::string_view text, int64_t) { whole.emplace_back(text); });
        for_each_document(
            *files_, path, options, [&](std::string_view text, int64_t) { rest.emplace_back(text); }, 2);
        ASSERT_EQ(whole.size(), 3u);
        EXPECT_THAT(rest, ElementsAre(whole[2]));
    }
}

}  // namespace
}  // namespace perigee
