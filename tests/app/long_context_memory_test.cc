// The table of docs/long_context_memory.md is what a step takes.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "app/dry_run.h"
#include "config/config.h"
#include "train/progress.h"

namespace perigee::testing {
namespace {

std::filesystem::path source() { return std::filesystem::path(__FILE__).parent_path().parent_path().parent_path(); }

/// The cells of a row of a table, without the spaces around them.
std::vector<std::string> cells_of(std::string const& line) {
    std::vector<std::string> cells;
    for (size_t begin = 1; begin < line.size();) {
        size_t const end = line.find('|', begin);
        std::string const cell = line.substr(begin, end - begin);
        size_t const first = cell.find_first_not_of(' ');
        cells.push_back(first == std::string::npos ? "" : cell.substr(first, cell.find_last_not_of(' ') - first + 1));
        begin = end == std::string::npos ? line.size() : end + 1;
    }
    return cells;
}

TEST(LongContextMemory, IsWhatTheDocumentSays) {
    std::ifstream document(source() / "docs/long_context_memory.md");
    int rows = 0;
    for (std::string line; std::getline(document, line);) {
        auto const cells = cells_of(line);
        if (cells.size() != 7 || cells[0].find_first_not_of("0123456789") != std::string::npos) continue;
        ++rows;
        bool const alone = cells[0] == "8192";
        RunOptions const options = load_config(
            (source() / "configs/bench/llama_8b.yaml").string(),
            {"device=cuda", "attention.kind=moba", "parallel.shard=weights", "data.sequence_length=" + cells[0],
             alone ? "train.global_batch_size=8" : "train.global_batch_size=1",
             alone ? "parallel.context=1" : "parallel.context=8", "train.recompute=" + cells[1],
             "train.mlp_chunk=" + cells[2], "train.offload=" + cells[3]});
        StepMemory const memory = step_cost(options, 8).memory;
        std::vector<std::string> const found = {format_bytes(memory.activations), format_bytes(memory.sum()),
                                                format_bytes(memory.host)};
        EXPECT_EQ(found, std::vector(cells.begin() + 4, cells.end())) << line;
        EXPECT_EQ(format_bytes(memory.weights), "4.64GiB");
        EXPECT_EQ(format_bytes(memory.gradients), "7.32GiB");
        EXPECT_EQ(format_bytes(memory.optimizer), "11.2GiB");
    }
    EXPECT_GE(rows, 15);
}

}  // namespace
}  // namespace perigee::testing
