#include "commands/tokenize/chat.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/printable.h"
#include "config/config.h"
#include "data/chat_encoder.h"
#include "data/indexed_dataset.h"

namespace perigee {

namespace {

RunOptions load(ChatInputs const& inputs) {
    RunOptions options = load_config(inputs.config, inputs.overrides);
    if (auto const found = problems(options.chat); !found.empty())
        fail(Category::config, "{}: {}", inputs.config, fmt::join(found, "\n"));
    if (options.chat.max_tokens == 0) options.chat.max_tokens = options.data.sequence_length + 1;
    return options;
}

void print_summary(ChatInputs const& inputs, ChatCounts const& counts, IndexedDatasetWriter const& writer,
                   int64_t loss_tokens) {
    double const share = 100 * static_cast<double>(loss_tokens) / static_cast<double>(writer.tokens());
    print_printable("{}.bin, .idx: {} conversations, {} tokens ({}), of which {:.2f}% carry loss\n",
                    inputs.output.string(), fmt::group_digits(writer.documents()), fmt::group_digits(writer.tokens()),
                    to_string(writer.token_type()), share);
    for (auto const& [count, what] : {std::pair{counts.shortened, "longer than chat.max_tokens, shortened"},
                                      {counts.too_long, "longer than chat.max_tokens, dropped"},
                                      {counts.without_loss, "without a token that carries loss, dropped"},
                                      {counts.malformed, "malformed, skipped"}}) {
        if (count > 0) print_printable("  {} {}\n", fmt::group_digits(count), what);
    }
    if (counts.malformed > 0) print_printable("  the first malformed one is {}\n", counts.first_malformed);
}

}  // namespace

void tokenize_chats(ChatInputs const& inputs, FileSystem& files) {
    RunOptions const options = load(inputs);
    auto const tokenizer = make_tokenizer(files, options.data.tokenizer);
    ChatEncoder const encoder(options.chat, options.chat.max_tokens, *tokenizer);
    if (inputs.output.has_parent_path()) files.make_directories(inputs.output.parent_path());
    IndexedDatasetWriter writer(files, inputs.output, tokenizer->vocab_size(), /*with_weights=*/true);
    ChatCounts counts;
    int64_t loss_tokens = 0;
    for (Path const& path : inputs.files) {
        counts += for_each_chat(files, path, options.chat, encoder, [&](EncodedChat const& chat, int64_t) {
            writer.add_document(chat.tokens, chat.weights);
            loss_tokens += std::ranges::count_if(chat.weights, [](float weight) { return weight > 0; });
        });
    }
    writer.finish();
    print_summary(inputs, counts, writer, loss_tokens);
}

}  // namespace perigee
