// Runs a Hugging Face folder's model, forward and backward, on one document and writes logits and gradients, so that
// any other program can check them: model_probe FOLDER IN.h5 OUT.h5 [--block-size 512 --top-k 4]. In: ids, targets [T],
// int32; weights [T], float32. Out: logits [T, vocab_size]; loss [1], sum(weight * nll) / sum(weight); its gradient for
// every parameter, "grad/" + name. With --block-size all layers attend through MoBA.
#include <CLI/CLI.hpp>
#include <numeric>

#include "hf/config.h"
#include "hf/weights.h"
#include "io/tensor_file.h"
#include "model/llama.h"

namespace perigee {
namespace {

struct Request {
    std::string folder, in, out;
    MobaOptions moba;
    bool sparse = false;
};

template <class T>
std::vector<T> read_list(TensorFileReader const& file, std::string const& name) {
    std::vector<T> values(static_cast<size_t>(file.info(name).shape.size()));
    file.read(name, {values.data(), Shape{std::ssize(values)}});
    return values;
}

Batch read_document(FileSystem& files, std::string const& path, int64_t vocab_size) {
    auto const file = open_tensor_file(files, path, Category::data);
    Batch batch;
    batch.ids_T = read_list<int32_t>(*file, "ids");
    batch.targets_T = read_list<int32_t>(*file, "targets");
    batch.weights_T = read_list<float>(*file, "weights");
    for (auto const* ids : {&batch.ids_T, &batch.targets_T})
        for (int32_t const id : *ids)
            if (id < 0 || id >= vocab_size) fail(Category::data, "{}: token {} of {}", path, id, vocab_size);
    if (batch.ids_T.empty() || batch.targets_T.size() != batch.ids_T.size() ||
        batch.weights_T.size() != batch.ids_T.size())
        fail(Category::data, "{}: {} ids, {} targets, {} weights", path, batch.ids_T.size(), batch.targets_T.size(),
             batch.weights_T.size());
    batch.positions_T.resize(batch.ids_T.size());
    std::iota(batch.positions_T.begin(), batch.positions_T.end(), 0);
    batch.cu_seqlens = {0, static_cast<int32_t>(batch.ids_T.size())};
    return batch;
}

void run(Request const& request) {
    auto const files = make_file_system();
    HfConfig const config = read_hf_config(*files, request.folder);
    Batch const batch = read_document(*files, request.in, config.model.vocab_size);
    auto const world = make_single_comm();
    Mesh const mesh(ParallelOptions{}, *world);
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device);
    ParamLayout const layout(llama_params(config.model), 1, 0);
    HfWeights const stored(*files, request.folder);
    stored.check(llama_params(config.model));
    std::vector<float> weights(static_cast<size_t>(layout.size())), grads(weights.size());
    TensorView const weights_view(weights.data(), {layout.size()}), grads_view(grads.data(), {layout.size()});
    for (ParamLayout::Entry const& entry : layout.entries())
        stored.read(
            entry.spec.name, entry.shard,
            std::span(weights).subspan(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.local.size())));

    Llama model(config.model, layout, mesh, *ops);
    Arena arena(*device);
    Selection const selection = request.sparse ? Selection(request.moba) : Selection(FullAttention{});
    std::vector<Selection> const selections(static_cast<size_t>(config.model.num_hidden_layers), selection);
    std::vector<float> logits = model.logits(weights_view, batch, selections, arena);
    double const weight = std::accumulate(batch.weights_T.begin(), batch.weights_T.end(), 0.0);
    double loss =
        model.loss_and_gradient(weights_view, {.grads = grads_view, .scale = 1 / weight}, batch, selections, arena);
    loss /= weight;

    auto const file = create_tensor_file(*files, request.out);
    file->write("logits", {logits.data(), Shape{batch.tokens(), config.model.vocab_size}});
    file->write("loss", {&loss, Shape{1}});
    for (ParamLayout::Entry const& entry : layout.entries())
        file->write("grad/" + entry.spec.name, layout.view(grads_view, entry.spec.name));
    file->finish();
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    perigee::Request request;
    CLI::App app{"Logits and gradients of a Hugging Face folder's model on one document."};
    app.add_option("folder", request.folder, "Hugging Face folder")->required();
    app.add_option("in", request.in, "HDF5 file with ids, targets, weights")->required();
    app.add_option("out", request.out, "HDF5 file to write")->required();
    auto* const block = app.add_option("--block-size", request.moba.block_size)->check(CLI::PositiveNumber);
    app.add_option("--top-k", request.moba.top_k)->check(CLI::PositiveNumber)->needs(block);
    CLI11_PARSE(app, argc, argv);
    request.sparse = block->count() > 0;
    try {
        perigee::run(request);
    } catch (std::exception const& error) {
        return perigee::report_failure("model_probe", error);
    }
    return 0;
}
