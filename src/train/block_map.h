// Which blocks heads choose, as the report draws it.
#pragma once

#include <span>
#include <string>

#include "data/data_source.h"
#include "train/session.h"

namespace perigee {

/// Of the first sample of `data`, a line for blocks.jsonl: "step", "blocks_per_cell", and "layers", of which each MoBA
/// layer has its number "layer" and "map", BlockChoices::map() with three decimals. Empty where no layer is under MoBA.
/// Collective.
std::string block_map(Session& session, DataSource const& data, int64_t step, std::span<Selection const> selections);

}  // namespace perigee
