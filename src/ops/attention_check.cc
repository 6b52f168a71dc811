#include "ops/attention_check.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace perigee {

namespace {

constexpr double kTolerance = 0.02;

/// Tensors of one side. Outputs are NaN before they are written.
class Side {
  public:
    Side(Device& device, AttentionShape const& shape, DType compute, DType statistics)
        : device_(device), shape_(shape), compute_(compute), statistics_(statistics) {}

    TensorView heads(std::vector<double> const* values = nullptr) {
        return make(compute_, {shape_.tokens(), shape_.heads, shape_.head_dim}, values);
    }
    TensorView kv_heads(std::vector<double> const* values = nullptr) {
        return make(compute_, {shape_.tokens(), shape_.kv_heads, shape_.head_dim}, values);
    }
    TensorView column(std::vector<double> const* values = nullptr) {
        return make(statistics_, {shape_.tokens(), shape_.heads}, values);
    }
    std::vector<double> read(ConstView view) {
        std::vector<std::byte> bytes(static_cast<size_t>(view.bytes()));
        device_.copy(bytes.data(), view.data, bytes.size());
        ConstView const here{bytes.data(), view.dtype, view.shape};
        std::vector<double> values(static_cast<size_t>(view.size()));
        for (size_t i = 0; i < values.size(); ++i)
            values[i] = here.dtype == DType::f64   ? here.as<double>()[i]
                        : here.dtype == DType::f32 ? static_cast<double>(here.as<float>()[i])
                                                   : static_cast<double>(to_float(here.as<bf16>()[i]));
        return values;
    }

  private:
    TensorView make(DType dtype, Shape const& shape, std::vector<double> const* values) {
        std::vector<std::byte> bytes(static_cast<size_t>(shape.size() * size_of(dtype)), std::byte{0xff});
        TensorView const here{bytes.data(), dtype, shape};
        for (size_t i = 0; values != nullptr && i < values->size(); ++i) {
            double const x = (*values)[i];
            if (dtype == DType::f64)
                here.as<double>()[i] = x;
            else if (dtype == DType::f32)
                here.as<float>()[i] = static_cast<float>(x);
            else
                here.as<bf16>()[i] = to_bf16(static_cast<float>(x));
        }
        Buffer const& memory = memory_.emplace_back(device_, bytes.size());
        device_.copy(memory.data(), bytes.data(), bytes.size());
        return {static_cast<std::byte*>(memory.data()), dtype, shape};
    }

    Device& device_;
    AttentionShape const& shape_;
    DType compute_, statistics_;
    std::vector<Buffer> memory_;
};

/// Numbers between -2 and 2 that bf16 holds exactly.
std::vector<double> numbers(int64_t heads, AttentionShape const& shape, uint64_t stream) {
    Philox const random(1, Purpose::mock_data, stream);
    std::vector<double> values(static_cast<size_t>(shape.tokens() * heads * shape.head_dim));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(random.below(i, 129)) / 32 - 2;
    return values;
}

struct Inputs {
    std::vector<double> q, k, v, d_o;
};

struct Results {
    std::vector<double> o = {}, lse = {}, dq = {}, dk = {}, dv = {};
};

/// `given`: o and lse for a backward without forward.
Results compute(Side side, AttentionShape const& shape, AttentionPasses const& passes, Inputs const& in,
                Results const* given) {
    Results found;
    TensorView const q = side.heads(&in.q), k = side.kv_heads(&in.k), v = side.kv_heads(&in.v);
    if (passes.forward) {
        TensorView const o = side.heads(), lse = side.column();
        passes.forward({.o_THK = o,
                        .lse_TH = lse,
                        .q_THK = q,
                        .k_TGK = k,
                        .v_TGK = v,
                        .cu_seqlens = shape.documents,
                        .scale = shape.scale});
        found.o = side.read(o), found.lse = side.read(lse);
    }
    if (passes.backward) {
        Results const& before = given != nullptr ? *given : found;
        TensorView const dq = side.heads(), dk = side.kv_heads(), dv = side.kv_heads();
        passes.backward({.dq_THK = dq,
                         .dk_TGK = dk,
                         .dv_TGK = dv,
                         .do_THK = side.heads(&in.d_o),
                         .q_THK = q,
                         .k_TGK = k,
                         .v_TGK = v,
                         .o_THK = side.heads(&before.o),
                         .lse_TH = side.column(&before.lse),
                         .cu_seqlens = shape.documents,
                         .scale = shape.scale});
        found.dq = side.read(dq), found.dk = side.read(dk), found.dv = side.read(dv);
    }
    return found;
}

double root_mean_square(auto const& values) {
    double squares = 0;
    for (double x : values) squares += x * x;
    return std::sqrt(squares / static_cast<double>(std::size(values)));
}

/// The largest error of any document, and which that is. NaN counts as larger than any number.
std::pair<double, size_t> worst_document(std::span<int32_t const> borders, std::vector<double> const& found,
                                         std::vector<double> const& expected) {
    size_t const width = expected.size() / static_cast<size_t>(borders.back());
    double const size = root_mean_square(expected);
    std::pair<double, size_t> worst = {0, 0};
    for (size_t d = 0; d + 1 < borders.size(); ++d) {
        std::vector<double> differences;
        for (auto i = static_cast<size_t>(borders[d]) * width; i < static_cast<size_t>(borders[d + 1]) * width; ++i)
            differences.push_back(found[i] - expected[i]);
        if (differences.empty()) continue;
        double const error = root_mean_square(differences) / size;
        if (!(error <= worst.first)) worst = {error, d};
        if (std::isnan(error)) break;
    }
    return worst;
}

}  // namespace

double check_attention(Device& device, AttentionShape const& shape, AttentionPasses const& passes,
                       std::string const& name) {
    auto const host = make_host_device();
    auto const oracle = make_host_ops_f64(*host);
    AttentionPasses exact{.compute = DType::f64};
    exact.forward = [&](AttentionForward const& args) { oracle->attention_forward(args); };
    if (passes.backward) exact.backward = [&](AttentionBackward const& args) { oracle->attention_backward(args); };
    Inputs const in{.q = numbers(shape.heads, shape, 1),
                    .k = numbers(shape.kv_heads, shape, 2),
                    .v = numbers(shape.kv_heads, shape, 3),
                    .d_o = numbers(shape.heads, shape, 4)};
    Results const expected = compute(Side(*host, shape, DType::f64, DType::f64), shape, exact, in, nullptr);
    Results const found = compute(Side(device, shape, passes.compute, DType::f32), shape, passes, in, &expected);
    double worst = 0;
    for (auto const& [result, values, exact_values] : {std::tuple("o", &found.o, &expected.o),
                                                       {"lse", &found.lse, &expected.lse},
                                                       {"dq", &found.dq, &expected.dq},
                                                       {"dk", &found.dk, &expected.dk},
                                                       {"dv", &found.dv, &expected.dv}}) {
        if (values->empty()) continue;
        auto const [error, document] = worst_document(shape.documents, *values, *exact_values);
        if (!(error <= kTolerance))
            throw UnusableAttention(fmt::format(
                "{} computes full attention wrongly here: {} is off by {:.3g} of its size (at most {} is expected) in "
                "document {} (tokens {} to {} of a pack of {}), {} query heads and {} key/value heads of {}. Try "
                "another version, or a build without cuDNN",
                name, result, error, kTolerance, document, shape.documents[document], shape.documents[document + 1],
                shape.tokens(), shape.heads, shape.kv_heads, shape.head_dim));
        worst = std::max(worst, error);
    }
    return worst;
}

}  // namespace perigee
