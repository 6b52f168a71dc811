#include "ops/digest.h"

#include <bit>

#include "ops/members.h"

namespace perigee {

namespace {

template <class T>
constexpr bool is_view = std::is_same_v<T, TensorView> || std::is_same_v<T, ConstView>;
template <class T>
constexpr bool is_span = false;
template <class T>
constexpr bool is_span<std::span<T>> = true;
template <class T>
constexpr bool is_variant = false;
template <class... T>
constexpr bool is_variant<std::variant<T...>> = true;

/// The finaliser of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

class Digester {
  public:
    Digest result() const { return {low_, high_}; }

    void word(uint64_t x) {
        low_ = mixed(low_ + 0x9e3779b97f4a7c15 + x);
        high_ = mixed((std::rotl(high_, 23) ^ x) + 0xd1b54a32d192ed03);
    }

    template <class T>
    void add(T const& x) {
        if constexpr (is_view<T>) {
            word(std::bit_cast<uint64_t>(x.data));
            word(static_cast<uint64_t>(x.dtype));
            word(static_cast<uint64_t>(x.shape.rank()));
            for (int i = 0; i < x.shape.rank(); ++i) word(static_cast<uint64_t>(x.shape[i]));
        } else if constexpr (is_span<T>) {
            word(x.size());
            for (auto const& value : x) add(value);
        } else if constexpr (is_variant<T>) {
            word(x.index());
            std::visit([this](auto const& held) { this->add(held); }, x);
        } else if constexpr (std::is_same_v<T, double>) {
            word(std::bit_cast<uint64_t>(x));
        } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
            word(static_cast<uint64_t>(x));
        } else {
            static_assert(std::is_aggregate_v<T>, "a member whose digest is unknown");
            each_member(x, [this](auto const& member) { this->add(member); });
        }
    }

  private:
    uint64_t low_ = 1, high_ = 2;
};

}  // namespace

Digest digest_of(std::span<int64_t const> numbers) {
    Digester digester;
    digester.add(numbers);
    return digester.result();
}

Digest digest_of(std::span<Operation const> operations) {
    Digester digester;
    for (Operation const& operation : operations) {
        digester.word(operation.index());
        std::visit(
            [&](auto const& args) {
                if constexpr (kCanWait<std::remove_cvref_t<decltype(args)>>)
                    digester.add(args);
                else
                    fail(Category::internal, "{} cannot wait", args.kName);
            },
            operation);
    }
    return digester.result();
}

}  // namespace perigee
