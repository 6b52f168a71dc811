#include <numeric>
#include <optional>

#include "hf/config.h"
#include "hf/peft.h"
#include "hf/weights.h"
#include "model/llama.h"
#include "tools/probe/probe.h"

namespace perigee {
namespace {

Batch read_document(FileSystem& files, std::string const& path, int64_t vocab_size) {
    ProbeInput const in(files, path);
    Shape const shape{in.info("ids").shape.size()};
    if (shape[0] == 0) fail(Category::data, "{}: ids is empty", path);
    in.expect("ids", DType::i32, shape);
    in.expect("targets", DType::i32, shape);
    in.expect("weights", DType::f32, shape);
    Batch batch;
    batch.ids_T = in.values<int32_t>("ids");
    batch.targets_T = in.values<int32_t>("targets");
    batch.weights_T = in.values<float>("weights");
    for (auto const* ids : {&batch.ids_T, &batch.targets_T})
        for (int32_t const id : *ids)
            if (id < 0 || id >= vocab_size)
                fail(Category::data, "{}: token {}, expected 0 to {}", path, id, vocab_size - 1);
    batch.positions_T.resize(batch.ids_T.size());
    std::iota(batch.positions_T.begin(), batch.positions_T.end(), 0);
    batch.cu_seqlens = {0, static_cast<int32_t>(batch.ids_T.size())};
    return batch;
}

}  // namespace

void probe_model(FileSystem& files, ProbeRequest const& request) {
    HfConfig config = read_hf_config(files, request.folder);
    if (!request.adapters.empty()) config.model.lora = read_adapter_config(files, request.adapters);
    for (std::string const& problem : problems(request.attention, config.model)) fail(Category::config, "{}", problem);
    Batch const batch = read_document(files, request.in, config.model.vocab_size);
    auto const world = make_single_host_comm();
    Mesh const mesh(ParallelOptions{}, *world);
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device);
    ParamLayout const layout(llama_params(config.model), 1, 0);
    HfWeights const stored(files, request.folder);
    stored.check(base_params(config.model));
    std::optional<HfWeights> adapters;
    if (!request.adapters.empty()) {
        adapters.emplace(open_adapters(files, request.adapters, config.model.lora));
        adapters->check(peft_params(config.model));
    }
    std::vector<float> weights(static_cast<size_t>(layout.size())), grads(weights.size());
    TensorView const grads_view(grads.data(), {layout.size()});
    for (ParamLayout::Entry const& entry : layout.entries()) {
        auto const values =
            std::span(weights).subspan(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.local.size()));
        if (is_adapter(entry.spec.name))
            adapters->read(peft_name(entry.spec.name), entry.shard, values);
        else
            stored.read(entry.spec.name, entry.shard, values);
    }

    Llama model(config.model, layout, mesh, *ops);
    Arena arena(*device);
    auto const selections = layer_selections(request.attention, config.model.num_hidden_layers, 0, 0);
    FlatWeights flat_weights(layout, {weights.data(), {layout.size()}});
    FlatGradients flat_grads(layout, grads_view);
    std::vector<float> logits = model.logits(flat_weights, batch, selections, arena);
    double const weight = std::accumulate(batch.weights_T.begin(), batch.weights_T.end(), 0.0);
    if (!(weight > 0)) fail(Category::data, "{}: the sum of weights is {}, expected more than 0", request.in, weight);
    double loss =
        model.loss_and_gradient(flat_weights, {.grads = flat_grads, .scale = 1 / weight}, batch, selections, arena);
    loss /= weight;

    auto const file = create_tensor_file(files, request.out);
    file->write("logits", {logits.data(), Shape{batch.tokens(), config.model.vocab_size}});
    file->write("loss", {&loss, Shape{1}});
    for (ParamLayout::Entry const& entry : layout.entries())
        file->write("grad/" + entry.spec.name, layout.view(grads_view, entry.spec.name));
    file->finish();
}

}  // namespace perigee
