// Runs one attention or one model, forward and backward, on tensors from a file and writes the results, so that any
// other program can check them.
#include <CLI/CLI.hpp>

#include "config/schema_yaml.h"
#include "tools/probe/probe.h"

namespace perigee {
namespace {

using Probe = void (*)(FileSystem&, ProbeRequest const&);

void run(Probe probe, ProbeRequest request, std::vector<std::string> const& overrides) {
    Schema schema;
    describe(schema, request.attention);
    read_yaml(schema, "{}", "command line", overrides);
    probe(*make_file_system(), request);
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    perigee::ProbeRequest request;
    std::vector<std::string> overrides;
    perigee::Probe probe = nullptr;
    CLI::App app{"Runs attention or a model on the CPU, forward and backward, from HDF5 file to HDF5 file."};
    app.require_subcommand(1);
    auto const add = [&](char const* name, char const* help, perigee::Probe function) {
        CLI::App* const sub = app.add_subcommand(name, help);
        sub->callback([&probe, function] { probe = function; });
        return sub;
    };
    auto const add_files = [&](CLI::App* sub, char const* in) {
        sub->add_option("in", request.in, in)->required();
        sub->add_option("out", request.out, "HDF5 file to write")->required();
        sub->add_option("key=value", overrides,
                        "Keys of `attention` in docs/config.md, as in kind=moba block_size=128");
    };
    CLI::App* const attention = add("attention", "One attention of packed documents", perigee::probe_attention);
    add_files(attention, "HDF5 file with q, k, v, do, cu_seqlens");
    attention->add_option("--scale", request.scale, "Of the scores; 1/sqrt(d) unless given")
        ->check(CLI::PositiveNumber);
    CLI::App* const model = add("model", "A Hugging Face folder's model on one document", perigee::probe_model);
    model->add_option("folder", request.folder, "Hugging Face folder")->required();
    add_files(model, "HDF5 file with ids, targets, weights");
    model->add_option("--adapters", request.adapters, "PEFT folder with adapters for the model");
    CLI11_PARSE(app, argc, argv);
    try {
        perigee::run(probe, request, overrides);
    } catch (std::exception const& error) {
        return perigee::report_failure("probe", error);
    }
    return 0;
}
