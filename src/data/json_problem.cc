#include "data/json_problem.h"

#include <fmt/format.h>

namespace perigee {

std::string json_problem(size_t position, std::string_view what) {
    // "[json.exception.parse_error.101] parse error at line 1, column 4: syntax error ..."
    for (std::string_view const prefix : {"] ", ": "}) {
        if (size_t const end = what.find(prefix); end != what.npos) what.remove_prefix(end + prefix.size());
    }
    return fmt::format("malformed JSON at byte {}: {}", position, what);
}

}  // namespace perigee
