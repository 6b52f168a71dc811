// Draws the curves of one or more runs from their metrics.jsonl, on the terminal or as an SVG file:
//     perigee plot runs/quickstart
//     perigee plot runs/a runs/b --key grad_norm --output compare.svg
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/printable.h"
#include "commands/command.h"
#include "curves/chart.h"
#include "io/output.h"

namespace perigee {
namespace {

constexpr int64_t kWidestByDefault = 100;
constexpr int64_t kDefaultRows = 18;

int64_t terminal_columns() {
    winsize size{};
    bool const known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return known ? std::min<int64_t>(size.ws_col, kWidestByDefault) : 80;
}

struct PlotOptions {
    std::vector<std::string> folders;
    std::string output, key = "loss";
    bool terminal = false;
    int64_t columns = terminal_columns(), rows = kDefaultRows;
};

void draw(PlotOptions const& options, FileSystem& files) {
    std::vector<plot::RunLog> runs;
    if (!options.output.empty())
        for (Path const run : options.folders)
            refuse_replacing({files.is_directory(run) ? run / "metrics.jsonl" : run}, options.output, "--output");
    for (std::string const& folder : options.folders) {
        runs.push_back(plot::read_run(files, folder, options.key));
        if (int64_t const lines = runs.back().unreadable_lines; lines > 0)
            fmt::print(stderr, "perigee: {}: {} unreadable lines left out\n", printable_name(folder), lines);
    }
    plot::tell_apart(runs, options.folders);
    plot::Chart const chart = plot::make_chart(options.key, runs);
    std::string const picture = options.output.empty() ? "" : plot::draw_svg(chart);
    if (!picture.empty()) write_output(files, options.output, picture);
    if (options.terminal || options.output.empty())
        fmt::print("{}", plot::draw_terminal(chart, options.columns, options.rows, isatty(STDOUT_FILENO)));
}

}  // namespace

Action declare_plot(CLI::App& app) {
    auto const options = std::make_shared<PlotOptions>();
    app.add_option("RUN_FOLDER", options->folders, "run folders, or metrics files, drawn over each other")->required();
    app.add_option("--key", options->key,
                   "what to draw: loss, grad_norm, lr, tokens_per_s, ...; evaluations are eval_<key>");
    app.add_option("--output", options->output, "write an SVG file here");
    app.add_flag("--terminal", options->terminal, "draw on the terminal also when --output is given");
    app.add_option("--width", options->columns, "columns of the terminal drawing")->check(CLI::Range(1, 1000));
    app.add_option("--height", options->rows, "rows of the terminal drawing")->check(CLI::Range(1, 1000));
    return [options](FileSystem& files) {
        draw(*options, files);
        return 0;
    };
}

}  // namespace perigee
