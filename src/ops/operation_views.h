// The tensors that an operation reads and writes, whatever the operation: found from the members of its struct.
#pragma once

#include <type_traits>

#include "ops/members.h"
#include "ops/operations.h"

namespace perigee {

/// Calls visit(view, writes) for every tensor of the operation. A tensor that may be written counts as written.
template <class Visit>
void each_view(Operation const& operation, Visit&& visit) {
    auto const member = [&](auto const& self, auto const& x) -> void {
        using Member = std::remove_cvref_t<decltype(x)>;
        if constexpr (std::is_same_v<Member, TensorView>) {
            if (!x.empty()) visit(ConstView(x), true);
        } else if constexpr (std::is_same_v<Member, ConstView>) {
            if (!x.empty()) visit(x, false);
        } else if constexpr (std::is_same_v<Member, QuantTensor> || std::is_same_v<Member, ConstQuantTensor>) {
            if (!x.empty())
                for (ConstView const view : {ConstView(x.values), ConstView(x.scales)})
                    visit(view, std::is_same_v<Member, QuantTensor>);
        } else if constexpr (std::is_same_v<Member, CachePages>) {
            for (TensorView const& view : {x.k_NPGK, x.v_NPGK, x.means_NGK}) visit(ConstView(view), true);
            visit(x.table_SM, false);
        } else if constexpr (std::is_same_v<Member, Attended>) {
            if (auto const* const sparse = std::get_if<BlockSparse>(&x)) {
                if (!sparse->chosen_THS.empty()) visit(sparse->chosen_THS, false);
                if (!sparse->routing_L.empty()) visit(ConstView(sparse->routing_L), true);
            }
        } else if constexpr (std::is_same_v<Member, DecodeSelect> || std::is_same_v<Member, DecodeAttend>) {
            each_member(x, [&](auto const& inner) { self(self, inner); });
        }
    };
    std::visit([&](auto const& args) { each_member(args, [&](auto const& x) { member(member, x); }); }, operation);
}

}  // namespace perigee
