#include "comm/host_comm.h"

#include <algorithm>
#include <cstring>

#include "comm/checks.h"

namespace perigee {

namespace {

void copy_bytes(TensorView to, ConstView from) {
    if (to.bytes() > 0) std::memmove(to.data, from.data, static_cast<size_t>(to.bytes()));
}

class SingleHostComm final : public HostComm {
  public:
    int rank() const override { return 0; }
    int size() const override { return 1; }

    void all_reduce(TensorView x, Reduce) override { detail::check_reducible(x.dtype); }
    void all_gather(TensorView all, ConstView part) override {
        detail::check_parts(all, part, 1);
        copy_bytes(all, part);
    }
    void reduce_scatter(TensorView part, ConstView all) override {
        detail::check_reducible(part.dtype);
        detail::check_parts(all, part, 1);
        copy_bytes(part, all);
    }
    void all_to_all(TensorView to, ConstView from) override {
        detail::check_exchange(to, from, 1);
        copy_bytes(to, from);
    }
    void exchange(std::span<Outgoing const> sent, std::span<Incoming const> received) override {
        detail::check_messages(sent, received, 1);
        PERIGEE_CHECK(sent.size() == received.size(), "{} messages sent, {} received", sent.size(), received.size());
        for (size_t i = 0; i < sent.size(); ++i) {
            detail::check_exchange(received[i].x, sent[i].x, 1);
            copy_bytes(received[i].x, sent[i].x);
        }
    }
    void broadcast(TensorView, int root) override { detail::check_root(root, 1); }
    void barrier() override {}
    std::unique_ptr<HostComm> split(int, int, Axis) override { return make_single_host_comm(); }
};

TensorView scalar(auto& x) { return TensorView(&x, Shape{1}); }

}  // namespace

double HostComm::sum(double x) {
    all_reduce(scalar(x));
    return x;
}

int64_t HostComm::sum(int64_t x) {
    all_reduce(scalar(x));
    return x;
}

int64_t HostComm::max(int64_t x) {
    all_reduce(scalar(x), Reduce::max);
    return x;
}

bool HostComm::any(bool x) { return max(int64_t{x}) != 0; }

std::string HostComm::broadcast_text(std::string text, int root) {
    auto length = static_cast<int64_t>(text.size());
    broadcast(scalar(length), root);
    text.resize(static_cast<size_t>(length));
    broadcast({reinterpret_cast<std::byte*>(text.data()), DType::u8, Shape{length}}, root);
    return text;
}

std::vector<std::string> HostComm::gather_text(std::string const& text) {
    std::vector<int64_t> lengths(static_cast<size_t>(size()));
    auto const length = static_cast<int64_t>(text.size());
    all_gather(TensorView(lengths.data(), Shape{size()}), ConstView(&length, Shape{1}));

    // Parts must be equal, so every text travels padded to the longest.
    int64_t const widest = *std::max_element(lengths.begin(), lengths.end());
    std::string part = text;
    part.resize(static_cast<size_t>(widest));
    std::string all(static_cast<size_t>(widest * size()), '\0');
    all_gather({reinterpret_cast<std::byte*>(all.data()), DType::u8, Shape{widest * size()}},
               {reinterpret_cast<std::byte const*>(part.data()), DType::u8, Shape{widest}});

    std::vector<std::string> texts;
    for (size_t i = 0; i < lengths.size(); ++i) {
        texts.push_back(all.substr(i * static_cast<size_t>(widest), static_cast<size_t>(lengths[i])));
    }
    return texts;
}

std::unique_ptr<HostComm> make_single_host_comm() { return std::make_unique<SingleHostComm>(); }

}  // namespace perigee
