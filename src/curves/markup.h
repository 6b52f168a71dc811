// Text inside SVG and HTML.
#pragma once

#include <string>
#include <string_view>

namespace perigee {

/// With the characters that markup gives a meaning to replaced by their entities.
inline std::string escaped(std::string_view text) {
    std::string result;
    for (char const c : text) {
        switch (c) {
            case '&':
                result += "&amp;";
                break;
            case '<':
                result += "&lt;";
                break;
            case '>':
                result += "&gt;";
                break;
            case '"':
                result += "&quot;";
                break;
            default:
                result += c;
        }
    }
    return result;
}

}  // namespace perigee
