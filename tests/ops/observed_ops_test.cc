// What times, counts or records operations sees every one of them through one function, and changes nothing.
#include "ops/observed_ops.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace perigee {
namespace {

/// Notes the names of operations, in order.
class NamingOps : public ObservedOps {
  public:
    using ObservedOps::ObservedOps;
    void run(Operation const& operation) override {
        names.emplace_back(name_of(operation));
        ObservedOps::run(operation);
    }
    std::vector<std::string> names;
};

template <size_t... I>
std::vector<std::string> names_of_list(std::index_sequence<I...>) {
    return {std::variant_alternative_t<I, Operation>::kName...};
}

TEST(Operations, HaveNamesOfTheirOwn) {
    auto const names = names_of_list(std::make_index_sequence<std::variant_size_v<Operation>>());
    EXPECT_EQ(std::set(names.begin(), names.end()).size(), names.size());
}

TEST(ObservedOps, SeeEveryOperationAndPassItOn) {
    auto const device = make_host_device();
    auto const inner = make_host_ops(*device, 1);
    NamingOps ops(*inner);
    std::vector<float> x = {1, 2, 3, 4}, y(4), sum = {0, 0, 0, 0};
    TensorView const x_v(x.data(), {2, 2}), y_v(y.data(), {2, 2}), sum_v(sum.data(), {2, 2});
    ops.copy(y_v, x_v);
    ops.scale(y_v, 2);
    ops.matmul({.c = sum_v, .a = x_v, .b = y_v, .accumulate = true});
    ops.fill_zero(x_v);
    EXPECT_EQ(ops.names, (std::vector<std::string>{"copy", "scale", "matmul", "fill_zero"}));
    EXPECT_EQ(y, (std::vector<float>{2, 4, 6, 8}));
    EXPECT_EQ(sum, (std::vector<float>{14, 20, 30, 44}));
    EXPECT_EQ(x, std::vector<float>(4, 0.0f));
    EXPECT_EQ(ops.compute_dtype(), DType::f32);
    EXPECT_EQ(&ops.device(), device.get());
}

}  // namespace
}  // namespace perigee
