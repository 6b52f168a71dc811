#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/ops.h"
#include "tools/probe/probe.h"

namespace perigee {
namespace {

/// The input of one attention, whose shapes agree.
class AttentionInput : public ProbeInput {
  public:
    AttentionInput(FileSystem& files, std::string const& path) : ProbeInput(files, path), q_(info("q")), k_(info("k")) {
        if (q_.shape.rank() != 3) fail(Category::data, "{}: q is {}, expected [T, H, d]", path, q_.shape.str());
        if (q_.dtype != DType::f32 && q_.dtype != DType::f64)
            fail(Category::data, "{}: q is {}, expected float32 or float64", path, to_string(q_.dtype));
        if (k_.shape.rank() != 3 || k_.shape[0] != q_.shape[0] || k_.shape[2] != q_.shape[2])
            fail(Category::data, "{}: k is {}, expected [{}, G, {}] as q is {}", path, k_.shape.str(), q_.shape[0],
                 q_.shape[2], q_.shape.str());
        if (k_.shape[1] == 0 || q_.shape[1] % k_.shape[1] != 0)
            fail(Category::data, "{}: {} query heads cannot be shared out among {} key/value heads", path, q_.shape[1],
                 k_.shape[1]);
        expect("k", q_.dtype, k_.shape);
        expect("v", q_.dtype, k_.shape);
        expect("do", q_.dtype, q_.shape);
        read_borders();
    }

    DType dtype() const { return q_.dtype; }
    Shape const& q_shape() const { return q_.shape; }
    Shape const& k_shape() const { return k_.shape; }
    std::vector<int32_t> const& cu_seqlens() const { return cu_seqlens_; }

  private:
    void read_borders() {
        auto const found = info("cu_seqlens");
        if (found.shape.rank() != 1 || (found.dtype != DType::i32 && found.dtype != DType::i64))
            fail(Category::data, "{}: cu_seqlens is {} {}, expected a list of int32 or int64", path(),
                 to_string(found.dtype), found.shape.str());
        std::vector<int64_t> borders;
        if (found.dtype == DType::i64) {
            borders = values<int64_t>("cu_seqlens");
        } else {
            auto const narrow = values<int32_t>("cu_seqlens");
            borders.assign(narrow.begin(), narrow.end());
        }
        int64_t const T = q_.shape[0];
        if (T > std::numeric_limits<int32_t>::max()) fail(Category::data, "{}: {} tokens are too many", path(), T);
        if (borders.empty() || borders.front() != 0 || borders.back() != T ||
            !std::is_sorted(borders.begin(), borders.end()))
            fail(Category::data, "{}: cu_seqlens must start with 0, never decrease, and end with T = {}; found {}",
                 path(), T, borders.empty() ? "nothing" : fmt::format("{} to {}", borders.front(), borders.back()));
        cu_seqlens_.assign(borders.begin(), borders.end());
    }

    TensorFileReader::Info q_, k_;
    std::vector<int32_t> cu_seqlens_;
};

template <class Real>
void probe(ProbeRequest const& request, AttentionInput const& in, Ops& ops, FileSystem& files) {
    Selection const selection = layer_selections(request.attention, 1, 0, 0).front();
    auto const budget = budget_of(selection);
    Shape const &q_shape = in.q_shape(), &k_shape = in.k_shape();
    Shape const lse_shape{q_shape[0], q_shape[1]}, chosen_shape{q_shape[0], q_shape[1], budget ? budget->slots() : 0};
    auto const q = in.values<Real>("q"), k = in.values<Real>("k"), v = in.values<Real>("v"),
               d_o = in.values<Real>("do");
    std::vector<Real> o(q.size()), lse(static_cast<size_t>(lse_shape.size())), dq(q.size()), dk(k.size()), dv(k.size());
    std::vector<int32_t> chosen(static_cast<size_t>(chosen_shape.size()));
    double const scale = request.scale > 0 ? request.scale : 1 / std::sqrt(static_cast<double>(q_shape[2]));
    Attended attended = FullAttention{};
    if (budget) {
        ops.select_blocks({.chosen_THS = {chosen.data(), chosen_shape},
                           .q_THK = {q.data(), q_shape},
                           .k_TGK = {k.data(), k_shape},
                           .cu_seqlens = in.cu_seqlens(),
                           .selection = selection});
        attended = BlockSparse{.budget = *budget, .chosen_THS = {chosen.data(), chosen_shape}};
    }
    ops.attention_forward({.o_THK = {o.data(), q_shape},
                           .lse_TH = {lse.data(), lse_shape},
                           .q_THK = {q.data(), q_shape},
                           .k_TGK = {k.data(), k_shape},
                           .v_TGK = {v.data(), k_shape},
                           .cu_seqlens = in.cu_seqlens(),
                           .scale = scale,
                           .attended = attended});
    ops.attention_backward({.dq_THK = {dq.data(), q_shape},
                            .dk_TGK = {dk.data(), k_shape},
                            .dv_TGK = {dv.data(), k_shape},
                            .do_THK = {d_o.data(), q_shape},
                            .q_THK = {q.data(), q_shape},
                            .k_TGK = {k.data(), k_shape},
                            .v_TGK = {v.data(), k_shape},
                            .o_THK = {o.data(), q_shape},
                            .lse_TH = {lse.data(), lse_shape},
                            .cu_seqlens = in.cu_seqlens(),
                            .scale = scale,
                            .attended = attended});
    auto const file = create_tensor_file(files, request.out);
    file->write("o", {o.data(), q_shape});
    file->write("lse", {lse.data(), lse_shape});
    file->write("dq", {dq.data(), q_shape});
    file->write("dk", {dk.data(), k_shape});
    file->write("dv", {dv.data(), k_shape});
    if (budget) file->write("chosen", {chosen.data(), chosen_shape});
    file->finish();
}

}  // namespace

void probe_attention(FileSystem& files, ProbeRequest const& request) {
    auto const device = make_host_device();
    AttentionInput const in(files, request.in);
    if (in.dtype() == DType::f32)
        probe<float>(request, in, *make_host_ops(*device), files);
    else
        probe<double>(request, in, *make_host_ops_f64(*device), files);
}

}  // namespace perigee
