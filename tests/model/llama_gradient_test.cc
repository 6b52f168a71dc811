// The gradient of every parameter against finite differences of the loss, for every kind of model.
#include "model/tiny_model.h"
#include "support/finite_difference.h"

namespace perigee::testing {

namespace {

struct Variant {
    char const* name;
    ModelOptions options;
    std::vector<AttentionKind> kinds;
    MobaOptions moba = tiny_moba();
};
void PrintTo(Variant const& v, std::ostream* out) { *out << v.name; }

Variant variant(char const* name, std::vector<AttentionKind> kinds, void (*change)(ModelOptions&) = nullptr) {
    Variant v{.name = name, .options = tiny_options(), .kinds = std::move(kinds)};
    if (change != nullptr) change(v.options);
    return v;
}

std::vector<Variant> variants() {
    auto const full = all(AttentionKind::full);
    std::vector<Variant> v{
        variant("full", full),
        variant("moba", mixed()),
        variant("tied", full, [](ModelOptions& o) { o.tie_word_embeddings = true; }),
        variant("qkv_bias", full, [](ModelOptions& o) { o.qkv_bias = true; }),
        variant("qk_norm", mixed(), [](ModelOptions& o) { o.qk_norm = true; }),
        variant("everything", mixed(), [](ModelOptions& o) { o.qk_norm = o.qkv_bias = o.tie_word_embeddings = true; }),
        variant("linear", full, [](ModelOptions& o) { o.rope_scaling = {.type = RopeType::linear, .factor = 4}; }),
        variant("llama3", full,
                [](ModelOptions& o) {
                    o.rope_scaling = {.type = RopeType::llama3, .factor = 4, .original_max_position_embeddings = 16};
                }),
        variant("yarn", full,
                [](ModelOptions& o) {
                    o.rope_scaling = {.type = RopeType::yarn, .factor = 4, .original_max_position_embeddings = 16};
                }),
        variant("lora", mixed(),
                [](ModelOptions& o) {
                    o.lora = {.rank = 2, .alpha = 3};
                    o.qkv_bias = o.qk_norm = true;
                }),
        variant("lora_of_some", full,
                [](ModelOptions& o) {
                    o.lora = {.rank = 3, .alpha = 3, .targets = {"k_proj", "v_proj", "up_proj", "o_proj"}};
                }),
        variant("block_local", all(AttentionKind::moba)),
        variant("per_group", mixed()),
    };
    v[v.size() - 2].moba.top_k = 1;
    v[v.size() - 1].moba.selection = MobaSelection::per_group;
    v[v.size() - 1].moba.force_previous = true;
    v.push_back(variant("key_conv", mixed(), [](ModelOptions& o) { o.key_conv = 3; }));
    v.back().moba.force_first = true;
    v.push_back(variant("key_conv_with_everything", mixed(), [](ModelOptions& o) {
        o.key_conv = 5;
        o.qk_norm = o.qkv_bias = o.tie_word_embeddings = true;
    }));
    return v;
}

class LlamaGradient : public ::testing::TestWithParam<Variant> {};

// Steps are small, so that no query changes its choice of blocks: the loss jumps there, and differences would show it.
TEST_P(LlamaGradient, OfEveryParameterMatchesDifferences) {
    Variant const& v = GetParam();
    TinyModel<double> model(v.options, v.moba, 5);
    Batch const batch = random_batch({17, 1, 20}, v.options.vocab_size, 6);
    model.gradient(batch, v.kinds, 0.5);
    for (ParamLayout::Entry const& entry : model.layout.entries()) {
        auto const first = model.weights.begin() + entry.offset;
        std::vector<double> x(first, first + entry.local.size());
        auto const slope = model.grads.begin() + entry.offset;
        auto const f = [&] {
            std::ranges::copy(x, first);
            return 0.5 * model.loss(batch, v.kinds);
        };
        double const error = gradient_error(f, x, std::vector<double>(slope, slope + entry.local.size()), 9, 2e-6, 3);
        EXPECT_LT(error, 2e-6) << entry.spec.name;
        std::ranges::copy(x, first);
    }
}

INSTANTIATE_TEST_SUITE_P(Kinds, LlamaGradient, ::testing::ValuesIn(variants()),
                         [](auto const& info) { return std::string(info.param.name); });

}  // namespace

}  // namespace perigee::testing
