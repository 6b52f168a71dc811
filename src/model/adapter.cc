#include "model/adapter.h"

#include <algorithm>

#include "model/block.h"

namespace perigee {

namespace {

/// rows * columns elements of flat memory, from `begin` on, as a matrix.
TensorView matrix_in(TensorView memory, int64_t begin, int64_t rows, int64_t columns) {
    return memory.rows(begin, begin + rows * columns).reshape({rows, columns});
}

/// Memory for the gradient of A x. Each layer has its own.
TensorView du_of(Pass const& pass, Adapters const& adapters, int64_t rows) {
    return matrix_in(pass.adapters.du, adapters.first * pass.tokens * adapters.rank(), rows, adapters.a_RI[0]);
}

/// Calls visit(begin, end, first token) for each run of consecutive tokens among the `rows` of an input. Each tp rank
/// contributes rows / tp of them, from the pass's first_row on.
template <class Visit>
void each_run(Pass const& pass, int64_t rows, Visit visit) {
    int64_t const tp = pass.mesh.shape().tp, of_rank = rows / tp;
    for (int64_t rank = 0; rank < tp; ++rank) {
        int64_t const begin = rank * pass.part() + pass.first_row, end = begin + of_rank;
        int64_t at = 0;  // first token of the run, on this rank
        for (auto const& [count, first] : pass.dropout.tokens) {
            int64_t const from = std::max(begin, at), to = std::min(end, at + count);
            if (from < to) visit(rank * of_rank + from - begin, rank * of_rank + to - begin, first + from - at);
            at += count;
        }
    }
}

void drop(Pass const& pass, TensorView y_TI, ConstView x_TI, Adapters const& adapters) {
    uint64_t const step = static_cast<uint64_t>(pass.dropout.step) * 0x9E3779B97F4A7C15ull;
    Philox const random(pass.dropout.seed, Purpose::dropout, adapters.stream ^ step);
    each_run(pass, x_TI[0], [&](int64_t begin, int64_t end, int64_t token) {
        pass.ops.dropout({.y = y_TI.rows(begin, end),
                          .x = x_TI.rows(begin, end),
                          .rate = pass.dropout.rate,
                          .random = random,
                          .part = {.first = token * adapters.columns + adapters.first_column,
                                   .width = x_TI[1],
                                   .stride = adapters.columns}});
    });
}

/// dropout(x)
ConstView input_of(Pass const& pass, ConstView x_TI, Adapters const& adapters) {
    if (pass.dropout.rate == 0) return x_TI;
    TensorView const y_TI = matrix_in(pass.adapters.inputs, 0, x_TI[0], x_TI[1]);
    drop(pass, y_TI, x_TI, adapters);
    return y_TI;
}

/// A dropout(x)
TensorView project(Pass const& pass, ConstView input_TI, Adapters const& adapters) {
    TensorView const u_TR = matrix_in(pass.adapters.u, 0, input_TI[0], adapters.a_RI[0]);
    pass.ops.matmul({.c = u_TR, .a = input_TI, .b = adapters.a_RI, .transpose_b = true});
    return u_TR;
}

/// The B matrices as one matrix with `rows` rows, block by block, multiplied by the scale.
TensorView joined_b(Pass const& pass, Adapters const& adapters, int64_t rows) {
    int64_t const width = adapters.a_RI[0], rank = adapters.rank();
    TensorView const b_OR = matrix_in(pass.adapters.b, 0, rows, width);
    if (std::ssize(adapters.layers) > 1 || adapters.layers.front().b_OR[0] < rows) pass.ops.fill_zero(b_OR);
    int64_t column = 0;
    for (auto const& [layer_OR, begin] : adapters.layers) {
        pass.ops.copy_rows({.to = b_OR,
                            .to_begin = begin * width + column,
                            .to_stride = width,
                            .from = layer_OR,
                            .from_stride = rank,
                            .rows = layer_OR[0],
                            .width = rank});
        column += rank;
    }
    if (double const scale = pass.options.lora.scale(); scale != 1) pass.ops.scale(b_OR, scale);
    return b_OR;
}

/// dB = scale dy^T u, for each layer's block of rows and columns.
void b_backward(Pass const& pass, Adapters const& grads, ConstView dy_TO, ConstView u_TR) {
    int64_t const width = u_TR[1], rank = grads.rank();
    TensorView const db_OR = matrix_in(pass.adapters.db, 0, dy_TO[1], width);
    pass.ops.matmul({.c = db_OR, .a = dy_TO, .b = u_TR, .transpose_a = true});
    if (double const scale = pass.options.lora.scale(); scale != 1) pass.ops.scale(db_OR, scale);
    int64_t column = 0;
    for (auto const& [layer_OR, begin] : grads.layers) {
        TensorView const part_OR = pass.fresh ? layer_OR : matrix_in(pass.adapters.layer, 0, layer_OR[0], rank);
        pass.ops.copy_rows({.to = part_OR,
                            .to_stride = rank,
                            .from = db_OR,
                            .from_begin = begin * width + column,
                            .from_stride = width,
                            .rows = layer_OR[0],
                            .width = rank});
        if (!pass.fresh) pass.ops.add(layer_OR, part_OR);
        column += rank;
    }
}

}  // namespace

Adapters Adapters::rows(int64_t begin, int64_t end) const {
    Adapters some = *this;
    some.layers.clear();
    int64_t first_layer = 0;
    for (int64_t i = 0; i < std::ssize(layers); ++i) {
        Layer const& layer = layers[static_cast<size_t>(i)];
        if (layer.begin < begin || layer.begin >= end) continue;
        if (some.layers.empty()) first_layer = i;
        some.layers.push_back({layer.b_OR, layer.begin - begin});
    }
    some.first = first + first_layer;
    if (!some.empty()) some.a_RI = a_RI.rows(first_layer * rank(), (first_layer + std::ssize(some.layers)) * rank());
    return some;
}

AdapterPlaces::AdapterPlaces(ModelLayouts const& layouts, std::span<std::string const> names)
    : stream_(hash_name(names.front())) {
    std::vector<std::string> a;
    int64_t begin = 0;
    for (std::string const& name : names) {
        std::string const host = name + ".weight", b = name + ".lora_B.weight";
        if (layouts.has(b)) {
            layers_.push_back({layouts.place(b), begin});
            a.push_back(name + ".lora_A.weight");
        }
        begin += layouts.of(host).entry(host).local[0];
    }
    if (layers_.empty()) return;
    a_ = layouts.place(a.front(), a.back());
    Shard const& shard = layouts.of(a.front()).entry(a.front()).shard;
    columns_ = shard.global[1], first_column_ = shard.begin[1];
}

Adapters AdapterPlaces::in(UnitMemory const& unit) const {
    if (layers_.empty()) return {};
    Adapters adapters{.a_RI = a_.in(unit), .columns = columns_, .first_column = first_column_, .stream = stream_};
    for (auto const& [b, begin] : layers_) adapters.layers.push_back({b.in(unit), begin});
    return adapters;
}

namespace {

/// Largest sizes of the buffers that a product's adapters need.
struct Sizes {
    int64_t layers = 1;  ///< with an adapter
    int64_t joined = 0;  ///< elements of the joined B matrix
    int64_t layer = 0;   ///< elements of one B
    int64_t inputs = 0;  ///< elements of an input
};

Sizes sizes_of(Pass const& pass) {
    ModelOptions const& o = pass.options;
    auto const count = [&](std::initializer_list<char const*> targets) {
        return std::ranges::count_if(targets, [&](char const* target) { return o.lora.has(target); });
    };
    int64_t const T = pass.tokens, D = o.hidden_size, F = pass.intermediate(), Q = pass.heads() * o.head_size();
    int64_t const of_qkv = count({"q_proj", "k_proj", "v_proj"}), of_gate_up = count({"gate_proj", "up_proj"});
    return {.layers = std::max({of_qkv, of_gate_up, int64_t{1}}),
            .joined = o.lora.rank * std::max({of_qkv * pass.qkv_width(), of_gate_up * 2 * F, D}),
            .layer = o.lora.rank * std::max({Q, F, D}),
            .inputs = std::max({T * D, T * Q, pass.mlp_tokens() * F})};
}

}  // namespace

AdapterMemory allocate_adapters(Arena& arena, Pass const& pass) {
    Sizes const sizes = sizes_of(pass);
    AdapterMemory memory{
        .u = arena.allocate("A x", pass.compute(), {pass.tokens * sizes.layers * pass.options.lora.rank}),
        .b = arena.allocate("adapters", pass.compute(), {sizes.joined})};
    if (pass.dropout.rate > 0) memory.inputs = arena.allocate("dropout", pass.compute(), {sizes.inputs});
    return memory;
}

void allocate_adapter_gradients(Arena& arena, Pass const& pass, AdapterMemory& memory) {
    Sizes const sizes = sizes_of(pass);
    memory.du = arena.allocate("gradient of A x", pass.compute(), memory.u.shape);
    memory.db = arena.allocate("gradient of adapters", pass.statistics(), {sizes.joined});
    memory.layer = arena.allocate("gradient of B", pass.statistics(), {sizes.layer});
}

void adapters_forward(Pass const& pass, TensorView y_TO, ConstView x_TI, Adapters const& adapters) {
    if (adapters.empty()) return;
    TensorView const u_TR = project(pass, input_of(pass, x_TI, adapters), adapters);
    TensorView const b_OR = joined_b(pass, adapters, y_TO[1]);
    pass.ops.matmul({.c = y_TO, .a = u_TR, .b = b_OR, .transpose_b = true, .accumulate = true});
}

void adapters_backward(Pass const& pass, Adapters const& grads, ConstView dy_TO, ConstView x_TI,
                       Adapters const& adapters) {
    if (adapters.empty()) return;
    TensorView const du_TR = du_of(pass, adapters, dy_TO[0]);
    pass.ops.matmul({.c = du_TR, .a = dy_TO, .b = joined_b(pass, adapters, dy_TO[1])});
    if (grads.a_RI.empty()) return;
    ConstView const input_TI = input_of(pass, x_TI, adapters);
    pass.ops.matmul({.c = grads.a_RI, .a = du_TR, .b = input_TI, .transpose_a = true, .accumulate = !pass.fresh});
    b_backward(pass, grads, dy_TO, project(pass, input_TI, adapters));
}

void adapters_input_backward(Pass const& pass, TensorView dx_TI, Adapters const& adapters) {
    if (adapters.empty()) return;
    TensorView const du_TR = du_of(pass, adapters, dx_TI[0]);
    if (pass.dropout.rate == 0)
        return pass.ops.matmul({.c = dx_TI, .a = du_TR, .b = adapters.a_RI, .accumulate = true});
    TensorView const through_TI = matrix_in(pass.adapters.inputs, 0, dx_TI[0], dx_TI[1]);
    pass.ops.matmul({.c = through_TI, .a = du_TR, .b = adapters.a_RI});
    drop(pass, through_TI, through_TI, adapters);
    pass.ops.add(dx_TI, through_TI);
}

}  // namespace perigee
