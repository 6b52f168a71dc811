#include "commands/view/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "data/tokenizer.h"

namespace perigee::view {

namespace {

/// Length of the UTF-8 character that begins at `text`, 0 where there is none.
size_t character(std::string_view text) {
    auto const first = static_cast<unsigned char>(text[0]);
    size_t const length = first < 0x80   ? 1
                          : first < 0xC2 ? 0
                          : first < 0xE0 ? 2
                          : first < 0xF0 ? 3
                          : first < 0xF5 ? 4
                                         : 0;
    if (length > text.size()) return 0;
    for (size_t i = 1; i < length; ++i)
        if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
    return length;
}

/// Bytes as something that neither moves the cursor nor breaks the page.
std::string printable(std::string_view bytes) {
    std::string text;
    while (!bytes.empty()) {
        size_t const length = character(bytes);
        auto const first = static_cast<unsigned char>(bytes[0]);
        if (first == '\n')
            text += "\\n";
        else if (length == 0 || first < 0x20 || first == 0x7F)
            text += fmt::format("\\x{:02X}", first);
        else
            text += bytes.substr(0, length);
        bytes.remove_prefix(std::max<size_t>(length, 1));
    }
    return text;
}

/// Names tokens for people.
class Names {
  public:
    Names(DataOptions const& data, FileSystem& files) {
        if (!data.mock_data) tokenizer_ = make_tokenizer(files, data.tokenizer);
    }
    std::string operator()(int32_t id) const {
        if (tokenizer_ == nullptr) return fmt::format("{} ", id);
        if (id >= tokenizer_->vocab_size()) return fmt::format("<{}>", id);
        return printable(tokenizer_->piece(id));
    }

  private:
    std::unique_ptr<Tokenizer> tokenizer_;
};

/// A batch of whole samples of equal length, and the layers below which each of its tokens receives gradient.
struct Analysed {
    Batch const& batch;
    std::vector<int64_t> depth_T;
    int64_t block_size;
};

std::vector<Token> document(Analysed const& of, int64_t begin, int64_t end, Names const& names) {
    std::vector<Token> tokens;
    for (int64_t t = begin; t < end; ++t) {
        auto const at = static_cast<size_t>(t);
        float const weight = t > begin ? of.batch.weights_T[at - 1] : 0.0f;
        tokens.push_back({.text = names(of.batch.ids_T[at]),
                          .id = of.batch.ids_T[at],
                          .weight = weight,
                          .block = (t - begin) / of.block_size,
                          .depth = of.depth_T[at]});
    }
    auto const last = static_cast<size_t>(end - 1);
    if (of.batch.weights_T[last] > 0)
        tokens.push_back({.text = names(of.batch.targets_T[last]),
                          .id = of.batch.targets_T[last],
                          .weight = of.batch.weights_T[last],
                          .block = tokens.back().block,
                          .depth = 0,
                          .is_read = false});
    return tokens;
}

Sample sample(Analysed const& of, int64_t number, int64_t begin, int64_t end, Names const& names) {
    auto const loss = std::count_if(of.batch.weights_T.begin() + begin, of.batch.weights_T.begin() + end,
                                    [](float w) { return w > 0; });
    Sample result{.number = number, .tokens = end - begin, .loss_tokens = loss, .documents = {}};
    auto const& borders = of.batch.cu_seqlens;
    for (size_t i = 1; i < borders.size(); ++i)
        if (begin <= borders[i - 1] && borders[i] <= end && borders[i - 1] < borders[i])
            result.documents.push_back(document(of, borders[i - 1], borders[i], names));
    return result;
}

/// Adds the counts of one micro-batch; returns how many layers each of its tokens reaches.
std::vector<int64_t> add_reach(BlockChoices const& choices, Batch const& batch, std::vector<Layer>& layers) {
    std::vector<int64_t> depth_T(batch.ids_T.size());
    auto const reached = choices.reached(batch.weights_T);
    for (size_t layer = 0; layer < layers.size(); ++layer) {
        layers[layer].is_full = choices.is_full(static_cast<int64_t>(layer));
        for (size_t t = 0; t < depth_T.size(); ++t) depth_T[t] += reached[layer][t];
        layers[layer].reached += std::ranges::count(reached[layer], 1);
    }
    return depth_T;
}

}  // namespace

View make_view(Session& session, int64_t step, int64_t first, int64_t samples, bool weights) {
    RunOptions const& options = session.options();
    auto const source = session.open(Split::train);
    int64_t const global = options.train.global_batch_size, micro = options.train.micro_batch_size;
    int64_t const length = options.data.sequence_length;
    auto const selections = session.selections(step - 1);
    Names const names(options.data, session.files());
    View view{.step = step,
              .data = source->summary(),
              .weights = {},
              .block_size = options.attention.moba.block_size,
              .layers = std::vector<Layer>(weights ? selections.size() : 0),
              .samples = {}};
    for (int64_t done = 0; done < global; done += micro) {
        int64_t const count = std::min(micro, global - done);
        Batch const batch = make_batch(*source, first + done, count);
        Analysed of{.batch = batch, .depth_T = std::vector<int64_t>(batch.ids_T.size()), .block_size = view.block_size};
        if (weights)
            of.depth_T = add_reach(session.model().choices(session.model_weights(), batch, selections, session.arena()),
                                   batch, view.layers);
        view.tokens += batch.tokens();
        view.loss_tokens += std::ranges::count_if(batch.weights_T, [](float w) { return w > 0; });
        view.loss_weight = std::accumulate(batch.weights_T.begin(), batch.weights_T.end(), view.loss_weight);
        for (int64_t i = 0; i < count && std::ssize(view.samples) < samples; ++i)
            view.samples.push_back(sample(of, first + done + i, i * length, (i + 1) * length, names));
    }
    return view;
}

}  // namespace perigee::view
