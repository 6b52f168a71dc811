#include "hf/merge.h"

#include <algorithm>

#include "checkpoint/manifest.h"
#include "model/llama.h"

namespace perigee {

namespace {

constexpr std::string_view kWeight = ".weight";

}  // namespace

MergedWeights::MergedWeights(FileSystem& files, Checkpoint const& checkpoint, ModelOptions const& model,
                             Path const& base)
    : checkpoint_(checkpoint), model_(model), base_(base) {
    bool const whole = std::ranges::all_of(
        base_params(model), [&](ParamSpec const& spec) { return checkpoint.tensors().contains(spec.name); });
    if (whole) return;
    if (base.empty()) {
        host_ = make_host_device();
        ops_ = make_host_ops(*host_);
        return;
    }
    if (!files.exists(base))
        fail(Category::checkpoint,
             "there is no folder {}, which the run began with: name the model's folder with --base FOLDER",
             base.string());
    if (files.exists(base / kManifestName)) {
        base_checkpoint_ = std::make_unique<Checkpoint const>(Checkpoint::open(files, base));
        return;
    }
    folder_ = std::make_unique<HfWeights const>(files, base);
    folder_->check(base_params(model));
}

void MergedWeights::read(std::vector<StoredTensor> const& parts) {
    std::vector<StoredTensor> trained;
    for (StoredTensor const& part : parts) {
        if (checkpoint_.tensors().contains(part.name))
            trained.push_back(part);
        else
            read_base(part);
    }
    checkpoint_.read(trained);
    for (StoredTensor const& part : parts) {
        if (!part.name.ends_with(kWeight)) continue;  // a bias has no adapter
        std::string const layer = part.name.substr(0, part.name.size() - kWeight.size());
        if (checkpoint_.tensors().contains(layer + ".lora_A.weight")) add_adapter(part, layer);
    }
}

void MergedWeights::read_base(StoredTensor const& part) {
    std::span<float> const values(part.values.as<float>(), static_cast<size_t>(part.values.size()));
    if (ops_)
        draw(part);
    else if (base_checkpoint_)
        base_checkpoint_->read({part});
    else
        folder_->read(part.name, part.shard, values);
    std::vector<bf16> rounded(values.size());
    std::ranges::transform(values, rounded.begin(), to_bf16);
    fingerprint_.add(part.name, part.shard.global, 0, rounded);
}

/// The values with which the run began.
void MergedWeights::draw(StoredTensor const& part) {
    auto const specs = base_params(model_);
    ParamSpec spec = *std::ranges::find(specs, part.name, &ParamSpec::name);
    spec.unit = 0;
    ParamLayout const layout({spec}, 1, 0);
    initialise(*ops_, layout, {{layout.whole(), part.values.reshape({layout.size()})}}, checkpoint_.state().seed);
}

/// W += scale B A
void MergedWeights::add_adapter(StoredTensor const& part, std::string const& layer) const {
    int64_t const out = part.shard.global[0], in = part.shard.global[1], rank = model_.lora.rank;
    std::vector<float> a(static_cast<size_t>(rank * in)), b(static_cast<size_t>(out * rank));
    checkpoint_.read({{layer + ".lora_A.weight", whole_shard({rank, in}), TensorView(a.data(), {rank, in})},
                      {layer + ".lora_B.weight", whole_shard({out, rank}), TensorView(b.data(), {out, rank})}});
    auto const scale = static_cast<float>(model_.lora.scale());
    for (int64_t row = 0; row < out; ++row) {
        float* const w = part.values.as<float>() + row * in;
        for (int64_t r = 0; r < rank; ++r) {
            float const factor = scale * b[static_cast<size_t>(row * rank + r)];
            float const* const from = a.data() + r * in;
            for (int64_t i = 0; i < in; ++i) w[i] += factor * from[i];
        }
    }
}

void MergedWeights::check_base() const {
    if (!folder_ && !base_checkpoint_ && !ops_) return;
    auto const found = checkpoint_.state().info.find(RunState::kBase);
    std::string const then = found == checkpoint_.state().info.end() ? "" : found->second;
    std::string const now = BaseFingerprint::text(fingerprint_.sum());
    if (then == now) return;
    std::string const folder = checkpoint_.folder().string();
    if (ops_)
        fail(Category::config,
             "{} holds only what was trained, and the other weights are not the random ones of its seed {}, whose "
             "fingerprint is {}, not {}: name the folder of the model that it began with by --base",
             folder, checkpoint_.state().seed, now, then.empty() ? "none" : then);
    fail(Category::checkpoint, "{} was trained with another model than {}: its weights have the fingerprint {}, not {}",
         folder, base_.string(), now, then);
}

}  // namespace perigee
