#include "data/chat_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "marked_tokenizer.h"
#include "megatron_files.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::shown;

TEST(ChatDocuments, FilesAreReadLineByLineUnderTheirPolicies) {
    testing::TemporaryFolder folder;
    auto const files = make_file_system();
    Path const path = folder / "talk.jsonl";
    testing::write_bytes(path, R"({"prompt": "a", "completion": "b"}

{"prompt": "a"}
{"messages": [{"role": "human", "content": "x"}]}
{"messages": [{"role": "user", "content": "only asked"}]}
{"prompt": "a long one", "completion": "that does not fit"}
{"prompt": "c", "completion": "d"})");
    ChatOptions options{.format = ChatFormat::none, .malformed = Malformed::skip};
    testing::MarkedTokenizer const tokenizer;
    std::vector<std::string> seen;
    auto const read = [&] {
        seen.clear();
        ChatEncoder encoder(options, 12, tokenizer);
        return for_each_chat(*files, path, options, encoder,
                             [&](EncodedChat const& chat, ChatPlace const&) { seen.push_back(shown(chat)); });
    };
    ChatCounts const counts = read();
    EXPECT_THAT(seen, ElementsAre("{999}a[b{256}]", "{999}c[d{256}]"));
    EXPECT_EQ(counts.whole, 2);
    EXPECT_EQ(counts.malformed, 2);
    EXPECT_EQ(counts.without_loss, 1);
    EXPECT_EQ(counts.too_long, 1);
    EXPECT_EQ(counts.shortened, 0);
    EXPECT_THAT(counts.first_malformed, HasSubstr("talk.jsonl:3: \"prompt\" without \"completion\""));

    options.too_long = TooLong::stop;
    EXPECT_THAT(error_of(Category::data, read),
                AllOf(HasSubstr("talk.jsonl:6: "), HasSubstr("chat.max_tokens allows 12")));
    options.malformed = Malformed::stop;
    EXPECT_THAT(error_of(Category::data, read), HasSubstr("talk.jsonl:3: \"prompt\" without"));
}

TEST(ChatDocuments, AJsonArrayStopsAlsoWhereMalformedLinesAreSkipped) {
    testing::TemporaryFolder folder;
    auto const files = make_file_system();
    testing::write_bytes(folder / "a.json", "\n[\n{\"prompt\": \"a\", \"completion\": \"b\"}\n]\n");
    testing::MarkedTokenizer const tokenizer;
    ChatOptions const options{.format = ChatFormat::none, .malformed = Malformed::skip};
    ChatEncoder encoder(options, 100, tokenizer);
    EXPECT_THAT(error_of(Category::data,
                         [&] { for_each_chat(*files, folder / "a.json", options, encoder, [](auto&, auto&) {}); }),
                AllOf(HasSubstr("a.json: begins with \"[\""), HasSubstr("jq -c '.[]' FILE > FILE.jsonl")));
}

TEST(ChatDocuments, RolesOfConversationsWithoutAnAnswerAreKept) {
    testing::TemporaryFolder folder;
    auto const files = make_file_system();
    testing::write_bytes(folder / "a.jsonl", R"({"messages": [{"role": "user", "content": "a"}]}
{"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "a"}]}
{"messages": [{"role": "tool", "content": "a"}, {"role": "assistant", "content": "a", "weight": 0}]})");
    testing::MarkedTokenizer const tokenizer;
    ChatOptions const options{.format = ChatFormat::chatml};
    ChatEncoder encoder(options, 100, tokenizer);
    ChatCounts counts;
    counts += for_each_chat(*files, folder / "a.jsonl", options, encoder, [](auto&, auto&) {});
    EXPECT_EQ(counts.without_loss, 3);
    EXPECT_THAT(counts.unanswered_roles, ElementsAre("system", "user"));
}

TEST(ChatDocuments, GoOnAfterTheRecordsReadBeforeAsIfReadAtOnce) {
    testing::TemporaryFolder folder;
    auto const files = make_file_system();
    Path const path = folder / "talk.jsonl";
    std::string text = "\n";
    for (int i = 0; i < 700; ++i)
        text += fmt::format("{{\"prompt\": \"{}\", \"completion\": \"b\"}}\n", i) + (i % 3 ? "" : "\n");
    testing::write_bytes(path, text + R"({"instruction": "i", "output": "o"})");
    testing::MarkedTokenizer const tokenizer;
    ChatOptions const options{.format = ChatFormat::none};
    ChatEncoder encoder(options, 100, tokenizer);
    std::vector<std::string> whole;
    std::vector<ChatPlace> places;
    std::vector<int64_t> conversations;
    for_each_chat(*files, path, options, encoder, [&](EncodedChat const& chat, ChatPlace const& place) {
        whole.push_back(shown(chat));
        places.push_back(place);
        conversations.push_back(place.counts->conversations);
    });
    ASSERT_EQ(whole.size(), 701u);
    for (size_t const at : {size_t{0}, size_t{255}, size_t{256}, size_t{699}}) {
        EXPECT_EQ(conversations[at], static_cast<int64_t>(at) + 1);
        std::vector<std::string> all(whole.begin(), whole.begin() + static_cast<long>(at) + 1);
        ChatCounts const counts = for_each_chat(
            *files, path, options, encoder,
            [&](EncodedChat const& chat, ChatPlace const&) { all.push_back(shown(chat)); }, places[at].records);
        EXPECT_EQ(all, whole);
        EXPECT_EQ(counts.conversations, 700 - static_cast<int64_t>(at));
        EXPECT_EQ(counts.formats[static_cast<size_t>(RecordFormat::alpaca)], 1);
    }
}

TEST(ChatDocuments, ToolCallsAreRefusedByTemplatesOfRolesWithTheWayOut) {
    testing::TemporaryFolder folder;
    auto const files = make_file_system();
    testing::write_bytes(folder / "a.jsonl",
                         R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"a": 1}]}]})");
    testing::MarkedTokenizer const tokenizer;
    ChatOptions const options{.format = ChatFormat::chatml};
    ChatEncoder encoder(options, 100, tokenizer);
    EXPECT_THAT(error_of(Category::data,
                         [&] { for_each_chat(*files, folder / "a.jsonl", options, encoder, [](auto&, auto&) {}); }),
                AllOf(HasSubstr("a.jsonl:1: message 1: \"tool_calls\""), HasSubstr("chat.template: auto")));
}

}  // namespace
}  // namespace perigee
