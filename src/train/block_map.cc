#include "train/block_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace perigee {

std::string block_map(Session& session, DataSource const& data, int64_t step, std::span<Selection const> selections) {
    constexpr int64_t kMostCells = 32;  // along a side
    if (std::ranges::all_of(selections, is_full)) return "";
    BlockChoices const choices =
        session.model().choices(session.model_weights(), make_batch(data, 0, 1), selections, session.arena());
    std::vector<std::string> layers;
    for (size_t layer = 0; layer < selections.size(); ++layer) {
        if (is_full(selections[layer])) continue;
        std::vector<std::string> rows;
        for (auto const& row : choices.map(static_cast<int64_t>(layer), kMostCells))
            rows.push_back(fmt::format("[{:.3g}]", fmt::join(row, ",")));
        layers.push_back(fmt::format(R"({{"layer":{},"map":[{}]}})", layer, fmt::join(rows, ",")));
    }
    return fmt::format(R"({{"step":{},"blocks_per_cell":{},"layers":[{}]}})", step, choices.blocks_per_cell(kMostCells),
                       fmt::join(layers, ","));
}

}  // namespace perigee
