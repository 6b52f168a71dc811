#include "ops/operations.h"

namespace perigee {

char const* name_of(Operation const& operation) {
    return std::visit([](auto const& args) { return args.kName; }, operation);
}

}  // namespace perigee
