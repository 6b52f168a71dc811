// Draws the curves of one or more runs from their metrics.jsonl, on the terminal or as an SVG file:
//     plot runs/quickstart
//     plot runs/a runs/b --key grad_norm --output compare.svg
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"
#include "base/printable.h"
#include "io/file_system.h"
#include "tools/plot/chart.h"

namespace {

using namespace perigee;

constexpr int64_t kWidestByDefault = 100;
constexpr int64_t kDefaultRows = 18;

int64_t terminal_columns() {
    winsize size{};
    bool const known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return known ? std::min<int64_t>(size.ws_col, kWidestByDefault) : 80;
}

void write_file(FileSystem& files, std::string const& path, std::string const& text) {
    files.create(path)->write_at(0, std::as_bytes(std::span(text)));
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Draw the curves of training runs on the terminal or as SVG");
    std::vector<std::string> folders;
    std::string output, key = "loss";
    bool terminal = false;
    int64_t columns = terminal_columns(), rows = kDefaultRows;
    app.add_option("RUN_FOLDER", folders, "run folders, or metrics files, drawn over each other")->required();
    app.add_option("--key", key, "what to draw: loss, grad_norm, lr, tokens_per_s, ...; evaluations are eval_<key>");
    app.add_option("--output", output, "write an SVG file here");
    app.add_flag("--terminal", terminal, "draw on the terminal also when --output is given");
    app.add_option("--width", columns, "columns of the terminal drawing")->check(CLI::Range(1, 1000));
    app.add_option("--height", rows, "rows of the terminal drawing")->check(CLI::Range(1, 1000));
    CLI11_PARSE(app, argc, argv);
    try {
        auto const files = make_file_system();
        std::vector<plot::RunLog> runs;
        for (std::string const& folder : folders) {
            runs.push_back(plot::read_run(*files, folder, key));
            if (int64_t const lines = runs.back().unreadable_lines; lines > 0)
                fmt::print(stderr, "plot: {}: {} unreadable lines left out\n", printable_name(folder), lines);
        }
        plot::Chart const chart = plot::make_chart(key, runs);
        if (!output.empty()) write_file(*files, output, plot::draw_svg(chart));
        if (terminal || output.empty())
            fmt::print("{}", plot::draw_terminal(chart, columns, rows, isatty(STDOUT_FILENO)));
        return 0;
    } catch (std::exception const& error) {
        return report_failure("plot", error);
    }
}
