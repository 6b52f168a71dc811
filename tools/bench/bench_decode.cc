// Decoding: milliseconds of a layer's operations and of a whole step, the bytes they must read, and the rate that is.
// Heads of a group agree on their blocks, agree by half, or differ: the blocks that a group reads follow from that.
//   bench_decode [--tokens 8192 131072] [--texts 1 16] [--heads 32 --kv-heads 8 --head-dim 64] [--block 512 --top-k 3]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>

#include "comm/host_comm.h"
#include "model/llama.h"
#include "ops/observed_ops.h"

namespace perigee {
namespace {

struct Settings {
    std::vector<int64_t> tokens = {8192, 32768, 131072}, texts = {1, 16};
    std::vector<std::string> agreement = {"agree", "half", "differ"};
    int64_t heads = 32, kv_heads = 8, head_dim = 64;
    MobaOptions gate{.block_size = 512, .top_k = 3};
    int64_t layers = 16, full_layers = 0, hidden = 2048, intermediate = 8192, vocabulary = 128256;
    int repeats = 100;
    std::vector<std::string> without = {"all"};
    bool cpu = false, attention_only = false, steps_only = false, table = false;

    int64_t group() const { return heads / kv_heads; }
};

struct Machine {
    explicit Machine(bool cpu)
        : device(cpu ? make_host_device() : make_cuda_device(0)),
          ops(cpu ? make_host_ops(*device) : make_cuda_ops(*device)) {}
    std::unique_ptr<Device> device;
    std::unique_ptr<Ops> ops;
    int64_t graphs = 0;  ///< graphs captured so far, each a part of a step
};

/// Median milliseconds of one call, over rounds of `repeats` calls.
template <class Work>
double milliseconds(Device& device, int repeats, Work work) {
    std::vector<double> rounds;
    for (int round = 0; round < 6; ++round) {  // the first warms up
        device.synchronize();
        auto const begin = std::chrono::steady_clock::now();
        for (int i = 0; i < repeats; ++i) work();
        device.synchronize();
        std::chrono::duration<double, std::milli> const took = std::chrono::steady_clock::now() - begin;
        if (round > 0) rounds.push_back(took.count() / repeats);
    }
    std::ranges::nth_element(rounds, rounds.begin() + 2);
    return rounds[2];
}

/// Time of work(layer), captured as one graph over all layers.
template <class Work>
double milliseconds_of_layer(Settings const& s, Machine& machine, Work work) {
    int64_t const key[] = {++machine.graphs};
    auto const all = [&] {
        for (int64_t layer = 0; layer < s.layers; ++layer) work(layer);
    };
    int const repeats = std::max(1, s.repeats / static_cast<int>(s.layers));
    return milliseconds(*machine.device, repeats, [&] { machine.ops->repeat(key, all); }) /
           static_cast<double>(s.layers);
}

ModelOptions model_of(Settings const& s) {
    ModelOptions model;
    model.vocab_size = s.vocabulary;
    model.hidden_size = s.hidden;
    model.intermediate_size = s.intermediate;
    model.num_hidden_layers = s.layers;
    model.num_attention_heads = s.heads;
    model.num_key_value_heads = s.kv_heads;
    model.head_dim = s.head_dim;
    model.max_position_embeddings = int64_t{1} << 21;
    return model;
}

/// A cache of texts with `tokens` random tokens each.
class Texts {
  public:
    Texts(Ops& ops, Mesh const& mesh, Settings const& s, int64_t texts, int64_t tokens)
        : cache(ops, model_of(s), mesh.shape(),
                {.tokens = tokens + 4096, .block_size = s.gate.block_size, .texts = texts}) {
        for (int64_t layer = 0; layer < s.layers; ++layer) {
            CachePages const pages = cache.pages(layer, 0, texts);
            uint64_t stream = static_cast<uint64_t>(3 * layer);
            for (TensorView const& x : {pages.k_NPGK, pages.v_NPGK, pages.means_NGK})
                ops.fill_normal({.x = x, .random = Philox(1, Purpose::mock_data, stream++)});
        }
        for (int64_t text = 0; text < texts; ++text) {
            if (!cache.make_room(text, tokens + 4096)) fail(Category::config, "no pages for {} tokens", tokens);
            cache.set_tokens(tokens, text);
        }
    }
    KvCache cache;
};

/// Choices of one text, [H, k - 1]: a group's heads take the same random blocks, the same but for the last half of
/// them, or each their own.
std::vector<int32_t> made_up_choices(Settings const& s, int64_t past_blocks, std::string const& agreement) {
    int64_t const slots = s.gate.top_k - 1, shared = agreement == "agree" ? slots : agreement == "half" ? slots / 2 : 0;
    std::vector<int32_t> chosen;
    Philox const random(2, Purpose::mock_data);
    uint64_t draw = 0;
    for (int64_t g = 0; g < s.kv_heads; ++g) {
        std::vector<int32_t> blocks(static_cast<size_t>(past_blocks));
        std::iota(blocks.begin(), blocks.end(), 0);
        for (size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[random.below(draw++, i)]);
        for (int64_t r = 0; r < s.group(); ++r) {
            std::set<int32_t> its;
            for (int64_t i = 0; i < std::min(slots, past_blocks); ++i) {
                int64_t const place = i < shared ? i : (i + r * (slots - shared)) % past_blocks;
                its.insert(blocks[static_cast<size_t>(place)]);
            }
            std::vector<int32_t> row(its.begin(), its.end());
            row.resize(static_cast<size_t>(slots), -1);
            chosen.insert(chosen.end(), row.begin(), row.end());
        }
    }
    return chosen;
}

/// Bytes of keys and values that one layer must read for one text.
double attention_bytes(Settings const& s, int64_t tokens, std::vector<int32_t> const& chosen, bool full) {
    double const row = 2.0 * static_cast<double>(s.head_dim), B = static_cast<double>(s.gate.block_size);
    if (full) return 2 * row * static_cast<double>(tokens * s.kv_heads);
    double bytes = 0;
    auto const per_group = std::ssize(chosen) / s.kv_heads;
    for (int64_t g = 0; g < s.kv_heads; ++g) {
        std::set<int32_t> blocks(chosen.begin() + g * per_group, chosen.begin() + (g + 1) * per_group);
        blocks.erase(-1);
        double const local = static_cast<double>((tokens - 1) % s.gate.block_size + 1);
        bytes += 2 * row * (static_cast<double>(blocks.size()) * B + local);
    }
    return bytes;
}

void print(std::string const& what, int64_t tokens, int64_t texts, double ms, double bytes) {
    fmt::print("{:<22} {:>8} tokens {:>3} texts {:>9.4f} ms {:>9.1f} MB {:>7.2f} TB/s\n", what, tokens, texts, ms,
               bytes / 1e6, bytes / ms / 1e9);
    std::fflush(stdout);
}

/// Runs select and attend of all layers in turn, so that no layer finds its keys in the L2 cache. Returns milliseconds
/// per layer.
class AttentionBench {
  public:
    AttentionBench(Settings const& s, Machine& machine, Mesh const& mesh, int64_t texts, int64_t tokens)
        : s_(s), machine_(machine), text_(*machine.ops, mesh, s, texts, tokens), arena_(*machine.device) {
        Ops& ops = *machine.ops;
        q_ = arena_.allocate("q", ops.compute_dtype(), {texts, s.heads, s.head_dim});
        o_ = arena_.allocate("o", ops.compute_dtype(), q_.shape);
        found_ = arena_.allocate("found", DType::i32, {texts, s.heads, s.gate.top_k - 1});
        chosen_ = arena_.allocate("chosen", DType::i32, found_.shape);
        lengths_ = arena_.allocate("lengths", DType::i32, {texts});
        std::vector<int32_t> const positions(static_cast<size_t>(texts), static_cast<int32_t>(tokens - 1));
        ops.upload(lengths_, positions.data());
        ops.fill_normal({.x = q_, .random = Philox(3, Purpose::mock_data)});
    }

    double select() {
        return each_layer([&](CachePages const& pages) { machine_.ops->decode_select(selection(pages)); });
    }
    /// Every text attends these blocks, [H, k - 1].
    double attend(std::vector<int32_t> const& of_one) { return attend(choose(of_one)); }
    double attend(Attended const& attended) {
        return each_layer([&](CachePages const& pages) { machine_.ops->decode_attend(attention(pages, attended)); });
    }
    /// Selection, and attention to these blocks whatever it finds.
    double select_and_attend(std::vector<int32_t> const& of_one) {
        Attended const attended = choose(of_one);
        return each_layer([&](CachePages const& pages) {
            machine_.ops->decode_sparse({.select = selection(pages), .attend = attention(pages, attended)});
        });
    }

  private:
    Attended choose(std::vector<int32_t> const& of_one) {
        std::vector<int32_t> of_all;
        for (int64_t i = 0; i < q_[0]; ++i) of_all.insert(of_all.end(), of_one.begin(), of_one.end());
        machine_.ops->upload(chosen_, of_all.data());
        return BlockSparse{.budget = *budget_of(Selection(s_.gate)), .chosen_THS = chosen_};
    }
    DecodeSelect selection(CachePages const& pages) const {
        return {.chosen_SHS = found_, .q_SHK = q_, .pages = pages, .lengths_S = lengths_, .selection = s_.gate};
    }
    DecodeAttend attention(CachePages const& pages, Attended const& attended) const {
        return {.o_SHK = o_, .q_SHK = q_, .pages = pages, .lengths_S = lengths_, .scale = 0.125, .attended = attended};
    }
    template <class Work>
    double each_layer(Work work) {
        return milliseconds_of_layer(s_, machine_, [&](int64_t layer) { work(text_.cache.pages(layer, 0, q_[0])); });
    }

    Settings const& s_;
    Machine& machine_;
    Texts text_;
    Arena arena_;
    TensorView q_, o_, found_, chosen_, lengths_;
};

/// Bytes of the block means of one text and layer.
double mean_bytes(Settings const& s, int64_t tokens) {
    return 2.0 * static_cast<double>(s.kv_heads * s.head_dim * ((tokens - 1) / s.gate.block_size));
}

void bench_attention(Settings const& s, Machine& machine, Mesh const& mesh, int64_t texts, int64_t tokens) {
    AttentionBench bench(s, machine, mesh, texts, tokens);
    auto const all = static_cast<double>(texts);
    print("select", tokens, texts, bench.select(), all * mean_bytes(s, tokens));
    for (std::string const& agreement : s.agreement) {
        auto const chosen = made_up_choices(s, (tokens - 1) / s.gate.block_size, agreement);
        print("attend, heads " + agreement, tokens, texts, bench.attend(chosen),
              all * attention_bytes(s, tokens, chosen, false));
    }
    print("attend, full", tokens, texts, bench.attend(FullAttention{}), all * attention_bytes(s, tokens, {}, true));
}

/// Bytes and milliseconds per token and layer of select and attend, against full attention by the same kernels. For
/// MHA, GQA and MQA.
void bench_table(Settings const& given, Machine& machine, Mesh const& mesh) {
    constexpr double kMostBytes = 56e9;  // cache size limit
    fmt::print("{:>6} {:>6} {:>8} {:>7} | {:>9} {:>9} {:>9} {:>5} | {:>9} {:>8} {:>8} {:>5}\n", "heads", "B/k",
               "tokens", "heads", "MB", "full MB", "gain", "", "ms", "full ms", "gain", "TB/s");
    for (int64_t const kv_heads : {given.heads, given.heads / 4, int64_t{1}})
        for (MobaOptions const& gate : {MobaOptions{.block_size = 512, .top_k = 3}, {.block_size = 128, .top_k = 8}})
            for (int64_t const tokens : given.tokens) {
                Settings s = given;
                s.kv_heads = kv_heads, s.gate = gate;
                double const full = attention_bytes(s, tokens, {}, true);
                s.layers = std::clamp<int64_t>(static_cast<int64_t>(kMostBytes / full), 1, 8);
                AttentionBench bench(s, machine, mesh, 1, tokens);
                double const full_ms = bench.attend(FullAttention{});
                for (std::string const& agreement : s.agreement) {
                    if (kv_heads == s.heads && agreement != s.agreement.front()) continue;  // groups of one
                    auto const chosen = made_up_choices(s, (tokens - 1) / gate.block_size, agreement);
                    double const bytes = attention_bytes(s, tokens, chosen, false) + mean_bytes(s, tokens);
                    double const ms = bench.select_and_attend(chosen);
                    fmt::print(
                        "{:>6} {:>6} {:>8} {:>7} | {:>9.2f} {:>9.2f} {:>9.1f} {:>5} | {:>9.4f} {:>8.4f} {:>8.1f} "
                        "{:>5.2f}\n",
                        fmt::format("{}/{}", s.heads, kv_heads), fmt::format("{}/{}", gate.block_size, gate.top_k),
                        tokens, agreement, bytes / 1e6, full / 1e6, full / bytes, "", ms, full_ms, full_ms / ms,
                        full / full_ms / 1e9);
                    std::fflush(stdout);
                }
            }
}

/// The products of a layer and of the classifier in a decoding step.
void bench_products(Settings const& s, Machine& machine, int64_t texts) {
    Ops& ops = *machine.ops;
    struct Product {
        char const* name;
        int64_t n, k;
        bool norm = false, swiglu = false;
    };
    for (Product const& product :
         {Product{"norm, product qkv", (s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden, true},
          {"product o, sum", s.hidden, s.heads * s.head_dim},
          {"norm, up, SwiGLU", 2 * s.intermediate, s.hidden, true, true},
          {"product down, sum", s.hidden, s.intermediate},
          {"norm, head", s.vocabulary, s.hidden, true}}) {
        Arena arena(*machine.device);
        auto const random = [&](char const* name, Shape const& shape) {
            TensorView const view = arena.allocate(name, ops.compute_dtype(), shape);
            ops.fill_normal({.x = view, .random = Philox(5, Purpose::mock_data), .stddev = 0.02});
            return view;
        };
        Settings of = s;
        if (product.n == s.vocabulary) of.layers = 2;
        TensorView const y = random("y", {texts, product.swiglu ? product.n / 2 : product.n});
        TensorView const x = random("x", {texts, product.k}), norm = random("norm", {product.k});
        TensorView const w = random("w", {of.layers * product.n, product.k});
        double const ms = milliseconds_of_layer(of, machine, [&](int64_t layer) {
            TensorView const of_layer = w.rows(layer * product.n, (layer + 1) * product.n);
            if (product.norm)
                ops.normed_product(
                    {.y_SN = y, .x_SD = x, .norm_D = norm, .w_ND = of_layer, .eps = 1e-5, .swiglu = product.swiglu});
            else
                ops.matmul({.c = y, .a = x, .b = of_layer, .transpose_b = true, .accumulate = true});
        });
        print(product.name, 1, texts, ms, 2.0 * static_cast<double>(product.n * product.k));
    }
}

/// Greedy and nucleus sampling. Few tokens are likely, as with a trained model.
void bench_sampling(Settings const& s, Machine& machine, int64_t texts) {
    Ops& ops = *machine.ops;
    Arena arena(*machine.device);
    TensorView const logits = arena.allocate("logits", ops.compute_dtype(), {texts, s.vocabulary});
    TensorView const ids = arena.allocate("ids", DType::i32, {texts});
    auto const rule_bytes = static_cast<int64_t>(sizeof(DrawRule));
    TensorView const rules = arena.allocate("rules", DType::u8, {texts, rule_bytes});
    ops.fill_normal({.x = logits, .random = Philox(6, Purpose::mock_data), .stddev = 3});
    for (double const temperature : {0.0, 0.8}) {
        std::vector<DrawRule> const all(
            static_cast<size_t>(texts),
            {.temperature = temperature, .top_p = 0.95, .random = Philox(7, Purpose::generate)});
        ops.upload(rules, all.data());
        double const ms = milliseconds_of_layer(s, machine, [&](int64_t) {
            ops.sample_tokens({.ids_S = ids, .logits_SV = logits, .rules_SB = rules, .allowed = s.vocabulary});
        });
        std::vector<int32_t> drawn(static_cast<size_t>(texts));
        ops.download(drawn.data(), ids);
        print(temperature == 0 ? "sample, greedy" : "sample, nucleus", drawn[0], texts, ms,
              static_cast<double>(logits.bytes()));
    }
}

/// Runs a step with given block selections, without the operations named `without`.
class StepOps final : public ObservedOps {
  public:
    StepOps(Ops& inner, TensorView chosen, std::string without)
        : ObservedOps(inner), chosen_(chosen), without_(std::move(without)) {}

    void run(Operation const& operation) override {
        if (name_of(operation) == without_) return;
        auto const* const sparse = std::get_if<DecodeSparse>(&operation);
        if (sparse == nullptr) return ObservedOps::run(operation);
        DecodeSparse injected = *sparse;
        std::get<BlockSparse>(injected.attend.attended).chosen_THS = chosen_;
        ObservedOps::run(injected);
    }

  private:
    TensorView chosen_;
    std::string without_;
};

/// Whole steps of a model with random weights, with the first kind of agreement. Each repetition leaves one operation
/// out, or copies all logits to the host.
void bench_steps(Settings const& s, Machine& machine, Mesh const& mesh, int64_t texts, int64_t tokens) {
    Texts text(*machine.ops, mesh, s, texts, tokens);
    ModelOptions const options = model_of(s);
    ParamLayout const layout(llama_params(options), 1, 0);
    Arena state(*machine.device);
    TensorView const flat = state.allocate("weights", machine.ops->compute_dtype(), {layout.size()});
    machine.ops->fill_normal({.x = flat, .random = Philox(4, Purpose::mock_data), .stddev = 0.02});
    FlatWeights weights(layout, flat);
    std::vector<Selection> layers(static_cast<size_t>(s.layers), Selection(s.gate));
    std::fill_n(layers.rbegin(), s.full_layers, Selection(FullAttention{}));
    auto const of_one = made_up_choices(s, (tokens - 1) / s.gate.block_size, s.agreement.front());
    TensorView const chosen = state.allocate("chosen", DType::i32, {texts, s.heads, s.gate.top_k - 1});
    for (int64_t i = 0; i < texts; ++i) machine.ops->upload(chosen.rows(i, i + 1), of_one.data());
    double const bytes =
        static_cast<double>(flat.bytes() - 2 * s.vocabulary * s.hidden) +
        static_cast<double>(texts) * (static_cast<double>(s.layers - s.full_layers) *
                                          (attention_bytes(s, tokens, of_one, false) + mean_bytes(s, tokens)) +
                                      static_cast<double>(s.full_layers) * attention_bytes(s, tokens, {}, true));
    std::vector<DrawRule> const rules(static_cast<size_t>(texts), {.temperature = 0});
    for (std::string const& without : s.without) {
        StepOps ops(*machine.ops, chosen, without);
        Arena arena(*machine.device);
        Llama model(options, layout, mesh, ops);
        for (int64_t i = 0; i < texts; ++i) text.cache.set_tokens(tokens - 2, i);
        std::vector<int32_t> ids(rules.size(), 1);
        double const ms = milliseconds(*machine.device, s.repeats, [&] {
            if (without == "draws") {
                model.decode(weights, ids, layers, text.cache, arena);
            } else {
                auto drawn =
                    model.decode(weights, ids, layers, text.cache, arena,
                                 {.rules = rules, .allowed = s.vocabulary, .ahead = !machine.device->is_host()});
                if (without != "sample_tokens") ids = std::move(drawn);
            }
            arena.settle();
        });
        machine.ops->forget_repeated();
        print(without == "all" ? fmt::format("step, {} full layers", s.full_layers) : "- " + without, tokens, texts, ms,
              bytes);
    }
}

void declare(CLI::App& app, Settings& s) {
    app.add_option("--tokens", s.tokens, "Tokens of each text");
    app.add_option("--texts", s.texts, "Texts at a time");
    app.add_option("--agreement", s.agreement,
                   "How heads of a group agree on blocks: agree, half, differ; whole steps use the first");
    app.add_option("--heads", s.heads);
    app.add_option("--kv-heads", s.kv_heads);
    app.add_option("--head-dim", s.head_dim);
    app.add_option("--block", s.gate.block_size);
    app.add_option("--top-k", s.gate.top_k);
    app.add_option("--layers", s.layers);
    app.add_option("--full-layers", s.full_layers, "The last ones, in whole steps");
    app.add_option("--hidden", s.hidden);
    app.add_option("--intermediate", s.intermediate);
    app.add_option("--vocabulary", s.vocabulary);
    app.add_option("--repeats", s.repeats);
    app.add_option("--without", s.without,
                   "Operation to leave out of whole steps; all: leave none out; draws: copy logits to the host");
    app.add_flag("--cpu", s.cpu);
    app.add_flag("--attention-only", s.attention_only, "No whole steps");
    app.add_flag("--table", s.table, "Bytes and milliseconds per token and layer: MHA, GQA, MQA");
    app.add_flag("--steps-only", s.steps_only, "Only whole steps");
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    using namespace perigee;
    Settings settings;
    CLI::App app("Decoding, operation by operation and whole");
    declare(app, settings);
    CLI11_PARSE(app, argc, argv);
    try {
        Machine machine(settings.cpu);
        auto const world = make_single_host_comm();
        Mesh const mesh(ParallelOptions{}, *world);
        if (settings.table) return bench_table(settings, machine, mesh), 0;
        if (!settings.steps_only && !settings.attention_only)
            for (int64_t const texts : settings.texts) {
                bench_products(settings, machine, texts);
                bench_sampling(settings, machine, texts);
            }
        for (int64_t const tokens : settings.tokens)
            for (int64_t const texts : settings.texts) {
                if (!settings.steps_only) bench_attention(settings, machine, mesh, texts, tokens);
                if (!settings.attention_only) bench_steps(settings, machine, mesh, texts, tokens);
            }
    } catch (std::exception const& e) {
        fmt::print(stderr, "{}\n", e.what());
        return 1;
    }
    return 0;
}
