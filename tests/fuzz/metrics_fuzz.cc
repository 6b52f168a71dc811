// metrics.jsonl as `perigee plot` reads and draws it: an input is the file. Whatever can be read can be drawn, in any
// size.
#include "curves/chart.h"
#include "fuzz/fuzz.h"
#include "support/memory_file_system.h"

namespace perigee::testing {

std::vector<std::string> fuzz_seeds() {
    std::string falling, odd;
    for (int i = 1; i <= 50; ++i) falling += fmt::format("{{\"step\":{},\"loss\":{}}}\n", i, 5.0 / i);
    for (char const* value : {"1e308", "-1e308", "5e-324", "null", "1e16", "10000000000000002", "0", "-0.0"})
        odd += fmt::format("{{\"step\":{},\"loss\":{},\"eval_loss\":{}}}\n", odd.size(), value, value);
    return {falling, odd, "{\"step\":1,\"loss\":2}\n{\"step\":\"x\",\"loss\":2}\n{\"step\":1e300,\"loss\":2}\n{\"st"};
}

namespace {

void draw(FileSystem& files) {
    plot::RunLog const run = plot::read_run(files, "/metrics.jsonl", "loss");
    plot::Chart const chart = plot::make_chart("loss", {run});
    for (int64_t const columns : {1, 80, 200})
        for (int64_t const rows : {1, 18, 60})
            PERIGEE_CHECK(!plot::draw_terminal(chart, columns, rows, columns == 80).empty(), "nothing is drawn");
    PERIGEE_CHECK(!plot::draw_svg(chart).empty(), "nothing is drawn");
}

}  // namespace

}  // namespace perigee::testing

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    using namespace perigee;
    testing::MemoryFileSystem files;
    files.create("/metrics.jsonl")->write_at(0, std::as_bytes(std::span(data, size)));
    testing::may_refuse([&] { testing::draw(files); });
    return 0;
}
