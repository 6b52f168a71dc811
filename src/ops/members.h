// The members of a struct without constructors, such as the arguments of an operation, whatever they are called.
#pragma once

#include <cstddef>
#include <utility>

namespace perigee {

namespace members_detail {

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
    if constexpr (count == 0 || takes<T>(std::make_index_sequence<count>()))
        return count;
    else
        return member_count<T, count - 1>();
}

}  // namespace members_detail

/// Calls visit(member) for each of a struct's members, at most 16.
template <class T, class Visit>
void each_member(T const& x, Visit&& visit) {
    auto const all = [&](auto const&... members) { (visit(members), ...); };
    constexpr size_t kCount = members_detail::member_count<T>();
    static_assert(kCount <= 16);
    if constexpr (kCount == 0) {
        all();
    } else if constexpr (kCount == 1) {
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

}  // namespace perigee
