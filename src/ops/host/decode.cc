#include "ops/host/decode.h"

#include <algorithm>
#include <limits>

#include "ops/host/best_blocks.h"
#include "ops/host/tiles.h"
#include "ops/sampling.h"

namespace perigee::host {
namespace {

constexpr int64_t kSplitKeys = 128;  ///< as decode_attend's description says

/// The pages of one sequence.
template <class Real>
class Sequence {
  public:
    Sequence(CachePages const& pages, int64_t s)
        : page_size_(pages.page_size()),
          width_(pages.k_NPGK.shape[2] * pages.k_NPGK.shape[3]),
          block_pages_(pages.block_size / page_size_),
          table_(pages.table_SM.as<int32_t>() + s * pages.table_SM[1]),
          k_(pages.k_NPGK.as<Real>()),
          v_(pages.v_NPGK.as<Real>()),
          means_(pages.means_NGK.as<Real>()) {}

    Real* key(int64_t token) const { return k_ + row(token) * width_; }
    Real* value(int64_t token) const { return v_ + row(token) * width_; }
    Real* mean(int64_t block) const { return means_ + table_[block * block_pages_] * width_; }
    int64_t width() const { return width_; }  ///< G K

    void pool(int64_t block, int64_t block_size) const {
        mean_of_rows(mean(block), width_, block_size, [&](int64_t row) { return key(block * block_size + row); });
    }

  private:
    int64_t row(int64_t token) const { return table_[token / page_size_] * page_size_ + token % page_size_; }

    int64_t page_size_, width_, block_pages_;
    int32_t const* table_;
    Real *k_, *v_, *means_;
};

template <SelectsByPosition Rule>
void select_by_position(DecodeSelect const& args, Rule const& rule) {
    int64_t const S = args.q_SHK[0], H = args.q_SHK[1], slots = args.chosen_SHS[2];
    auto const* const lengths = args.lengths_S.as<int32_t>();
    auto* const chosen = args.chosen_SHS.as<int32_t>();
    for (int64_t s = 0; s < S; ++s)
        for (int64_t h = 0; h < H && lengths[s] >= 0; ++h)
            fill_slots(rule,
                       {.head = args.first_head + h, .position = lengths[s], .block = lengths[s] / rule.block_size},
                       chosen + (s * H + h) * slots);
}

/// The gate of one sequence. With per_group, a group's first head chooses for all by the sum of the group's queries.
template <class Real>
void select_by_gate(DecodeSelect const& args, MobaOptions const& gate, int64_t s) {
    int64_t const H = args.q_SHK[1], K = args.q_SHK[2], G = args.pages.k_NPGK.shape[2], R = H / G;
    int64_t const slots = args.chosen_SHS[2], current = args.lengths_S.as<int32_t>()[s] / gate.block_size;
    int64_t const shared = gate.selection == MobaSelection::per_group ? R : 1;
    Sequence<Real> const sequence(args.pages, s);
    auto const* const q = args.q_SHK.as<Real>() + s * H * K;
    auto* const chosen = args.chosen_SHS.as<int32_t>() + s * H * slots;
    Chooser<Real> chooser(slots, gate);
    std::vector<Real> means(current * K), scores(current), query(K);
    for (int64_t h = 0; h < H; h += shared) {
        if (h % R == 0)
            for (int64_t block = 0; block < current; ++block)
                std::copy_n(sequence.mean(block) + h / R * K, K, means.data() + block * K);
        sum_group(q + h * K, 1, 0, shared, K, query.data());
        if (current > 0)
            gemm<Real>({.c = {scores.data(), current},
                        .a = {query.data(), K},
                        .b = {means.data(), K},
                        .m = 1,
                        .n = current,
                        .k = K,
                        .transpose_b = true});
        chooser.choose(scores.data(), current, chosen + h * slots);
        for (int64_t j = 1; j < shared; ++j) std::copy_n(chosen + h * slots, slots, chosen + (h + j) * slots);
    }
}

/// Attention of one query head: results of splits of the keys, and their merge.
template <class Real>
class Attention {
  public:
    explicit Attention(int64_t head_dim) : dim_(head_dim), tile_(head_dim), k_(kSplitKeys * dim_), v_(k_.size()) {}

    void start() { o_.clear(), lse_.clear(); }

    /// Keys [begin, end) of a head whose rows start at column `column` of the sequence's.
    void absorb(Sequence<Real> const& sequence, int64_t column, int64_t begin, int64_t end, Real const* q, Real scale) {
        for (int64_t token = begin; token < end; ++token) {
            std::copy_n(sequence.key(token) + column, dim_, k_.data() + (token - begin) * dim_);
            std::copy_n(sequence.value(token) + column, dim_, v_.data() + (token - begin) * dim_);
        }
        int64_t const keys = end - begin;
        tile_.start();
        tile_.absorb({.rows = 1, .keys = keys, .visible = keys}, scale, {q, dim_}, {k_.data(), dim_},
                     {v_.data(), dim_});
        o_.resize(o_.size() + dim_);
        lse_.push_back(tile_.finish(0, o_.data() + o_.size() - dim_));
    }

    /// Zeros where there are only scores of -infinity.
    void merge(Real* o) const {
        std::fill_n(o, dim_, Real{0});
        constexpr Real kNone = -std::numeric_limits<Real>::infinity();
        Real top = kNone, sum = 0;
        for (Real const lse : lse_) top = std::max(top, lse);
        if (top == kNone) return;
        for (Real const lse : lse_) sum += std::exp(lse - top);
        for (size_t split = 0; split < lse_.size(); ++split) {
            Real const weight = std::exp(lse_[split] - top) / sum;
            for (int64_t i = 0; i < dim_; ++i) o[i] += weight * o_[split * dim_ + i];
        }
    }

  private:
    int64_t dim_;
    ForwardTile<Real> tile_;
    std::vector<Real> k_, v_;
    std::vector<Real> o_, lse_;  ///< of the splits so far
};

/// Every choice is of complete blocks before the local one.
void check_chosen(DecodeAttend const& args, ConstView chosen_SHS) {
    int64_t const per_row = chosen_SHS[1] * chosen_SHS[2];
    for (int64_t i = 0; i < chosen_SHS.size(); ++i) {
        int32_t const block = chosen_SHS.as<int32_t>()[i], length = args.lengths_S.as<int32_t>()[i / per_row];
        PERIGEE_CHECK(length < 0 || block < length / args.pages.block_size, "row {} chose block {} at position {}",
                      i / per_row, block, length);
    }
}

/// Attention of row s and head h over the blocks of `chosen` and the local block, or over all.
template <class Real>
void attend(DecodeAttend const& args, int64_t s, int64_t h, std::span<int32_t const> chosen, bool all,
            Attention<Real>& attention) {
    int64_t const H = args.q_SHK[1], K = args.q_SHK[2], R = H / args.pages.k_NPGK.shape[2];
    int64_t const B = args.pages.block_size, end = args.lengths_S.as<int32_t>()[s] + 1, current = (end - 1) / B;
    Real* const o = args.o_SHK.as<Real>() + (s * H + h) * K;
    if (end == 0) return static_cast<void>(std::fill_n(o, K, Real{0}));
    Sequence<Real> const sequence(args.pages, s);
    Real const* const q = args.q_SHK.as<Real>() + (s * H + h) * K;
    auto const add_block = [&](int64_t block) {
        int64_t const block_end = std::min(block * B + B, end);
        for (int64_t begin = block * B; begin < block_end; begin += kSplitKeys)
            attention.absorb(sequence, h / R * K, begin, std::min(begin + kSplitKeys, block_end), q,
                             static_cast<Real>(args.scale));
    };
    attention.start();
    for (int64_t block = 0; all && block < current; ++block) add_block(block);
    for (int32_t const block : chosen) {
        if (block < 0) break;
        add_block(block);
    }
    add_block(current);
    attention.merge(o);
}

template <class Real>
void pool_completed(DecodeAttend const& args) {
    auto const* const lengths = args.lengths_S.as<int32_t>();
    int64_t const B = args.pages.block_size;
    for (int64_t s = 0; s < args.lengths_S.size(); ++s)
        if (lengths[s] >= 0 && (lengths[s] + 1) % B == 0) Sequence<Real>(args.pages, s).pool(lengths[s] / B, B);
}

}  // namespace

template <class Real>
void kv_append(KvAppend const& args) {
    auto const* const lengths = args.lengths_S.as<int32_t>();
    for (int64_t s = 0; s < args.lengths_S.size(); ++s) {
        if (lengths[s] < 0) continue;
        Sequence<Real> const sequence(args.pages, s);
        int64_t const token = lengths[s], width = sequence.width(), B = args.pages.block_size;
        std::copy_n(args.k_SGK.as<Real>() + s * width, width, sequence.key(token));
        std::copy_n(args.v_SGK.as<Real>() + s * width, width, sequence.value(token));
        if ((token + 1) % B == 0) sequence.pool(token / B, B);
    }
}

template <class Real>
void pool_blocks(PoolBlocks const& args) {
    Sequence<Real> const sequence(args.pages, 0);
#pragma omp parallel for
    for (int64_t block = args.first; block < args.first + args.count; ++block)
        sequence.pool(block, args.pages.block_size);
}

template <class Real>
void decode_select(DecodeSelect const& args) {
    if (args.chosen_SHS.size() == 0) return;
    std::fill_n(args.chosen_SHS.as<int32_t>(), args.chosen_SHS.size(), -1);
    std::visit(
        [&]<class Rule>(Rule const& rule) {
            if constexpr (SelectsByPosition<Rule>)
                select_by_position(args, rule);
            else if constexpr (std::is_same_v<Rule, MobaOptions>) {
#pragma omp parallel for schedule(dynamic)
                for (int64_t s = 0; s < args.q_SHK[0]; ++s)
                    if (args.lengths_S.as<int32_t>()[s] >= 0) select_by_gate<Real>(args, rule, s);
            } else
                static_assert(std::is_same_v<Rule, FullAttention>, "this rule needs a case here");
        },
        args.selection);
}

template <class Real>
void decode_attend(DecodeAttend const& args) {
    auto const* const sparse = std::get_if<BlockSparse>(&args.attended);
    int64_t const S = args.q_SHK[0], H = args.q_SHK[1], slots = sparse != nullptr ? sparse->budget.slots() : 0;
    auto const* const chosen = slots > 0 ? sparse->chosen_THS.as<int32_t>() : nullptr;
    if (slots > 0) check_chosen(args, sparse->chosen_THS);
    if (args.pools) pool_completed<Real>(args);
#pragma omp parallel
    {
        Attention<Real> attention(args.q_SHK[2]);
#pragma omp for schedule(dynamic)
        for (int64_t row = 0; row < S * H; ++row) {
            std::span<int32_t const> its;
            if (slots > 0) its = {chosen + row * slots, static_cast<size_t>(slots)};
            attend<Real>(args, row / H, row % H, its, sparse == nullptr, attention);
        }
    }
}

template <class Real>
void sample_tokens(SampleTokens const& args) {
    auto const* const rules = reinterpret_cast<DrawRule const*>(args.rules_SB.as<uint8_t>());
    for (int64_t s = 0; s < args.ids_S.size(); ++s) {
        int32_t& id = args.ids_S.as<int32_t>()[s];
        id = -1;
        if (rules[s].index < 0) continue;
        auto const* const logits = args.logits_SV.as<Real>() + s * args.logits_SV[1];
        std::vector<float> const narrow(logits, logits + args.allowed);
        int32_t* const seen = args.seen_SW.empty() ? nullptr : args.seen_SW.as<int32_t>() + s * args.seen_SW[1];
        std::vector<int32_t> ids;
        for (int32_t i = 0; seen != nullptr && i < args.allowed; ++i)
            if ((seen[i / 32] >> i % 32 & 1) != 0) ids.push_back(i);
        id = draw_token(narrow, rules[s], ids);
        if (seen != nullptr) seen[id / 32] |= static_cast<int32_t>(1u << id % 32);
    }
}

template void sample_tokens<float>(SampleTokens const&);
template void sample_tokens<double>(SampleTokens const&);
template void kv_append<float>(KvAppend const&);
template void kv_append<double>(KvAppend const&);
template void pool_blocks<float>(PoolBlocks const&);
template void pool_blocks<double>(PoolBlocks const&);
template void decode_select<float>(DecodeSelect const&);
template void decode_select<double>(DecodeSelect const&);
template void decode_attend<float>(DecodeAttend const&);
template void decode_attend<double>(DecodeAttend const&);

}  // namespace perigee::host
