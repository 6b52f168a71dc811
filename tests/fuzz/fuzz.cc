#include "fuzz/fuzz.h"

#include <algorithm>
#include <fstream>

namespace perigee::testing {

std::string Pieces::next() {
    size_t length = 0;
    for (size_t i = 0; i < 2 && i < rest_.size(); ++i) length |= size_t{static_cast<uint8_t>(rest_[i])} << (8 * i);
    rest_.remove_prefix(std::min<size_t>(2, rest_.size()));
    length = std::min(length, rest_.size());
    std::string const piece(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return piece;
}

std::string Pieces::join(std::vector<std::string> const& pieces) {
    std::string joined;
    for (size_t i = 0; i + 1 < pieces.size(); ++i) {
        size_t const length = pieces[i].size();
        joined += static_cast<char>(length & 0xff);
        joined += static_cast<char>(length >> 8);
        joined += pieces[i];
    }
    return joined + (pieces.empty() ? "" : pieces.back());
}

}  // namespace perigee::testing

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
    if (*argc != 3 || std::string_view((*argv)[1]) != "--write-seeds") return 0;
    int number = 0;
    for (std::string const& seed : perigee::testing::fuzz_seeds()) {
        std::ofstream file(std::string((*argv)[2]) + "/seed_" + std::to_string(number++), std::ios::binary);
        if (!(file << seed).flush()) std::exit(1);
    }
    std::exit(0);
}
