// The Llama forward written as its formulas, one number at a time, in fp64: what the model is held against. Shares no
// code with it but the names and places of parameters.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "model/options.h"
#include "parallel/param_spec.h"
#include "tensor/batch.h"

namespace perigee::testing {

class NaiveLlama {
  public:
    using Vector = std::vector<double>;
    using Rows = std::vector<Vector>;

    NaiveLlama(ModelOptions const& options, ParamLayout const& layout, std::vector<double> const& flat)
        : o_(options), layout_(layout), flat_(flat) {}

    /// Logits of every token under full attention.
    Rows logits(Batch const& batch) const {
        Rows rows;
        for (size_t d = 0; d + 1 < batch.cu_seqlens.size(); ++d) {
            auto const begin = static_cast<size_t>(batch.cu_seqlens[d]),
                       end = static_cast<size_t>(batch.cu_seqlens[d + 1]);
            Rows const x = stream(std::vector<int32_t>(batch.ids_T.begin() + std::ptrdiff_t(begin),
                                                       batch.ids_T.begin() + std::ptrdiff_t(end)));
            for (Vector const& token : x)
                rows.push_back(times(o_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
                                     normed(token, "model.norm.weight")));
        }
        return rows;
    }

    static double nll(Vector const& logits, int32_t target) {
        double total = 0;
        for (double l : logits) total += std::exp(l);
        return std::log(total) - logits[static_cast<size_t>(target)];
    }

    /// Sum of weight * nll under full attention.
    double loss(Batch const& batch) const {
        Rows const all = logits(batch);
        double sum = 0;
        for (size_t t = 0; t < all.size(); ++t) sum += batch.weights_T[t] * nll(all[t], batch.targets_T[t]);
        return sum;
    }

  private:
    double const* param(std::string const& name) const { return flat_.data() + layout_.entry(name).offset; }

    Vector times(std::string const& name, Vector const& x) const {
        Shape const shape = layout_.entry(name).local;
        Vector y(static_cast<size_t>(shape[0]));
        for (size_t i = 0; i < y.size(); ++i)
            for (size_t j = 0; j < x.size(); ++j) y[i] += param(name)[i * x.size() + j] * x[j];
        return y;
    }
    Vector normed(Vector x, std::string const& name) const {
        double squares = 0;
        for (double v : x) squares += v * v;
        double const rms = std::sqrt(squares / static_cast<double>(x.size()) + o_.rms_norm_eps);
        for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] / rms * param(name)[i];
        return x;
    }

    /// The key at `position` after the key convolution, before bias, norm and RoPE. x: normalised inputs up to it.
    Vector convolved(std::string const& layer, Rows const& x, size_t position) const {
        std::string const name = layer + "self_attn.k_proj.weight";
        Vector y = times(name, x[position]);
        Vector sum(y.size());
        auto const taps = static_cast<size_t>(o_.key_conv);
        for (size_t l = 0; l < taps && l <= position; ++l) {
            Vector const key = times(name, x[position - l]);
            for (size_t c = 0; c < sum.size(); ++c)
                sum[c] += param(layer + "self_attn.k_conv.weight")[c * taps + l] * key[c];
        }
        for (size_t c = 0; c < y.size(); ++c) y[c] += sum[c] / (1 + std::exp(-sum[c]));
        return y;
    }

    /// Heads of one projection of the token at `position`; queries and keys are normed and rotated.
    Rows heads(std::string const& layer, char which, Rows const& stream, size_t at) const {
        std::string const name = layer + "self_attn." + which;
        auto const position = static_cast<double>(at);
        Vector y = which == 'k' ? convolved(layer, stream, at) : times(name + "_proj.weight", stream[at]);
        if (o_.qkv_bias)
            for (size_t i = 0; i < y.size(); ++i) y[i] += param(name + "_proj.bias")[i];
        auto const size = static_cast<size_t>(o_.head_size());
        Rows all;
        for (size_t h = 0; h < y.size() / size; ++h) {
            Vector head(y.begin() + std::ptrdiff_t(h * size), y.begin() + std::ptrdiff_t((h + 1) * size));
            if (which != 'v') {
                if (o_.qk_norm) head = normed(head, name + "_norm.weight");
                Vector const plain = head;
                for (size_t i = 0; i < size; ++i) {
                    size_t const pair = i % (size / 2);
                    double const angle = position * std::pow(o_.rope_theta, -2.0 * static_cast<double>(pair) /
                                                                                static_cast<double>(size));
                    double const other = i < size / 2 ? -plain[i + size / 2] : plain[i - size / 2];
                    head[i] = plain[i] * std::cos(angle) + other * std::sin(angle);
                }
            }
            all.push_back(head);
        }
        return all;
    }

    Vector attention(std::vector<Rows> const& q, std::vector<Rows> const& k, std::vector<Rows> const& v,
                     size_t t) const {
        Vector out;
        for (size_t h = 0; h < q[t].size(); ++h) {
            size_t const g = h * k[t].size() / q[t].size();
            Vector mean(q[t][h].size());
            double total = 0;
            for (size_t s = 0; s <= t; ++s) {
                double score = 0;
                for (size_t i = 0; i < mean.size(); ++i) score += q[t][h][i] * k[s][g][i];
                double const p = std::exp(score / std::sqrt(static_cast<double>(mean.size())));
                total += p;
                for (size_t i = 0; i < mean.size(); ++i) mean[i] += p * v[s][g][i];
            }
            for (double m : mean) out.push_back(m / total);
        }
        return out;
    }

    /// The residual stream of one document after the last layer.
    Rows stream(std::vector<int32_t> const& ids) const {
        Rows x;
        auto const width = o_.hidden_size;
        for (int32_t id : ids) {
            double const* const row = param("model.embed_tokens.weight") + id * width;
            x.emplace_back(row, row + width);
        }
        for (int64_t index = 0; index < o_.num_hidden_layers; ++index) {
            std::string const layer = "model.layers." + std::to_string(index) + ".";
            std::vector<Rows> q, k, v;
            Rows n;
            for (Vector const& token : x) n.push_back(normed(token, layer + "input_layernorm.weight"));
            for (size_t t = 0; t < x.size(); ++t) {
                q.push_back(heads(layer, 'q', n, t));
                k.push_back(heads(layer, 'k', n, t));
                v.push_back(heads(layer, 'v', n, t));
            }
            for (size_t t = 0; t < x.size(); ++t) {
                add(x[t], times(layer + "self_attn.o_proj.weight", attention(q, k, v, t)));
                Vector const n = normed(x[t], layer + "post_attention_layernorm.weight");
                Vector gate = times(layer + "mlp.gate_proj.weight", n);
                Vector const up = times(layer + "mlp.up_proj.weight", n);
                for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
                add(x[t], times(layer + "mlp.down_proj.weight", gate));
            }
        }
        return x;
    }
    static void add(Vector& x, Vector const& y) {
        for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    }

    ModelOptions const& o_;
    ParamLayout const& layout_;
    std::vector<double> const& flat_;
};

}  // namespace perigee::testing
