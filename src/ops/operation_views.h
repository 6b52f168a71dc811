// The tensors that an operation reads and writes, whatever the operation: found from the members of its struct.
#pragma once

#include <type_traits>
#include <utility>

#include "ops/operations.h"

namespace perigee {

namespace each_view_detail {

struct AnyMember {
    template <class T>
    operator T() const;
};

template <class T, size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
    return requires { T{(static_cast<void>(I), AnyMember{})...}; };
}
template <class T, size_t count = 20>
constexpr size_t member_count() {
    if constexpr (takes<T>(std::make_index_sequence<count>()))
        return count;
    else
        return member_count<T, count - 1>();
}

template <class T, class Visit>
void each_member(T const& x, Visit&& visit) {
    auto const all = [&](auto const&... members) { (visit(members), ...); };
    constexpr size_t kCount = member_count<T>();
    static_assert(1 <= kCount && kCount <= 16);
    if constexpr (kCount == 1) {
        auto const& [a] = x;
        all(a);
    } else if constexpr (kCount == 2) {
        auto const& [a, b] = x;
        all(a, b);
    } else if constexpr (kCount == 3) {
        auto const& [a, b, c] = x;
        all(a, b, c);
    } else if constexpr (kCount == 4) {
        auto const& [a, b, c, d] = x;
        all(a, b, c, d);
    } else if constexpr (kCount == 5) {
        auto const& [a, b, c, d, e] = x;
        all(a, b, c, d, e);
    } else if constexpr (kCount == 6) {
        auto const& [a, b, c, d, e, f] = x;
        all(a, b, c, d, e, f);
    } else if constexpr (kCount == 7) {
        auto const& [a, b, c, d, e, f, g] = x;
        all(a, b, c, d, e, f, g);
    } else if constexpr (kCount == 8) {
        auto const& [a, b, c, d, e, f, g, h] = x;
        all(a, b, c, d, e, f, g, h);
    } else if constexpr (kCount == 9) {
        auto const& [a, b, c, d, e, f, g, h, i] = x;
        all(a, b, c, d, e, f, g, h, i);
    } else if constexpr (kCount == 10) {
        auto const& [a, b, c, d, e, f, g, h, i, j] = x;
        all(a, b, c, d, e, f, g, h, i, j);
    } else if constexpr (kCount == 11) {
        auto const& [a, b, c, d, e, f, g, h, i, j, k] = x;
        all(a, b, c, d, e, f, g, h, i, j, k);
    } else if constexpr (kCount == 12) {
        auto const& [a, b, c, d, e, f, g, h, i, j, k, l] = x;
        all(a, b, c, d, e, f, g, h, i, j, k, l);
    } else if constexpr (kCount == 13) {
        auto const& [a, b, c, d, e, f, g, h, i, j, k, l, m] = x;
        all(a, b, c, d, e, f, g, h, i, j, k, l, m);
    } else if constexpr (kCount == 14) {
        auto const& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = x;
        all(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
    } else if constexpr (kCount == 15) {
        auto const& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = x;
        all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
    } else {
        auto const& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = x;
        all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
    }
}

}  // namespace each_view_detail

/// Calls visit(view, writes) for every tensor of the operation. A tensor that may be written counts as written.
template <class Visit>
void each_view(Operation const& operation, Visit&& visit) {
    auto const member = [&](auto const& x) {
        using Member = std::remove_cvref_t<decltype(x)>;
        if constexpr (std::is_same_v<Member, TensorView>) {
            if (!x.empty()) visit(ConstView(x), true);
        } else if constexpr (std::is_same_v<Member, ConstView>) {
            if (!x.empty()) visit(x, false);
        } else if constexpr (std::is_same_v<Member, Attended>) {
            if (auto const* const sparse = std::get_if<BlockSparse>(&x)) {
                if (!sparse->chosen_THS.empty()) visit(sparse->chosen_THS, false);
                if (!sparse->routing_L.empty()) visit(ConstView(sparse->routing_L), true);
            }
        }
    };
    std::visit([&](auto const& args) { each_view_detail::each_member(args, member); }, operation);
}

}  // namespace perigee
