#include "device/peak_flops.h"

#include <array>

namespace perigee {

namespace {

struct Peak {
    std::string_view part;  ///< of the device's name
    double teraflops;       ///< dense: half of what data sheets print "with sparsity"
};

/// The first whose part occurs in the name counts, so variants come before what they are variants of.
constexpr std::array kPeaks = {
    Peak{"GB300", 2500},     Peak{"B300", 2250},      Peak{"GB200", 2500},     Peak{"B200", 2250},
    Peak{"B100", 1750},      Peak{"GH200", 989.4},    Peak{"H200 NVL", 835},   Peak{"H200", 989.4},
    Peak{"H100 NVL", 835},   Peak{"H100 PCIe", 756},  Peak{"H100", 989.4},     Peak{"H800 PCIe", 756},
    Peak{"H800", 989.4},     Peak{"H20", 148},        Peak{"A100", 312},       Peak{"A800", 312},
    Peak{"L40S", 362},       Peak{"L40", 181},        Peak{"L4", 121},         Peak{"A40", 149.7},
    Peak{"A30", 165},        Peak{"A10G", 70},        Peak{"A10", 125},        Peak{"RTX A6000", 154.8},
    Peak{"RTX 5090", 209.5}, Peak{"RTX 5080", 112.6}, Peak{"RTX 4090", 165.2}, Peak{"RTX 4080 SUPER", 104.4},
    Peak{"RTX 4080", 97.5},  Peak{"RTX 3090 Ti", 80}, Peak{"RTX 3090", 71},
};

bool continues_word(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z'); }

/// As a word of its own, or its beginning up to a small letter or dash: "A100-SXM4" has A100, "A1000" has not.
bool names(std::string_view device, std::string_view part) {
    size_t const at = device.find(part);
    if (at == std::string_view::npos) return false;
    size_t const end = at + part.size();
    return (at == 0 || !continues_word(device[at - 1])) && (end == device.size() || !continues_word(device[end]));
}

}  // namespace

std::optional<double> peak_bf16_flops(std::string_view device) {
    for (Peak const& peak : kPeaks)
        if (names(device, peak.part)) return 1e12 * peak.teraflops;
    return std::nullopt;
}

}  // namespace perigee
