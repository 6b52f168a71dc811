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
#include "ops/ops.h"

namespace perigee {
namespace {

struct Settings {
    std::vector<int64_t> tokens = {8192, 32768, 131072}, texts = {1, 16};
    std::vector<std::string> agreement = {"agree", "half", "differ"};
    int64_t heads = 32, kv_heads = 8, head_dim = 64;
    MobaOptions gate{.block_size = 512, .top_k = 3};
    int64_t layers = 16, full_layers = 0, hidden = 2048, intermediate = 8192, vocabulary = 128256;
    int repeats = 100;
    bool cpu = false, attention_only = false;

    int64_t group() const { return heads / kv_heads; }
};

struct Machine {
    explicit Machine(bool cpu)
        : device(cpu ? make_host_device() : make_cuda_device(0)),
          ops(cpu ? make_host_ops(*device) : make_cuda_ops(*device)) {}
    std::unique_ptr<Device> device;
    std::unique_ptr<Ops> ops;
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

/// All layers in turn, so that no layer finds its keys in the L2 cache.
void bench_attention(Settings const& s, Machine& machine, Mesh const& mesh, int64_t texts, int64_t tokens) {
    Texts text(*machine.ops, mesh, s, texts, tokens);
    Ops& ops = *machine.ops;
    Arena arena(*machine.device);
    TensorView const q = arena.allocate("q", ops.compute_dtype(), {texts, s.heads, s.head_dim});
    TensorView const o = arena.allocate("o", ops.compute_dtype(), q.shape);
    TensorView const chosen = arena.allocate("chosen", DType::i32, {texts, s.heads, s.gate.top_k - 1});
    TensorView const lengths = arena.allocate("lengths", DType::i32, {texts});
    std::vector<int32_t> const positions(static_cast<size_t>(texts), static_cast<int32_t>(tokens - 1));
    ops.upload(lengths, positions.data());
    ops.fill_normal({.x = q, .random = Philox(3, Purpose::mock_data)});
    auto const each_layer = [&](auto work) {
        return milliseconds(*machine.device, std::max(1, s.repeats / static_cast<int>(s.layers)),
                            [&] {
                                for (int64_t layer = 0; layer < s.layers; ++layer)
                                    work(text.cache.pages(layer, 0, texts));
                            }) /
               static_cast<double>(s.layers);
    };
    auto const attend = [&](CachePages const& pages, Attended const& attended) {
        ops.decode_attend(
            {.o_SHK = o, .q_SHK = q, .pages = pages, .lengths_S = lengths, .scale = 0.125, .attended = attended});
    };
    double const select_ms = each_layer([&](CachePages const& pages) {
        ops.decode_select(
            {.chosen_SHS = chosen, .q_SHK = q, .pages = pages, .lengths_S = lengths, .selection = s.gate});
    });
    double const means = 2.0 * static_cast<double>(texts * s.kv_heads * s.head_dim * (tokens / s.gate.block_size));
    print("select", tokens, texts, select_ms, means);
    for (std::string const& agreement : s.agreement) {
        auto const of_one = made_up_choices(s, (tokens - 1) / s.gate.block_size, agreement);
        std::vector<int32_t> of_all;
        for (int64_t i = 0; i < texts; ++i) of_all.insert(of_all.end(), of_one.begin(), of_one.end());
        ops.upload(chosen, of_all.data());
        double const ms = each_layer([&](CachePages const& pages) {
            attend(pages, BlockSparse{.budget = *budget_of(Selection(s.gate)), .chosen_THS = chosen});
        });
        print("attend, heads " + agreement, tokens, texts, ms,
              static_cast<double>(texts) * attention_bytes(s, tokens, of_one, false));
    }
    double const full_ms = each_layer([&](CachePages const& pages) { attend(pages, FullAttention{}); });
    print("attend, full", tokens, texts, full_ms, static_cast<double>(texts) * attention_bytes(s, tokens, {}, true));
}

/// Whole steps of a model with random weights, the logits' way to the host included.
void bench_steps(Settings const& s, Machine& machine, Mesh const& mesh, int64_t texts, int64_t tokens) {
    Texts text(*machine.ops, mesh, s, texts, tokens);
    ModelOptions const options = model_of(s);
    ParamLayout const layout(llama_params(options), 1, 0);
    Arena state(*machine.device), arena(*machine.device);
    TensorView const flat = state.allocate("weights", machine.ops->compute_dtype(), {layout.size()});
    machine.ops->fill_normal({.x = flat, .random = Philox(4, Purpose::mock_data), .stddev = 0.02});
    FlatWeights weights(layout, flat);
    Llama model(options, layout, mesh, *machine.ops);
    std::vector<Selection> layers(static_cast<size_t>(s.layers), Selection(s.gate));
    std::fill_n(layers.rbegin(), s.full_layers, Selection(FullAttention{}));
    std::vector<int32_t> const ids(static_cast<size_t>(texts), 1);
    double const ms = milliseconds(*machine.device, s.repeats, [&] {
        model.decode(weights, ids, layers, text.cache, arena);
        arena.settle();
    });
    print(fmt::format("step, {} full layers", s.full_layers), tokens, texts, ms, static_cast<double>(flat.bytes()));
}

void declare(CLI::App& app, Settings& s) {
    app.add_option("--tokens", s.tokens, "Tokens of each text");
    app.add_option("--texts", s.texts, "Texts at a time");
    app.add_option("--agreement", s.agreement, "Of a group's heads: agree, half, differ");
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
    app.add_flag("--cpu", s.cpu);
    app.add_flag("--attention-only", s.attention_only, "No whole steps");
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
        for (int64_t const tokens : settings.tokens)
            for (int64_t const texts : settings.texts) {
                bench_attention(settings, machine, mesh, texts, tokens);
                if (!settings.attention_only) bench_steps(settings, machine, mesh, texts, tokens);
            }
    } catch (std::exception const& e) {
        fmt::print(stderr, "{}\n", e.what());
        return 1;
    }
    return 0;
}
