#include "train/participation.h"

#include <cmath>

namespace perigee {

namespace {

/// What the device has, as double.
template <class T>
std::vector<double> downloaded(Ops& ops, ConstView from) {
    std::vector<T> values(static_cast<size_t>(from.size()));
    ops.download(values.data(), from);
    return {values.begin(), values.end()};
}

}  // namespace

Participation::Participation(Ops& ops, RunOptions const& options, MeshShape const& mesh)
    : ops_(ops),
      every_(options.log.participation_every),
      width_(options.model.hidden_size),
      layers_(options.model.num_hidden_layers),
      tokens_(options.train.micro_batch_size * options.data.sequence_length / (mesh.cp * mesh.tp)) {
    if (every_ > 0) memory_ = Buffer(ops.device(), static_cast<size_t>(layers_ * tokens_ * size_of(ops.main_dtype())));
}

TensorView Participation::begin(int64_t step) {
    stream_rstd_LP_ = {};
    sums_.clear();
    if (every_ == 0 || step % every_ != 0) return {};
    stream_rstd_LP_ = {static_cast<std::byte*>(memory_.data()), ops_.main_dtype(), {layers_, tokens_}};
    ops_.fill_zero(stream_rstd_LP_);
    sums_.resize(static_cast<size_t>(layers_));
    return stream_rstd_LP_;
}

void Participation::add() {
    if (stream_rstd_LP_.empty()) return;
    bool const wide = stream_rstd_LP_.dtype == DType::f64;
    auto const scales = wide ? downloaded<double>(ops_, stream_rstd_LP_) : downloaded<float>(ops_, stream_rstd_LP_);
    for (size_t i = 0; i < scales.size(); ++i) {
        if (scales[i] == 0) continue;  // of a layer that is not trained, or of an infinite gradient
        double const square = static_cast<double>(width_) / (scales[i] * scales[i]);
        Sums& sums = sums_[i / static_cast<size_t>(tokens_)];
        sums.norms += std::sqrt(square), sums.squares += square;
    }
}

std::vector<std::optional<double>> Participation::report(HostComm& world, int64_t tokens) const {
    std::vector<std::optional<double>> layers;
    for (Sums const& mine : sums_) {
        double const norms = world.sum(mine.norms), squares = world.sum(mine.squares);
        bool const known = squares != 0;  // NaN too
        layers.push_back(known ? std::optional(norms * norms / (static_cast<double>(tokens) * squares)) : std::nullopt);
    }
    return layers;
}

}  // namespace perigee
