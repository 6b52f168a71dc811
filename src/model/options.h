// What a Llama-family model is: Hugging Face's names and meanings for the shape, and which layers attend through MoBA.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/schema.h"
#include "kernels/block_selection/selection.h"

namespace perigee {

enum class RopeType { standard, linear, llama3, yarn };

struct RopeScaling {
    RopeType type = RopeType::standard;
    double factor = 1.0;
    int64_t original_max_position_embeddings = 0;  ///< llama3, yarn; 0 takes max_position_embeddings
    double low_freq_factor = 1.0;                  ///< llama3
    double high_freq_factor = 4.0;                 ///< llama3
    double beta_fast = 32.0;                       ///< yarn
    double beta_slow = 1.0;                        ///< yarn
    double attention_factor = 0.0;                 ///< yarn; 0 takes 0.1 ln(factor) + 1
};
void describe(Schema& schema, RopeScaling& options);

/// The same frequencies in one way of writing: what is left open is filled in, what `rope.type` does not use is as by
/// default.
RopeScaling normalised(RopeScaling const& rope, int64_t max_position_embeddings);

/// Low-rank adapters on the blocks' linear layers (LoRA; Hu et al., arXiv 2106.09685):
/// y = W x + alpha / rank B A dropout(x). Only A [rank, in] and B [out, rank] are trained.
struct LoraOptions {
    int64_t rank = 0;  ///< 0: none
    double alpha = 16;
    double dropout = 0;
    std::vector<std::string> targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
    std::string init_from = {};  ///< PEFT folder with the adapters that a new run starts from
    double scale() const { return alpha / static_cast<double>(rank); }
    bool has(std::string_view target) const;
};
void describe(Schema& schema, LoraOptions& options);

struct ModelOptions {
    int64_t vocab_size = 0;  ///< 0: the tokenizer's size, rounded up to a multiple of 64
    int64_t hidden_size = 256;
    int64_t intermediate_size = 768;
    int64_t num_hidden_layers = 4;
    int64_t num_attention_heads = 4;
    int64_t num_key_value_heads = 0;  ///< 0: as many as num_attention_heads
    int64_t head_dim = 0;             ///< 0: hidden_size / num_attention_heads
    int64_t max_position_embeddings = 8192;
    double rope_theta = 10000.0;
    RopeScaling rope_scaling = {};
    double rms_norm_eps = 1e-5;
    double initializer_range = 0.02;
    bool tie_word_embeddings = false;
    bool qkv_bias = false;       ///< Qwen2
    bool qk_norm = false;        ///< Qwen3
    int64_t key_conv = 0;        ///< attention.key_conv: width of the key convolution; 0: none
    std::string init_from = {};  ///< a folder whose weights a new run starts from; empty: random ones
    LoraOptions lora = {};       ///< the section `lora`

    int64_t kv_heads() const { return num_key_value_heads > 0 ? num_key_value_heads : num_attention_heads; }
    int64_t head_size() const { return head_dim > 0 ? head_dim : hidden_size / num_attention_heads; }
};
void describe(Schema& schema, ModelOptions& options);
/// Describes attention.key_conv, which belongs to the model because it has parameters.
void describe_key_conv(Schema& attention, ModelOptions& options);
/// Sentences about fields that contradict each other; empty when all is well. Keys are given as in the YAML.
std::vector<std::string> problems(ModelOptions const& options);

/// Elements of the matrices of a layer: what its linear FLOPs are counted by.
int64_t weights_per_layer(ModelOptions const& options);

enum class AttentionKind { full, moba };

/// What the backward of a block computes again rather than keeping it from the forward. Each saves more memory than the
/// one before; gradients are the same bits.
enum class Recompute {
    none,
    elementwise,  ///< outputs of norms and of SwiGLU: no product is repeated
    mlp,          ///< besides, the products with gate and up
    attention,    ///< everything but the block's input and the attention's results: attention itself is not run again
    block         ///< everything but the stream at the block's entry
};
/// Layers whose level the memory decides.
inline constexpr char const* kRecomputeAuto = "auto";

/// The level of every layer: one name for all, or a list such as "block*28, attention*4", whose last entry may go
/// without a number and then stands for the rest. Nothing where the memory is still to decide. Throws
/// Category::config, saying what was expected and found.
std::vector<Recompute> parse_recompute(std::string const& text, int64_t layers);
/// The shortest such text.
std::string to_string(std::span<Recompute const> levels);

/// Layers that stay full under MoBA: the last `last` ones, and those listed.
struct FullLayers {
    int64_t last = 0;
    std::vector<int64_t> layers = {};
};
void describe(Schema& schema, FullLayers& options);

/// From `step` on, the layers that are not in full_layers use this kind. Parameters are the same either way.
struct AttentionSwitch {
    int64_t step = 0;
    AttentionKind kind = AttentionKind::full;
};
void describe(Schema& schema, AttentionSwitch& options);

void describe(Schema& schema, MobaOptions& options);

struct AttentionOptions {
    AttentionKind kind = AttentionKind::moba;
    std::string selection = MobaOptions::kName;  ///< the kName of a rule in Selection
    MobaOptions moba = {};                       ///< every rule reads block_size and top_k, the gate all
    FullLayers full_layers = {};
    std::vector<AttentionSwitch> schedule = {};
};
void describe(Schema& schema, AttentionOptions& options);
std::vector<std::string> problems(AttentionOptions const& options, ModelOptions const& model);

/// As at a step (0-based): the kind is that of the latest switch at or before it, and there is no schedule.
AttentionOptions attention_at(AttentionOptions options, int64_t step);

/// What each layer attends at a step (0-based): by the latest switch at or before it, over the default. `seed` is for
/// rules that draw random numbers.
std::vector<Selection> layer_selections(AttentionOptions const& options, int64_t layers, int64_t step, uint64_t seed);

/// The first step from `step` on that is under moba; nothing where none is.
std::optional<int64_t> next_moba_step(AttentionOptions const& options, int64_t step);

/// What to say of a step under moba that leaves nothing out, as documents are too short or every layer is full; nothing
/// of one that acts. The pairs are those of ForwardFlops.
std::optional<std::string> full_attention_warning(AttentionOptions const& options, double sparse_pairs,
                                                  double causal_pairs);

}  // namespace perigee
