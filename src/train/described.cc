#include "train/described.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/log.h"
#include "checkpoint/manifest.h"
#include "hf/schema_json.h"
#include "io/sha256.h"
#include "train/session.h"
#include "train/snapshot.h"

namespace perigee {

namespace {

using Json = nlohmann::ordered_json;

/// The schema points into `options`, which must outlive it.
Schema schema_of(RunOptions& options) {
    Schema schema;
    describe(schema, options);
    return schema;
}

Json json_of(RunOptions options) { return Json::parse(write_json(schema_of(options))); }

Field const* find(Schema const& schema, std::string const& key) {
    auto const found = std::ranges::find(schema.fields(), key, &Field::key);
    return found == schema.fields().end() ? nullptr : &*found;
}

/// Without the keys that the schema does not have.
Json known(Schema const& schema, Json const& json) {
    if (!json.is_object()) return json;
    Json kept = Json::object();
    for (auto const& [key, value] : json.items()) {
        Field const* const field = find(schema, key);
        if (field == nullptr) continue;
        if (auto const* section = std::get_if<Field::Section>(&field->target)) {
            kept[key] = known(*section->schema, value);
        } else if (auto const* list = std::get_if<Field::List>(&field->target); list != nullptr && value.is_array()) {
            kept[key] = Json::array();
            for (Json const& item : value) kept[key].push_back(known(list->example(), item));
        } else {
            kept[key] = value;
        }
    }
    return kept;
}

/// The parts that define the model.
Json model_part(Schema const& schema, Json const& json) {
    Json kept = Json::object();
    for (Field const& field : schema.fields()) {
        if (field.alias) continue;
        auto const* const section = std::get_if<Field::Section>(&field.target);
        if (field.defines_model)
            kept[field.key] = json.at(field.key);
        else if (section != nullptr)
            kept[field.key] = model_part(*section->schema, json.at(field.key));
    }
    return kept;
}

void collect(Schema const& schema, std::string const& path, Json const& before, Json const& now, bool model,
             std::vector<OptionChange>& out) {
    for (Field const& field : schema.fields()) {
        if (field.alias) continue;
        std::string const key = path.empty() ? field.key : fmt::format("{}.{}", path, field.key);
        bool const defines = model || field.defines_model;
        Json const &a = before.at(field.key), &b = now.at(field.key);
        if (auto const* section = std::get_if<Field::Section>(&field.target))
            collect(*section->schema, key, a, b, defines, out);
        else if (a != b)
            out.push_back({key, a.dump(), b.dump(), defines});
    }
}

/// The same model in one way of writing: what is left open is filled in, what has no effect is as by default.
RunOptions normalised(RunOptions o) {
    o.model.num_key_value_heads = o.model.kv_heads();
    o.model.head_dim = o.model.head_size();
    o.model.rope_scaling = normalised(o.model.rope_scaling, o.model.max_position_embeddings);
    MobaOptions& moba = o.attention.moba;
    if (o.attention.selection != MobaOptions::kName) moba = {.block_size = moba.block_size, .top_k = moba.top_k};
    return o;
}

bool has_blocks(AttentionOptions const& o) {
    return o.kind == AttentionKind::moba ||
           std::ranges::count(o.schedule, AttentionKind::moba, &AttentionSwitch::kind) > 0;
}

/// Full attention whose other options, which have no effect, are as in `other`.
AttentionOptions full_as(AttentionOptions other) {
    other.kind = AttentionKind::full;
    other.schedule.clear();
    return other;
}

/// Lines like those of to_string(), each after a line's end.
std::string data_changes(std::map<std::string, std::string> const& before,
                         std::map<std::string, std::string> const& now) {
    std::string lines;
    for (auto const& [key, value] : now) {
        auto const then = before.find(key);
        if (then != before.end() && then->second != value)
            lines += fmt::format("\n  contents of data.{}: {} -> {}", key, then->second, value);
    }
    return lines;
}

/// How the tensors of a checkpoint fit the parameters that a run trains.
struct Fit {
    std::string misfit;                 ///< the first that is missing or has another shape; empty: all fit
    std::vector<std::string> left_out;  ///< weights that this model does not have
};
Fit fit(Checkpoint const& then, RunOptions const& now) {
    Fit found;
    std::set<std::string> wanted;
    for (ParamSpec const& spec : split(params_of(now)).trained) {
        wanted.insert(spec.name);
        auto const stored = then.tensors().find(spec.name);
        if (!found.misfit.empty() || (stored != then.tensors().end() && stored->second == spec.shape)) continue;
        found.misfit = stored == then.tensors().end() ? fmt::format("it has no `{}`", spec.name)
                                                      : fmt::format("`{}` is {} there and {} here", spec.name,
                                                                    stored->second.str(), spec.shape.str());
    }
    for (auto const& [name, shape] : then.tensors())
        if (!name.starts_with(kFirstMoment) && !name.starts_with(kSecondMoment) && !wanted.contains(name))
            found.left_out.push_back(name);
    return found;
}

/// What else may be done than to give the checkpoint's values.
std::string advice(Checkpoint const& then, Fit const& tensors, bool others_trained) {
    bool const whole = !then.state().info.contains(RunState::kBase);
    if (others_trained)
        return fmt::format(". Which weights are trained cannot change within a run{}",
                           whole ? fmt::format(": start a new one with model.init_from={} and another output_dir",
                                               then.folder().string())
                                 : "");
    if (!tensors.misfit.empty()) return fmt::format(". These weights do not fit the other model: {}", tensors.misfit);
    return ", or train the other model from these weights with checkpoint.allow_model_change=true";
}

}  // namespace

std::string options_text(RunOptions const& options) { return json_of(options).dump(); }

std::optional<RunOptions> stored_options(RunState const& state) {
    Json const json = Json::parse(state.options, nullptr, /*allow_exceptions=*/false);
    if (state.options.empty() || !json.is_object()) return std::nullopt;
    RunOptions options;
    Schema const schema = schema_of(options);
    try {
        read_json(schema, known(schema, json).dump(), "the checkpoint's options");
    } catch (Error const& e) {
        log::warn("what the checkpoint says of its model is not used: {}", e.what());
        return std::nullopt;
    }
    return options;
}

std::optional<RunOptions> options_at_step(RunState const& state) {
    auto stored = stored_options(state);
    if (stored) stored->attention = attention_at(stored->attention, state.step);
    return stored;
}

std::optional<RunOptions> options_in(FileSystem& files, Path const& folder) {
    Path const manifest = folder / kManifestName;
    if (!files.exists(manifest)) return std::nullopt;
    return options_at_step(Manifest::parse(files.read_text(manifest, kMaxManifestBytes), manifest.string()).state);
}

std::string held_out_data(RunOptions const& options, std::map<std::string, std::string> const& contents) {
    DataOptions const& data = options.data;
    std::string text =
        fmt::format("{} samples of {}, packing {}, mask {}, fraction {}", options.eval.samples, data.sequence_length,
                    static_cast<int>(data.packing), data.document_mask, data.validation_fraction);
    if (data.mock_data)
        text += fmt::format(", made up {} {} {} {} {} {}", options.seed, options.model.vocab_size,
                            static_cast<int>(data.mock.task), data.mock.topic_tokens, data.mock.facts_per_topic,
                            data.mock.questions);
    char const* const held_out = data.validation.empty() ? "train." : "validation.";
    for (auto const& [key, found] : contents)
        if (key.starts_with(held_out)) text += ", " + found;
    constexpr size_t kDigits = 16;
    return sha256(text).substr(0, kDigits);
}

std::vector<OptionChange> changes(RunOptions const& before, RunOptions const& now) {
    RunOptions a = normalised(before), b = normalised(now);
    if (!has_blocks(a.attention)) a.attention = full_as(b.attention);
    if (!has_blocks(b.attention)) b.attention = full_as(a.attention);
    RunOptions like;
    std::vector<OptionChange> found;
    collect(schema_of(like), "", json_of(a), json_of(b), false, found);
    return found;
}

std::vector<OptionChange> model_changes(RunOptions const& before, RunOptions const& now) {
    auto found = changes(before, now);
    std::erase_if(found, [](OptionChange const& change) { return !change.defines_model; });
    return found;
}

std::string to_string(std::vector<OptionChange> const& changes) {
    std::string text;
    for (OptionChange const& c : changes)
        text += fmt::format("{}  {}: {} -> {}", text.empty() ? "" : "\n", c.key, c.before, c.now);
    return text;
}

void check_alike(RunOptions options, HostComm& world) {
    options.threads = 0;
    RunState first;
    first.options = world.broadcast_text(options_text(options), 0);
    auto const its = stored_options(first);
    std::string const mine = its ? to_string(changes(*its, options)) : "  (they cannot be read)";
    auto const all = world.gather_text(mine);
    for (size_t rank = 0; rank < all.size(); ++rank)
        if (!all[rank].empty())
            fail(Category::config, "rank {} has other options than rank 0, whose value comes first:\n{}", rank,
                 all[rank]);
}

void take_model(RunOptions& to, RunOptions const& from) {
    Schema const schema = schema_of(to);
    RunOptions filled = from;
    filled.model.rope_scaling = normalised(from.model.rope_scaling, from.model.max_position_embeddings);
    read_json(schema, model_part(schema, json_of(std::move(filled))).dump(), "the checkpoint's options");
    if (to.data.tokenizer == DataOptions{}.tokenizer) to.data.tokenizer = from.data.tokenizer;
}

std::vector<std::string> compare(Checkpoint const& then, RunOptions const& now,
                                 std::map<std::string, std::string> const& data) {
    auto const before = stored_options(then.state());
    if (!before)
        return {
            fmt::format("{} does not say which options and data it was written with: whether they and the model "
                        "are the same cannot be checked",
                        then.folder().string())};
    auto const model = model_changes(*before, now);
    Fit const tensors = model.empty() ? Fit{} : fit(then, now);
    bool const others_trained = std::ranges::any_of(model, [](OptionChange const& change) {
        return change.key == "train.freeze" || change.key.starts_with("lora.");
    });
    if (!model.empty() && (!now.checkpoint.allow_model_change || !tensors.misfit.empty() || others_trained))
        fail(Category::config,
             "{} is of another model; these keys differ, the checkpoint's value first:\n{}\nGive them the checkpoint's "
             "values{}",
             then.folder().string(), to_string(model), advice(then, tensors, others_trained));
    std::vector<std::string> sentences;
    if (!tensors.left_out.empty())
        sentences.push_back(fmt::format(
            "{} of the checkpoint's {} weight tensors do not exist in this model and are ignored, the first is "
            "`{}`",
            tensors.left_out.size(), tensors.left_out.size() + split(params_of(now)).trained.size(),
            tensors.left_out.front()));
    auto const different = changes(*before, now);
    std::string const options = different.empty() ? "" : fmt::format("\n{}", to_string(different));
    if (std::string const both = options + data_changes(then.state().data, data); !both.empty())
        sentences.push_back(
            fmt::format("options or data differ from the checkpoint's, whose value comes first:{}", both));
    auto const lr = [step = then.state().step](RunOptions const& o) {
        return learning_rate(o.schedule, o.optimizer.lr, step, o.train.steps);
    };
    constexpr double kLeastRise = 1.01;  // a smaller one may not show in the three digits of the sentence
    if (lr(now) > kLeastRise * lr(*before))
        sentences.push_back(fmt::format(
            "the learning rate rises again: {:.3g} at step {}, where the checkpoint's options, with train.steps {}, "
            "have {:.3g}",
            lr(now), then.state().step + 1, before->train.steps, lr(*before)));
    return sentences;
}

}  // namespace perigee
