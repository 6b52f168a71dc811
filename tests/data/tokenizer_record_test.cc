#include "data/tokenizer_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "data/chat_record.h"
#include "data/data_source.h"
#include "megatron_files.h"
#include "support/tiny_tokenizer.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

class TokenizerRecordTest : public ::testing::Test {
  protected:
    static void write_data(Path const& prefix, std::vector<int64_t> tokens) {
        testing::MegatronFiles files;
        files.sequences = {std::move(tokens)};
        files.write(prefix);
    }
    /// A data set with a record of this tokenizer.
    Path data_of(std::string const& name, std::string const& tokenizer) {
        Path const prefix = folder_ / name;
        write_data(prefix, {1, 2, 3, 4, 5, 6, 7, 8});
        write_tokenizer_record(*files_, prefix, *make_tokenizer(*files_, tokenizer), tokenizer, 8);
        return prefix;
    }
    std::string tokenizer(std::string const& name, testing::TinyTokenizer const& tiny = {}) {
        Path const path = folder_ / name;
        files_->make_directories(path);
        files_->replace_text(path / "tokenizer.json", tiny.json());
        return path.string();
    }
    void open(std::vector<Path> const& prefixes, std::string const& tokenizer, Split split = Split::train) {
        DataOptions options;
        options.sequence_length = 4;
        options.tokenizer = tokenizer;
        for (Path const& prefix : prefixes) options.train.push_back({prefix.string()});
        if (split == Split::validation) options.validation = options.train;
        open_data(options, split, 1, 1000, *files_);
    }
    std::string error(std::vector<Path> const& prefixes, std::string const& tokenizer, Split split = Split::train) {
        return error_of(Category::config, [&] { open(prefixes, tokenizer, split); });
    }

    testing::TemporaryFolder folder_;
    std::unique_ptr<FileSystem> files_ = make_file_system();
};

TEST_F(TokenizerRecordTest, DataOfAnotherTokenizerAreRefusedByName) {
    std::string const tiny = tokenizer("tiny");
    Path const bytes = data_of("bytes_data", "bytes"), other = data_of("tiny_data", tiny);
    open({bytes}, "bytes");
    open({other}, tiny);
    for (Split const split : {Split::train, Split::validation})
        EXPECT_THAT(error({other, bytes}, tiny, split),
                    AllOf(HasSubstr(bytes.string() + ": tokenized with bytes (257 tokens)"),
                          HasSubstr("data.tokenizer is " + tiny)));
}

TEST_F(TokenizerRecordTest, TheDefaultIsWarnedOfOnceForEachOpening) {
    std::string const tiny = tokenizer("tiny");
    Path const bytes = data_of("bytes_data", "bytes"), other = data_of("tiny_data", tiny);
    std::vector<std::string> lines;
    log::mirror([&](std::string const& line) { lines.push_back(line); });
    std::string const unset = DataOptions{}.tokenizer;
    open({bytes}, unset);
    for (Split const split : {Split::train, Split::validation}) open({bytes, other, other}, unset, split);
    log::mirror({});
    std::erase_if(lines, [](std::string const& line) { return line.find("data.tokenizer") == line.npos; });
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_THAT(lines[1], HasSubstr("warning: data.tokenizer is bytes; " + other.string() + " was tokenized with " +
                                    tiny + ": set data.tokenizer=" + tiny + " to read and write its text"));
}

TEST_F(TokenizerRecordTest, ConversationsOfAnotherTokenizerAreRefusedUnderTheDefaultToo) {
    Path const chats = data_of("chats", tokenizer("tiny")), bytes = data_of("bytes_data", "bytes");
    for (Path const& prefix : {chats, bytes}) {
        write_chat_record(*files_, prefix, {"{{ messages }}", "tiny"});
        testing::write_bytes(prefix.string() + ".mask", testing::MegatronFiles::mask(std::vector<int>(8, 1)));
    }
    open({bytes}, DataOptions{}.tokenizer);
    EXPECT_THAT(error({chats}, DataOptions{}.tokenizer), AllOf(HasSubstr(chats.string() + ": tokenized with"),
                                                               HasSubstr("data.tokenizer is bytes (257 tokens)")));
}

TEST_F(TokenizerRecordTest, PathsAndFurtherTokensDoNotMatter) {
    std::string const first = tokenizer("first");
    Path const data = data_of("data", first);
    std::filesystem::rename(first, folder_ / "moved");
    open({data}, (folder_ / "moved").string());
    testing::TinyTokenizer more;
    more.added_tokens = R"([{"id": 260, "content": "<more>", "special": true}])";
    open({data}, tokenizer("more", more));
    EXPECT_THAT(error({data_of("more_data", (folder_ / "more").string())}, (folder_ / "moved").string()),
                HasSubstr("tokenized with"));
}

TEST_F(TokenizerRecordTest, DataWithoutARecordOfTheirOwnAreTaken) {
    Path const data = data_of("data", "bytes");
    std::string const tiny = tokenizer("tiny");
    EXPECT_THAT(error({data}, tiny), HasSubstr("tokenized with bytes"));
    write_data(data, {1, 2, 3, 4, 5, 6, 7});
    open({data}, tiny);
    std::filesystem::remove(data.string() + ".tokenizer.json");
    open({data}, "/nowhere");
}

TEST_F(TokenizerRecordTest, DamagedRecordsAreRefused) {
    Path const data = data_of("data", "bytes");
    for (char const* const text : {"", "[]", "{\"tokenizer\": 5}", "{\"tokenizer\": \"a\", \"pieces\": \"\"}"}) {
        files_->replace_text(data.string() + ".tokenizer.json", text);
        EXPECT_THAT(error_of(Category::data, [&] { open({data}, "bytes"); }),
                    HasSubstr("data.tokenizer.json: expected an object"));
    }
}

}  // namespace
}  // namespace perigee
