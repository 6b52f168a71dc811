// Which products and gradients adapters and frozen parameters need.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/tiny_model.h"
#include "support/finite_difference.h"

namespace perigee::testing {

namespace {

ModelOptions with_lora(double dropout = 0) {
    ModelOptions options = tiny_options();
    options.lora = {.rank = 2, .alpha = 8, .dropout = dropout};
    return options;
}

std::vector<std::string> names_of(std::vector<ParamSpec> const& specs) {
    std::vector<std::string> names;
    for (ParamSpec const& spec : specs) names.push_back(spec.name);
    return names;
}

ParamSpec const& find(std::vector<ParamSpec> const& specs, std::string const& name) {
    auto const found = std::ranges::find(specs, name, &ParamSpec::name);
    if (found == specs.end()) throw std::out_of_range(name);
    return *found;
}

/// A model whose frozen weights have a layout of their own.
struct FrozenModel final : WeightUnits {
    FrozenModel(ModelOptions const& options, std::vector<ParamSpec> specs, Recompute recompute,
                PrecisionOptions const& precision)
        : parts(split(std::move(specs))),
          trained(parts.trained, 1, 0, 1, unit_count(options)),
          frozen_layout(parts.frozen, 1, 0, 1, unit_count(options)),
          model(options, {trained, &frozen_layout}, mesh, counted,
                {.recompute = std::vector<Recompute>(static_cast<size_t>(options.num_hidden_layers), recompute)},
                precision) {}

    /// Copies every weight from a model with a single layout.
    void take(ParamLayout const& from, std::vector<float> const& values) {
        for (auto const& [layout, to] : {std::pair{&trained, &weights}, {&frozen_layout, &frozen_weights}}) {
            to->resize(static_cast<size_t>(layout->size()));
            for (ParamLayout::Entry const& e : layout->entries())
                std::copy_n(values.begin() + from.entry(e.spec.name).offset, e.local.size(), to->begin() + e.offset);
        }
    }
    TensorView need(int unit, int) override {
        FlatRange const here = trained.unit(unit), there = frozen_layout.unit(unit);
        of_unit = view(frozen_weights).rows(there.begin, there.end);
        return view(weights).rows(here.begin, here.end);
    }
    TensorView frozen() override { return of_unit; }
    void release(int) override {}
    bool settled() const override { return true; }
    static TensorView view(std::vector<float>& flat) { return {flat.data(), {std::ssize(flat)}}; }

    double gradient(Batch const& batch, std::vector<Selection> const& selections, std::vector<float>& grads) {
        grads.assign(weights.size(), std::nanf(""));
        FlatGradients sums(trained, view(grads), /*fresh=*/true);
        double const loss = model.loss_and_gradient(*this, {.grads = sums}, batch, selections, arena);
        arena.settle();
        return loss;
    }

    std::unique_ptr<Device> device = make_host_device();
    std::unique_ptr<HostComm> world = make_single_host_comm();
    Mesh mesh{ParallelOptions{}, *world};
    ParamSplit parts;
    ParamLayout trained, frozen_layout;
    std::unique_ptr<Ops> ops = make_host_ops(*device, 1);
    CountedOps counted{*ops};
    std::vector<float> weights, frozen_weights;
    TensorView of_unit;
    Llama model;
    Arena arena{*device};
};

/// Gradients of the trained parameters are bitwise those of the model with nothing frozen.
void expect_part_of_all(ModelOptions const& options, std::vector<ParamSpec> const& specs, int64_t products,
                        Recompute recompute = Recompute::none, PrecisionOptions const& precision = {}) {
    TinyModel<float> all(options, tiny_moba(), 5, {.recompute = std::vector<Recompute>(3, recompute)}, precision);
    FrozenModel part(options, specs, recompute, precision);
    part.take(all.layout, all.weights);
    bool const fp8 = precision.linear != LinearPrecision::bf16;
    Batch const batch = random_batch(fp8 ? std::vector<int64_t>{100, 1, 23, 132} : std::vector<int64_t>{17, 1, 20},
                                     options.vocab_size, 6);
    double const loss = all.gradient(batch, mixed(), 1, /*fresh=*/true);
    std::vector<float> grads;
    EXPECT_EQ(part.gradient(batch, selections(mixed(), tiny_moba()), grads), loss);
    for (ParamLayout::Entry const& e : part.trained.entries()) {
        auto const expected = all.grads.begin() + all.layout.entry(e.spec.name).offset;
        auto const got = grads.begin() + e.offset;
        EXPECT_TRUE(std::equal(got, got + e.local.size(), expected)) << e.spec.name;
    }
    char const* const product = fp8 ? "matmul8" : "matmul";
    EXPECT_EQ(all.calls(product) - part.counted.calls.at(product), products);
}

TEST(Adapters, AreNamedCutAndStartedAsPeftHasThem) {
    ModelOptions options = with_lora();
    options.lora.targets = {"v_proj", "q_proj", "down_proj"};
    auto const specs = llama_params(options);
    auto const parts = split(specs);
    EXPECT_EQ(names_of(parts.frozen), names_of(base_params(options)));
    ASSERT_EQ(parts.trained.size(), 18u);
    EXPECT_EQ(parts.trained[0].name, "model.layers.0.self_attn.q_proj.lora_A.weight");
    EXPECT_EQ(parts.trained[1].name, "model.layers.0.self_attn.v_proj.lora_A.weight") << "A's of a product: neighbours";
    ParamSpec const &q_a = find(specs, "model.layers.1.self_attn.q_proj.lora_A.weight"),
                    &q_b = find(specs, "model.layers.1.self_attn.q_proj.lora_B.weight"),
                    &down_a = find(specs, "model.layers.1.mlp.down_proj.lora_A.weight"),
                    &down_b = find(specs, "model.layers.1.mlp.down_proj.lora_B.weight");
    EXPECT_EQ(q_a.shape, (Shape{2, 12}));
    EXPECT_EQ(q_b.shape, (Shape{24, 2}));
    EXPECT_EQ(down_a.shape, (Shape{2, 10}));
    EXPECT_EQ(down_b.shape, (Shape{12, 2}));
    EXPECT_TRUE(q_a.cut == Cut::whole && q_b.cut == Cut::rows);
    EXPECT_TRUE(down_a.cut == Cut::columns && down_b.cut == Cut::whole);
    EXPECT_TRUE(q_a.init == Init::normal && q_b.init == Init::zeros);
    EXPECT_DOUBLE_EQ(down_a.stddev, 1 / std::sqrt(30.0)) << "of a uniform number within 1 / sqrt(in)";
    EXPECT_EQ(q_a.unit, block_unit(1));
}

TEST(Adapters, LeaveNoProductForFrozenMatrices) {
    // The products of each of 3 layers (qkv, o, gate_up, down) and of the classifier.
    for (Recompute const level : {Recompute::none, Recompute::mlp, Recompute::block})
        for (int64_t const key_conv : {0, 3}) {
            ModelOptions options = with_lora();
            options.key_conv = key_conv;
            expect_part_of_all(options, llama_params(options), 3 * 4 + 1, level);
        }
}

TEST(Adapters, OfZerosChangeNothing) {
    ModelOptions const options = with_lora();
    TinyModel<float> adapted(options, tiny_moba(), 5), plain(tiny_options(), tiny_moba(), 5);
    for (ParamLayout::Entry const& e : adapted.layout.entries()) {
        auto const to = adapted.weights.begin() + e.offset;
        if (e.spec.init == Init::zeros) std::fill_n(to, e.local.size(), 0.0f);
        if (!is_adapter(e.spec.name))
            std::copy_n(plain.weights.begin() + plain.layout.entry(e.spec.name).offset, e.local.size(), to);
    }
    Batch const batch = random_batch({17, 20}, options.vocab_size, 6);
    EXPECT_EQ(adapted.loss(batch, mixed()), plain.loss(batch, mixed()));
}

void expect_what_their_product_adds(ModelOptions const& options) {
    ModelOptions without = options;
    without.lora = {};
    TinyModel<double> adapted(options, tiny_moba(), 5), merged(without, tiny_moba(), 5);
    for (ParamLayout::Entry const& e : merged.layout.entries()) {
        auto const to = merged.weights.begin() + e.offset;
        std::copy_n(adapted.weights.begin() + adapted.layout.entry(e.spec.name).offset, e.local.size(), to);
        std::string const layer = e.spec.name.substr(0, e.spec.name.rfind('.'));
        if (!adapted.layout.has(layer + ".lora_A.weight")) continue;
        double const* const a = adapted.weights.data() + adapted.layout.entry(layer + ".lora_A.weight").offset;
        double const* const b = adapted.weights.data() + adapted.layout.entry(layer + ".lora_B.weight").offset;
        for (int64_t out = 0; out < e.local[0]; ++out)
            for (int64_t in = 0; in < e.local[1]; ++in)
                for (int64_t r = 0; r < 2; ++r)
                    to[out * e.local[1] + in] += options.lora.alpha / 2 * b[out * 2 + r] * a[r * e.local[1] + in];
    }
    Batch const batch = random_batch({17, 20}, options.vocab_size, 6);
    EXPECT_NEAR(adapted.loss(batch, mixed()) / merged.loss(batch, mixed()), 1, 1e-12);
}

TEST(Adapters, AreWhatTheirProductAddsToTheWeight) { expect_what_their_product_adds(with_lora()); }

TEST(Adapters, ComeBeforeTheConvolutionOfKeys) {
    ModelOptions options = with_lora();
    options.key_conv = 3;
    expect_what_their_product_adds(options);
}

TEST(Adapters, HaveTheGradientOfTheirLossUnderDropout) {
    ModelOptions const options = with_lora(/*dropout=*/0.4);
    TinyModel<double> model(options, tiny_moba(), 5);
    Batch const batch = random_batch({17, 20}, options.vocab_size, 6);
    auto const full = all(AttentionKind::full);
    double const dropped = model.gradient(batch, full, 1, /*fresh=*/true);
    EXPECT_EQ(model.gradient(batch, full, 1, true), dropped) << "the same step has the same numbers";
    EXPECT_NE(model.loss(batch, full), dropped);
    std::vector<double> const grads = model.grads;
    for (char const* name :
         {"model.layers.0.self_attn.v_proj.lora_A.weight", "model.layers.1.mlp.up_proj.lora_B.weight",
          "model.layers.2.mlp.down_proj.lora_A.weight", "model.embed_tokens.weight"}) {
        ParamLayout::Entry const& e = model.layout.entry(name);
        auto const first = model.weights.begin() + e.offset;
        std::vector<double> x(first, first + e.local.size());
        auto const slope = grads.begin() + e.offset;
        auto const f = [&] {
            std::ranges::copy(x, first);
            return model.gradient(batch, full, 1, true);
        };
        EXPECT_LT(gradient_error(f, x, std::vector<double>(slope, slope + e.local.size()), 9, 2e-6, 3), 1e-6) << name;
        std::ranges::copy(x, first);
    }
}

TEST(Freeze, TakesPatterns) {
    auto specs = llama_params(tiny_options());
    freeze(specs, std::vector<std::string>{"model.layers.[01].*", "*norm.weight"});
    EXPECT_TRUE(find(specs, "model.layers.1.mlp.up_proj.weight").frozen);
    EXPECT_FALSE(find(specs, "model.layers.2.mlp.up_proj.weight").frozen);
    EXPECT_TRUE(find(specs, "model.norm.weight").frozen);
    EXPECT_TRUE(find(specs, "model.layers.2.input_layernorm.weight").frozen);
    EXPECT_FALSE(find(specs, "lm_head.weight").frozen);
}

TEST(Freeze, LeavesNoProductForWhatIsFrozenNorForLayersBelow) {
    struct Case {
        std::vector<std::string> patterns;
        int64_t products;
    };
    int64_t const backward = 8;  // per layer: two for each of four products
    for (auto const& [patterns, products] : {Case{{"*norm.weight"}, 0},
                                             {{"model.layers.1.*"}, 4},
                                             {{"*.mlp.down_proj.weight", "lm_head.weight"}, 4},
                                             {{"model.embed_tokens.weight"}, 0},
                                             {{"model.embed_tokens.weight", "model.layers.[01].*"}, 2 * backward},
                                             {{"model.embed_tokens.weight", "model.layers.*"}, 3 * backward}}) {
        SCOPED_TRACE(patterns.front());
        for (bool const tied : {false, true}) {
            ModelOptions options = tiny_options();
            options.tie_word_embeddings = tied;
            options.qk_norm = options.qkv_bias = true;
            if (tied && patterns.back() == "lm_head.weight") continue;
            auto specs = llama_params(options);
            freeze(specs, patterns);
            bool const classifier = tied && patterns.front() == "model.embed_tokens.weight";
            expect_part_of_all(options, specs, products + (classifier ? 1 : 0));
        }
    }
}

TEST(Freeze, TakesConvolutionsOfKeys) {
    ModelOptions options = tiny_options();
    options.key_conv = 5;
    for (auto const& [patterns, products] :
         {std::pair{std::vector<std::string>{"*.k_conv.weight"}, 0}, {{"*_proj.weight", "*norm.weight"}, 3 * 4}}) {
        auto specs = llama_params(options);
        freeze(specs, patterns);
        expect_part_of_all(options, specs, products);
    }
}

TEST(Freeze, LeavesNoProductOfFp8) {
    ModelOptions options = tiny_options();  // every extent of its products is a multiple of 128
    options.hidden_size = 128;
    options.intermediate_size = 256;
    options.head_dim = 32;
    for (GradientPrecision const wgrad : {GradientPrecision::fp8, GradientPrecision::bf16}) {
        bool const fp8 = wgrad == GradientPrecision::fp8;
        auto specs = llama_params(options);
        freeze(specs, std::vector<std::string>{"model.embed_tokens.weight", "model.layers.0.*", "*.mlp.*"});
        expect_part_of_all(options, specs, 4 + (fp8 ? 4 + 2 * 2 : 0), Recompute::none,
                           {.linear = LinearPrecision::fp8_block, .wgrad = wgrad});
    }
}

TEST(Freeze, RefusesWhatItCannotDo) {
    auto const refused = [](std::vector<std::string> const& patterns) -> std::string {
        auto specs = llama_params(tiny_options());
        try {
            freeze(specs, patterns);
        } catch (Error const& e) {
            return e.what();
        }
        return "";
    };
    EXPECT_EQ(refused({"model.layer.*"}),
              "train.freeze: no parameter is named \"model.layer.*\", as \"model.embed_tokens.weight\" is");
    EXPECT_EQ(refused({"*.k_proj.weight"}),
              "train.freeze: `model.layers.0.self_attn.q_proj.weight` and `model.layers.0.self_attn.k_proj.weight` are "
              "one matrix: freeze both or none");
    EXPECT_EQ(refused({"*"}), "train.freeze leaves nothing to train");
    EXPECT_EQ(refused({"*.mlp.*"}), "");
}

}  // namespace

}  // namespace perigee::testing
