// A file of conversations: the first byte chooses template, loss and policies, the rest is the JSONL file. What is
// handed out must be a document within max_tokens from which something can be learnt.
#include <array>
#include <span>

#include "data/chat_documents.h"
#include "fuzz/fuzz.h"
#include "support/memory_file_system.h"

namespace perigee::testing {

namespace {

constexpr int64_t kMaxTokens = 200;

ChatOptions chosen(uint8_t byte) {
    return {.format = std::array{ChatFormat::none, ChatFormat::chatml, ChatFormat::llama3}[byte % 3],
            .loss = static_cast<ChatLoss>(byte / 3 % 3),
            .too_long = static_cast<TooLong>(byte / 9 % 4),
            .malformed = static_cast<Malformed>(byte / 36 % 2)};
}

void check(EncodedChat const& chat) {
    auto const size = static_cast<int64_t>(chat.tokens.size());
    PERIGEE_CHECK(0 < size && size <= kMaxTokens, "{} tokens", size);
    PERIGEE_CHECK(chat.weights.size() == chat.tokens.size(), "{} weights for {} tokens", chat.weights.size(), size);
    double sum = 0;
    for (size_t i = 1; i < chat.weights.size(); ++i) {
        PERIGEE_CHECK(chat.weights[i] >= 0, "weight {}", chat.weights[i]);
        sum += chat.weights[i];
    }
    PERIGEE_CHECK(sum > 0, "nothing to learn from {} tokens", size);
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
    std::string const talk =
        R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "u\u00e9"}, )"
        R"({"role": "assistant", "content": "a", "weight": 0.5}, {"role": "tool", "content": ""}]})"
        "\n";
    std::string const pair = R"({"prompt": "2+2=", "completion": "4", "meta": [{"a": null}, true, 1e3]})";
    std::string const others =
        R"({"conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}], "tools": "[1]"})"
        "\n"
        R"({"instruction": "i", "input": "x", "output": "y", "history": [["q", "r"]]})"
        "\n"
        R"({"prompt": [{"role": "user", "content": [{"type": "text", "text": "u"}]}], "completion": "a"})"
        "\n";
    std::string const bad = "\n{\"prompt\": 5}\n{\"messages\": [[]]}\n{]\n";
    std::vector<std::string> seeds;
    for (char choice = 0; choice < 72; ++choice) seeds.push_back(choice + talk + others + pair + bad);
    return seeds;
}

}  // namespace perigee::testing

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    using namespace perigee;
    if (size == 0) return 0;
    testing::MemoryFileSystem files;
    files.create("/chats.jsonl")->write_at(0, std::as_bytes(std::span(data + 1, size - 1)));
    ChatOptions const options = testing::chosen(data[0]);
    testing::may_refuse([&] {
        auto const tokenizer = make_tokenizer(files, "bytes");
        ChatEncoder encoder(options, testing::kMaxTokens, *tokenizer);
        int64_t documents = 0;
        ChatCounts const counts =
            for_each_chat(files, "/chats.jsonl", options, encoder, [&](EncodedChat const& chat, ChatPlace const&) {
                testing::check(chat);
                ++documents;
            });
        PERIGEE_CHECK(documents == counts.whole + counts.shortened, "{} documents of {} + {}", documents, counts.whole,
                      counts.shortened);
    });
    return 0;
}
