// Shows what a run trains on: the samples of one step as text, which tokens carry loss, and how far their gradient
// reaches:
//     perigee view configs/quickstart.yaml data.train.0.path=data/mine
//     perigee view configs/sft.yaml --step 100 --samples 8 --html batch.html
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "commands/command.h"
#include "commands/view/view.h"
#include "config/config.h"
#include "config/follow.h"
#include "io/output.h"

namespace perigee {
namespace {

constexpr auto kLastStep = static_cast<int64_t>(kMostSteps);
constexpr int64_t kMostShown = 1'000'000;
constexpr int64_t kMostSamples = int64_t{1} << 60;  // numbers of samples stay far from the end of int64_t

struct ViewRequest {
    std::string config, html, weights = "auto";
    std::vector<std::string> overrides;
    int64_t step = 0;
    int64_t samples = 2;
};

std::vector<Path> inputs(ViewRequest const& request, RunOptions const& options) {
    std::vector<Path> found = {request.config, options.data.tokenizer};
    for (auto const& source : options.data.train)
        for (char const* suffix : {".idx", ".bin"}) found.emplace_back(source.path + suffix);
    return found;
}

void show(ViewRequest const& request, FileSystem& files) {
    RunOptions options = load_config(request.config, request.overrides);
    if (!request.html.empty()) refuse_replacing(inputs(request, options), request.html, "--html");
    auto const world = make_single_host_comm();
    std::optional<Checkpoint> trained;
    std::optional<Checkpoint> const newest = find_checkpoint(options.checkpoint, options.output_dir, *world, files);
    if (request.weights == "auto") trained = newest;
    if (trained) follow(options, *trained, {request.config, request.overrides}, /*speaks=*/true);
    options.parallel = {.tensor = 1, .context = 1, .data = 1};  // the batch is the same under every layout
    refuse_problems(options, 1, request.config);
    options = resolve(options, 1, files);
    Session session(options, *world, files);
    std::string const& folder = options.model.init_from;
    std::string weights = folder.empty() ? "fresh weights" : fmt::format("the weights of {}", folder);
    int64_t done = 0;
    if (trained) {
        done = session.load_weights(trained).step;
        weights = fmt::format("the weights of step {}", done);
    } else if (request.weights != "none") {
        session.load_weights(std::nullopt);
    }
    int64_t const step = request.step > 0 ? request.step : done + 1;
    if (step > kMostSamples / options.train.global_batch_size)
        fail(Category::config, "--step {} times train.global_batch_size ({}) must be at most {} samples", step,
             options.train.global_batch_size, kMostSamples);
    int64_t const global = options.train.global_batch_size;
    RunState const now = newest ? newest->state() : RunState();
    // Steps before may have taken other numbers of samples.
    int64_t const first = step > now.step ? now.consumed_samples + (step - 1 - now.step) * global : (step - 1) * global;
    view::View view = view::make_view(session, step, first, request.samples, request.weights != "none");
    view.weights = weights;
    if (request.html.empty())
        fmt::print("{}", view::draw_terminal(view, ::isatty(STDOUT_FILENO) == 1));
    else
        write_output(files, request.html, view::draw_html(view));
}

}  // namespace
}  // namespace perigee

namespace perigee {

Action declare_view(CLI::App& app) {
    auto const request = std::make_shared<ViewRequest>();
    app.add_option("CONFIG", request->config, "YAML file of the run")->required();
    app.add_option("overrides", request->overrides, "as for perigee train")->type_name("key=value");
    app.add_option("--step", request->step, "which step, from 1; without it the one after the checkpoint, or the first")
        ->check(CLI::Range(int64_t{1}, kLastStep));
    app.add_option("--samples", request->samples, "samples to show in full")->check(CLI::Range(int64_t{0}, kMostShown));
    app.add_option("--html", request->html, "write a page here instead of showing it on the terminal");
    app.add_option("--weights", request->weights,
                   "auto: of the newest checkpoint of the run, else fresh; init: fresh; none: leave reach out")
        ->check(CLI::IsMember({"auto", "init", "none"}));
    return [request](FileSystem& files) {
        show(*request, files);
        return 0;
    };
}

}  // namespace perigee
