// The readable text of a web page, for making training text of documentation. Not a parser: tags are dropped, block
// elements break lines, scripts and styles vanish, common entities are decoded, white space collapses outside <pre>.
#pragma once

#include <string>
#include <string_view>

namespace perigee {

/// Never fails: what is not well-formed is dropped or kept as text. Linear in the length of the page.
std::string html_to_text(std::string_view html);

}  // namespace perigee
