#include "ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace perigee {

namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();
constexpr size_t kLanes = 16;  // independent lanes, so that loops vectorise

double sum_of(LogitWeight const& weight, std::span<float const> logits) {
    constexpr size_t kBlock = 1024;
    double sum = 0;
    for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
        float const* const x = logits.data() + begin;
        size_t const count = std::min(kBlock, logits.size() - begin);
        float lanes[kLanes] = {};
        size_t i = 0;
        for (; i + kLanes <= count; i += kLanes)
            for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += weight(x[i + lane]);
        for (; i < count; ++i) lanes[0] += weight(x[i]);
        for (float const lane : lanes) sum += static_cast<double>(lane);
    }
    return sum;
}

/// The largest logit; NaN if any logit is NaN or +infinity.
float largest(std::span<float const> logits) {
    float best[kLanes];
    int broken[kLanes] = {};
    std::ranges::fill(best, kImpossible);
    float const* const x = logits.data();
    auto const look = [&](size_t lane, float value) {
        best[lane] = value > best[lane] ? value : best[lane];
        broken[lane] |= !(value < -kImpossible);
    };
    size_t i = 0;
    for (; i + kLanes <= logits.size(); i += kLanes)
        for (size_t lane = 0; lane < kLanes; ++lane) look(lane, x[i + lane]);
    for (; i < logits.size(); ++i) look(0, x[i]);
    if (std::ranges::count(broken, 0) < std::ssize(broken)) return std::numeric_limits<float>::quiet_NaN();
    return *std::ranges::max_element(best);
}

struct Candidate {
    float logit = 0;
    int32_t id = 0;
    /// Order of drawing: likelier tokens first, then higher ids.
    bool operator<(Candidate const& other) const { return logit != other.logit ? logit > other.logit : id > other.id; }
};

/// All tokens with logits of at least `least`.
std::vector<Candidate> candidates_of(std::span<float const> logits, float least) {
    std::vector<Candidate> candidates;
    for (size_t i = 0; i < logits.size(); ++i)
        if (logits[i] >= least && logits[i] > kImpossible) candidates.push_back({logits[i], static_cast<int32_t>(i)});
    return candidates;
}

/// Removes tokens less likely than the k-th. Ties with it stay.
void keep_top(std::vector<Candidate>& candidates, int64_t k) {
    if (k >= std::ssize(candidates)) return;
    auto const last = candidates.begin() + k - 1;
    std::ranges::nth_element(candidates, last, std::ranges::greater(), &Candidate::logit);
    std::erase_if(candidates, [least = last->logit](Candidate const& c) { return c.logit < least; });
}

/// The most likely tokens, in drawing order.
struct Candidates {
    std::vector<Candidate> tokens;
    double total = 0;       ///< weight of all tokens that top_p counts
    bool complete = false;  ///< includes every token that may be drawn
};

/// As few candidates as are needed to find the token that `uniform` draws.
Candidates likely_enough(std::span<float const> logits, LogitWeight const& weight, DrawRule const& rule,
                         double uniform) {
    bool const cut = 0 < rule.top_k && rule.top_k < std::ssize(logits);
    double const everything = cut ? 0 : sum_of(weight, logits);
    constexpr double kStep = 4;  // of exponents
    for (double reach = kStep;; reach += kStep) {
        bool const all = -reach <= static_cast<double>(LogitWeight::kLeastExponent);
        Candidates found{candidates_of(logits, weight.best - static_cast<float>(reach * rule.temperature)), everything};
        if (cut) {
            if (!all && std::ssize(found.tokens) < rule.top_k) continue;
            keep_top(found.tokens, rule.top_k);
        }
        double sum = 0;
        for (Candidate const& c : found.tokens) sum += static_cast<double>(weight(c.logit));
        if (cut) found.total = sum;
        bool const nucleus = rule.top_p < 1;
        found.complete = all || cut || (!nucleus && std::exp(-reach) < rule.min_p);
        bool const enough = sum > (nucleus ? rule.top_p : uniform) * found.total;
        if (!found.complete && (!enough || (!nucleus && rule.min_p > 0))) continue;
        std::ranges::sort(found.tokens, std::less());
        return found;
    }
}

/// Draws by inverse transform sampling, likelier tokens first.
int32_t draw(std::span<float const> logits, float best, DrawRule const& rule, double uniform) {
    LogitWeight const weight{best, LogitWeight::scale_of(rule.temperature)};
    Candidates const candidates = likely_enough(logits, weight, rule, uniform);
    std::vector<double> cumulative;
    double sum = 0;
    for (Candidate const& c : candidates.tokens) cumulative.push_back(sum += static_cast<double>(weight(c.logit)));
    size_t kept = cumulative.size();
    if (rule.top_p < 1) {
        // The nucleus ends with the token that reaches top_p. Source: Holtzman et al., "The Curious Case of Neural Text
        // Degeneration", ICLR 2020.
        auto const last = std::ranges::lower_bound(cumulative, rule.top_p * candidates.total);
        kept = std::min(kept, static_cast<size_t>(last - cumulative.begin()) + 1);
    }
    while (kept > 1 && static_cast<double>(weight(candidates.tokens[kept - 1].logit)) < rule.min_p) --kept;
    bool const more = !candidates.complete && rule.top_p == 1;  // other tokens may be drawn, but not by this number
    double const drawn = uniform * (more ? candidates.total : cumulative[kept - 1]);
    auto const chosen = static_cast<size_t>(std::ranges::upper_bound(cumulative, drawn) - cumulative.begin());
    return candidates.tokens[std::min(chosen, kept - 1)].id;
}

/// Logits after the repetition penalty.
std::vector<float> penalised(std::span<float const> logits, std::span<int32_t const> seen, double penalty) {
    std::vector<float> result(logits.begin(), logits.end());
    auto const factor = static_cast<float>(penalty);
    for (int32_t const id : seen) {
        if (id < 0 || id >= std::ssize(result)) continue;
        float& x = result[static_cast<size_t>(id)];
        x = x < 0 ? x * factor : x / factor;
    }
    return result;
}

}  // namespace

int32_t draw_token(std::span<float const> logits, DrawRule const& rule, std::span<int32_t const> seen) {
    PERIGEE_CHECK(!logits.empty(), "a token drawn from no logits");
    std::vector<float> changed;
    if (rule.repetition_penalty != 1 && !seen.empty())
        logits = changed = penalised(logits, seen, rule.repetition_penalty);
    float const best = largest(logits);
    if (std::isnan(best)) fail(Category::numeric, "a logit of token {} is no finite number", rule.index);
    if (best == kImpossible) fail(Category::numeric, "all logits of token {} are -inf", rule.index);
    if (rule.temperature == 0) return static_cast<int32_t>(std::ranges::find(logits, best) - logits.begin());
    return draw(logits, best, rule, rule.random.uniform(static_cast<uint64_t>(rule.index)));
}

double log_sum(std::span<float const> logits) {
    float const best = largest(logits);
    return static_cast<double>(best) + std::log(sum_of({best, 1}, logits));
}

}  // namespace perigee
