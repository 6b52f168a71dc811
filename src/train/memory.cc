#include "train/memory.h"

#include <algorithm>
#include <array>
#include <vector>

#include "train/progress.h"
#include "train/session.h"

namespace perigee {

namespace {

/// Levels above those in use, least first. If layers differ, starts at the highest in use: a lower one for all layers
/// may take more memory than the list.
std::vector<std::string> more_recomputation(RunOptions const& options) {
    struct Level {
        Recompute level;
        char const* remedy;
    };
    constexpr std::array kLevels = {
        Level{Recompute::elementwise,
              "train.recompute=elementwise: norms and SwiGLU are computed twice, a few percent slower"},
        Level{Recompute::mlp, "train.recompute=mlp: the products with gate and up as well, about 10% slower"},
        Level{Recompute::attention, "train.recompute=attention: all of the forward but attention, about 25% slower"},
        Level{Recompute::block, "train.recompute=block: every block's forward is computed twice, about 30% slower"}};
    auto const levels = parse_recompute(options.train.recompute, options.model.num_hidden_layers);
    auto const [least, most] = levels.empty() ? std::ranges::min_max_result<Recompute>{Recompute::none, Recompute::none}
                                              : std::ranges::minmax(levels);
    std::vector<std::string> found;
    for (auto const& [level, remedy] : kLevels)
        if (level > most || (level == most && least < most)) found.emplace_back(remedy);
    return found;
}

/// Cheapest first: what costs no arithmetic, then little, then more.
std::vector<std::string> remedies(RunOptions const& options) {
    std::vector<std::string> found;
    int64_t const micro = options.train.micro_batch_size;
    if (micro > 1)
        found.push_back(fmt::format(
            "train.micro_batch_size={}: the same global batch in more, smaller passes, about as fast", micro / 2));
    for (std::string& remedy : more_recomputation(options)) found.push_back(std::move(remedy));
    if (takes_gpu(options.device) && options.train.offload == 0 && options.model.num_hidden_layers > 2)
        found.push_back("train.offload=auto: activations of layers wait in memory of the host");
    found.push_back("more ranks: parallel.context cuts the tokens of a sample, parallel.tensor also the weights");
    found.push_back(fmt::format("data.sequence_length={}: shorter samples", options.data.sequence_length / 2));
    found.resize(std::min<size_t>(found.size(), 3));
    return found;
}

}  // namespace

std::string out_of_memory_report(std::string const& what, MemoryUse const& use, RunOptions const& options) {
    std::string text =
        fmt::format("{}\n  weights {}, gradients {}, optimizer {}, activations {}", what, format_bytes(use.weights),
                    format_bytes(use.gradients), format_bytes(use.optimizer), format_bytes(use.activations));
    for (std::string const& remedy : remedies(options)) text += "\n  try " + remedy;
    return text;
}

}  // namespace perigee
