#include "base/error.h"

namespace perigee {

char const* to_string(Category category) noexcept {
    switch (category) {
        case Category::internal:
            return "internal";
        case Category::config:
            return "config";
        case Category::data:
            return "data";
        case Category::checkpoint:
            return "checkpoint";
        case Category::numeric:
            return "numeric";
        case Category::hang:
            return "hang";
        case Category::communication:
            return "communication";
    }
    return "unknown";
}

namespace detail {
void check_failed(char const* condition, std::string const& message, std::source_location where) {
    throw Error(Category::internal,
                fmt::format("{}:{}: {} (expected: {})", where.file_name(), where.line(), message, condition));
}
}  // namespace detail

}  // namespace perigee
