// Runs one attention, forward and backward, on tensors from a file and writes the results, so that any other program
// can check them: attention_probe IN.h5 OUT.h5 --kind moba --block-size 128 --top-k 4.
// In: q, do [T, H, d]; k, v [T, G, d], all float32 or all float64; cu_seqlens [documents + 1], int32 or int64.
// Out: o, dq [T, H, d]; lse [T, H]; dk, dv [T, G, d]; for MoBA chosen [T, H, k - 1] int32.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "io/tensor_file.h"
#include "ops/ops.h"

namespace perigee {
namespace {

struct Request {
    std::string in, out, kind, selection = "head", device = "cpu";
    MobaOptions moba;
    double scale = 0;  ///< 0: 1 / sqrt(d)
};

/// The input file, with every complaint naming it.
class Input {
  public:
    Input(FileSystem& files, std::string path)
        : path_(std::move(path)), reader_(open_tensor_file(files, path_, Category::data)) {
        q_ = info("q");
        k_ = info("k");
        if (q_.shape.rank() != 3) fail(Category::data, "{}: q is {}, expected [T, H, d]", path_, q_.shape.str());
        if (q_.dtype != DType::f32 && q_.dtype != DType::f64)
            fail(Category::data, "{}: q is {}, expected float32 or float64", path_, to_string(q_.dtype));
        if (k_.shape.rank() != 3 || k_.shape[0] != q_.shape[0] || k_.shape[2] != q_.shape[2])
            fail(Category::data, "{}: k is {}, expected [{}, G, {}] as q is {}", path_, k_.shape.str(), q_.shape[0],
                 q_.shape[2], q_.shape.str());
        if (k_.shape[1] == 0 || q_.shape[1] % k_.shape[1] != 0)
            fail(Category::data, "{}: {} query heads cannot be shared out among {} key/value heads", path_, q_.shape[1],
                 k_.shape[1]);
        expect("k", k_.shape);
        expect("v", k_.shape);
        expect("do", q_.shape);
        read_borders();
    }

    DType dtype() const { return q_.dtype; }
    Shape const& q_shape() const { return q_.shape; }
    Shape const& k_shape() const { return k_.shape; }
    std::vector<int32_t> const& cu_seqlens() const { return cu_seqlens_; }

    template <class Real>
    std::vector<Real> values(std::string const& name) const {
        std::vector<Real> x(static_cast<size_t>(info(name).shape.size()));
        reader_->read(name, {x.data(), info(name).shape});
        return x;
    }

  private:
    TensorFileReader::Info info(std::string const& name) const {
        auto const names = reader_->names();
        if (std::find(names.begin(), names.end(), name) == names.end())
            fail(Category::data, "{}: there is no dataset '{}'", path_, name);
        return reader_->info(name);
    }
    void expect(std::string const& name, Shape const& shape) const {
        auto const found = info(name);
        if (found.dtype != q_.dtype || found.shape != shape)
            fail(Category::data, "{}: {} is {} {}, expected {} {}", path_, name, to_string(found.dtype),
                 found.shape.str(), to_string(q_.dtype), shape.str());
    }
    void read_borders() {
        auto const found = info("cu_seqlens");
        if (found.shape.rank() != 1 || (found.dtype != DType::i32 && found.dtype != DType::i64))
            fail(Category::data, "{}: cu_seqlens is {} {}, expected a list of int32 or int64", path_,
                 to_string(found.dtype), found.shape.str());
        std::vector<int64_t> borders;
        if (found.dtype == DType::i64) {
            borders = values<int64_t>("cu_seqlens");
        } else {
            auto const narrow = values<int32_t>("cu_seqlens");
            borders.assign(narrow.begin(), narrow.end());
        }
        int64_t const T = q_.shape[0];
        if (T > std::numeric_limits<int32_t>::max()) fail(Category::data, "{}: {} tokens are too many", path_, T);
        if (borders.empty() || borders.front() != 0 || borders.back() != T ||
            !std::is_sorted(borders.begin(), borders.end()))
            fail(Category::data, "{}: cu_seqlens must start with 0, never decrease, and end with T = {}; found {}",
                 path_, T, borders.empty() ? "nothing" : fmt::format("{} to {}", borders.front(), borders.back()));
        cu_seqlens_.assign(borders.begin(), borders.end());
    }

    std::string path_;
    std::unique_ptr<TensorFileReader> reader_;
    TensorFileReader::Info q_, k_;
    std::vector<int32_t> cu_seqlens_;
};

template <class Real>
void probe(Request const& request, Input const& in, Ops& ops, FileSystem& files) {
    Shape const &q_shape = in.q_shape(), &k_shape = in.k_shape();
    Shape const lse_shape{q_shape[0], q_shape[1]}, chosen_shape{q_shape[0], q_shape[1], request.moba.top_k - 1};
    auto const q = in.values<Real>("q"), k = in.values<Real>("k"), v = in.values<Real>("v"),
               d_o = in.values<Real>("do");
    std::vector<Real> o(q.size()), lse(static_cast<size_t>(lse_shape.size())), dq(q.size()), dk(k.size()), dv(k.size());
    std::vector<int32_t> chosen(static_cast<size_t>(chosen_shape.size()));
    bool const sparse = request.kind == "moba";
    Attended attended = FullAttention{};
    double const scale = request.scale > 0 ? request.scale : 1 / std::sqrt(static_cast<double>(q_shape[2]));
    if (sparse) {
        ops.select_blocks({.chosen_THS = {chosen.data(), chosen_shape},
                           .q_THK = {q.data(), q_shape},
                           .k_TGK = {k.data(), k_shape},
                           .cu_seqlens = in.cu_seqlens(),
                           .selection = request.moba});
        attended = BlockSparse{.budget = *budget_of(request.moba), .chosen_THS = {chosen.data(), chosen_shape}};
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
    if (sparse) file->write("chosen", {chosen.data(), chosen_shape});
    file->finish();
}

void run(Request request) {
    request.moba.selection = request.selection == "group" ? MobaSelection::per_group : MobaSelection::per_head;
    auto const files = make_file_system();
    auto const device = make_host_device();
    Input const in(*files, request.in);
    if (in.dtype() == DType::f32)
        probe<float>(request, in, *make_host_ops(*device), *files);
    else
        probe<double>(request, in, *make_host_ops_f64(*device), *files);
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    perigee::Request request;
    CLI::App app{"Runs attention forward and backward on tensors from an HDF5 file."};
    app.add_option("in", request.in, "HDF5 file with q, k, v, do, cu_seqlens")->required();
    app.add_option("out", request.out, "HDF5 file to write")->required();
    app.add_option("--kind", request.kind)->required()->check(CLI::IsMember({"full", "moba"}));
    app.add_option("--block-size", request.moba.block_size)->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--top-k", request.moba.top_k)->check(CLI::PositiveNumber)->capture_default_str();
    app.add_flag("--force-previous", request.moba.force_previous);
    app.add_option("--selection", request.selection)->check(CLI::IsMember({"head", "group"}))->capture_default_str();
    app.add_option("--device", request.device)->check(CLI::IsMember({"cpu"}))->capture_default_str();
    app.add_option("--scale", request.scale, "of the scores; 1/sqrt(d) unless given")->check(CLI::PositiveNumber);
    CLI11_PARSE(app, argc, argv);
    try {
        perigee::run(request);
    } catch (std::exception const& error) {
        return perigee::report_failure("attention_probe", error);
    }
    return 0;
}
