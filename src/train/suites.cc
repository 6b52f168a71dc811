#include "train/suites.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "eval/mass.h"
#include "eval/position.h"
#include "eval/tasks.h"
#include "train/failure.h"
#include "train/scorers.h"

namespace perigee {

std::string attention_name(std::span<Selection const> selections) {
    auto const sparse = std::ranges::find_if_not(selections, is_full);
    if (sparse == selections.end()) return FullAttention::kName;
    std::string name = std::visit([](auto const& rule) -> std::string { return rule.kName; }, *sparse);
    if (name == MobaOptions::kName) name = "moba";
    auto const full = std::ranges::count_if(selections, is_full);
    return full > 0 ? fmt::format("{} + {} full", name, full) : name;
}

namespace {

/// What all suites share.
struct SuiteRun {
    Session& session;
    int64_t step;
    std::span<Selection const> selections;
    std::function<void()> const& before_forward;
    SuiteResults& results;

    SuiteOptions const& options() const { return session.options().eval.suites; }
    Measurement measurement(Suite suite) const {
        return {.suite = to_string(suite), .step = step, .attention = attention_name(selections)};
    }
};

/// The run's attention, and full attention where that is another.
std::vector<std::vector<Selection>> arms_of(std::span<Selection const> selections) {
    std::vector<std::vector<Selection>> arms = {{selections.begin(), selections.end()}};
    if (!std::ranges::all_of(selections, is_full)) arms.emplace_back(selections.size(), FullAttention{});
    return arms;
}

/// Of one sample under one kind of attention.
void append_measurements(SuiteRun const& run, Measurement sample, PositionSums& sums, bool bytes_known) {
    for (Repeat const repeat : {Repeat::fresh, Repeat::near, Repeat::far})
        for (size_t bin = 0; bin < sums.edges().size(); ++bin) {
            LossSum const& sum = sums.at(repeat, bin);
            if (sum.weight == 0) continue;
            sample.task = to_string(repeat);
            sample.begin = bin == 0 ? 0 : sums.edges()[bin - 1];
            sample.end = sums.edges()[bin];
            sample.weight = sum.weight;
            sample.nll = sum.nll;
            if (bytes_known) sample.bytes = sum.bytes;
            run.results.measurements.push_back(sample);
        }
}

bool all_known(Batch const& batch, std::vector<int32_t> const& token_bytes) {
    return std::ranges::all_of(batch.targets_T, [&](int32_t id) { return id < std::ssize(token_bytes); });
}

void run_position(SuiteRun const& run) {
    Session& session = run.session;
    Mesh const& mesh = session.mesh();
    RunOptions const& options = session.options();
    auto const data = session.open(Split::validation);
    auto const arms = arms_of(run.selections);
    auto const edges = position_edges(run.options(), options.data.sequence_length);
    int64_t const samples = std::min(options.eval.samples, data->samples_per_epoch());
    std::vector<int32_t> const& bytes = session.token_bytes();
    bool unknown = bytes.empty();
    std::vector<PositionSums> sums(static_cast<size_t>(samples) * arms.size(), PositionSums(edges));
    for (int64_t sample = mesh.dp_rank(); sample < samples; sample += mesh.shape().dp) {
        Batch const batch = make_batch(*data, sample, 1);
        unknown |= !all_known(batch, bytes);
        auto const repeat = repeats(batch, run.options().far_context, run.options().far_distance);
        for (size_t arm = 0; arm < arms.size(); ++arm) {
            run.before_forward();
            auto const scores = session.model().scores(session.model_weights(), batch, arms[arm], 0, session.arena());
            session.arena().settle();
            sums[static_cast<size_t>(sample) * arms.size() + arm].add(batch, repeat, scores.nll, bytes);
        }
    }
    unknown = mesh.dp().host().any(unknown);
    for (size_t i = 0; i < sums.size(); ++i) {
        std::vector<LossSum>& all = sums[i].all();  // zeros, but on the ranks that had this sample
        static_assert(sizeof(LossSum) == 3 * sizeof(double));
        mesh.dp().host().all_reduce(TensorView(reinterpret_cast<double*>(all.data()), {3 * std::ssize(all)}));
        Measurement measurement = run.measurement(Suite::position);
        measurement.attention = attention_name(arms[i % arms.size()]);
        measurement.length = options.data.sequence_length;
        measurement.number = static_cast<int64_t>(i / arms.size());
        append_measurements(run, std::move(measurement), sums[i], !unknown);
    }
    if (run.results.measurements.empty())
        fail(Category::data, "suite position: no token of the first {} held-out samples carries loss", samples);
}

/// A rule in every layer.
struct NamedRule {
    std::string name;
    std::vector<Selection> of_layers;
};
/// The rules that suite mass compares, under the budget of `attention`.
std::vector<NamedRule> compared_rules(RunOptions const& options) {
    AttentionOptions attention = options.attention;
    attention.kind = AttentionKind::moba, attention.full_layers = {}, attention.schedule = {};
    attention.moba.force_first = false;
    std::vector<NamedRule> rules;
    auto const add = [&](std::string const& name, char const* rule) {
        attention.selection = rule;
        rules.push_back({name, layer_selections(attention, options.model.num_hidden_layers, 0,
                                                static_cast<uint64_t>(options.seed))});
    };
    add(MobaOptions::kName, MobaOptions::kName);
    attention.moba.force_first = attention.moba.top_k >= MobaOptions::kLeastForced;
    if (attention.moba.force_first) add("gate_first", MobaOptions::kName);
    for (char const* const rule : {NearestBlocks::kName, SinkNearestBlocks::kName, RandomBlocks::kName})
        add(rule, rule);
    return rules;
}

void run_mass(SuiteRun const& run) {
    Session& session = run.session;
    Mesh const& mesh = session.mesh();
    RunOptions const& options = session.options();
    size_t const before = run.results.measurements.size();
    auto const data = session.open(Split::validation);
    auto const rules = compared_rules(options);
    BlockBudget const budget = budget_of(rules.front().of_layers.front()).value();
    int64_t const samples = std::min(options.eval.samples, data->samples_per_epoch());
    std::vector<std::string> names = {"local"};
    for (NamedRule const& rule : rules) names.push_back(rule.name);
    names.emplace_back("best");
    auto const layers = static_cast<size_t>(options.model.num_hidden_layers), columns = 1 + names.size();
    std::vector<double> sums(static_cast<size_t>(samples) * layers * columns);  // pairs, then shares
    MassMeter meter;
    for (int64_t sample = mesh.dp_rank(); sample < samples; sample += mesh.shape().dp) {
        Batch const batch = make_batch(*data, sample, 1);
        auto const queries = choosing_queries(batch, budget, run.options().queries);
        double* row = sums.data() + static_cast<size_t>(sample) * layers * columns;
        auto const measure = [&](int64_t layer, AttentionInputs const& inputs) {
            run.before_forward();  // a layer may take as long as a forward
            std::vector<Selection> of_layer;
            for (NamedRule const& rule : rules) of_layer.push_back(rule.of_layers[static_cast<size_t>(layer)]);
            row[0] = static_cast<double>(std::ssize(queries) * inputs.q_shape[1]);
            std::ranges::copy(meter.measure(inputs, batch.cu_seqlens, queries, of_layer, budget), row + 1);
            row += columns;
        };
        run.before_forward();
        session.model().attention_inputs(session.model_weights(), batch, run.selections, session.arena(), measure);
        session.arena().settle();
    }
    for (HostComm* const ranks : {&mesh.tp().host(), &mesh.dp().host()})
        ranks->all_reduce(TensorView(sums.data(), {std::ssize(sums)}));
    for (size_t i = 0; i < static_cast<size_t>(samples) * layers; ++i) {
        double const* const row = sums.data() + i * columns;
        if (row[0] == 0) continue;  // a sample without a query that has to choose
        Measurement m = run.measurement(Suite::mass);
        m.length = options.data.sequence_length;
        m.number = static_cast<int64_t>(i / layers), m.layer = static_cast<int64_t>(i % layers);
        m.weight = row[0], m.nll = std::numeric_limits<double>::quiet_NaN();
        for (size_t name = 0; name < names.size(); ++name) {
            m.task = names[name], m.mass = row[1 + name];
            run.results.measurements.push_back(m);
        }
    }
    if (run.results.measurements.size() == before)
        fail(
            Category::config,
            "suite mass: no token with loss in the first {} held-out samples has more than {} x {} tokens before it in "
            "its document, so all blocks are chosen",
            samples, budget.top_k, budget.block_size);
}

/// Held-out text without special tokens, a few times as much as the longest item takes; made-up sentences where there
/// is none.
std::vector<int32_t> read_filler(Session const& session, Tokenizer const& tokenizer, Encoder const& encode,
                                 int64_t longest) {
    RunOptions const& options = session.options();
    constexpr int64_t kEnough = 4;
    if (options.data.mock_data || !has_validation(options.data))
        return made_up_filler(encode, static_cast<uint64_t>(options.seed), kEnough * longest);
    auto const data = session.open(Split::validation);
    std::vector<int32_t> filler;
    for (int64_t sample = 0; sample < data->samples_per_epoch() && std::ssize(filler) < kEnough * longest; ++sample) {
        for (int32_t const id : make_batch(*data, sample, 1).ids_T) {
            if (id >= tokenizer.vocab_size())
                fail(Category::config,
                     "suites needle and ruler write text with the tokenizer {}, but the held-out data has token {} and "
                     "the tokenizer's last one is {}: data.tokenizer must be the one the data was made with",
                     tokenizer.name(), id, tokenizer.vocab_size() - 1);
            if (!tokenizer.is_special(id)) filler.push_back(id);
        }
    }
    if (filler.empty()) fail(Category::data, "the held-out data has no text to hide a needle in");
    return filler;
}

std::vector<int64_t> lengths_of(RunOptions const& options) {
    auto const& lengths = options.eval.suites.lengths;
    return lengths.empty() ? std::vector<int64_t>{options.data.sequence_length} : lengths;
}

/// Items and scorer of a run.
class ItemSuites {
  public:
    explicit ItemSuites(SuiteRun const& run)
        : run_(run), tokenizer_(make_tokenizer(run.session.files(), run.session.options().data.tokenizer)) {
        RunOptions const& options = run.session.options();
        check_vocabulary(*tokenizer_, options.model.vocab_size);
        material_.encode = [this](std::string_view text) { return tokenizer_->encode(text, TextAfter::text); };
        material_.prefix = tokenizer_->prefix();
        material_.filler = read_filler(run.session, *tokenizer_, material_.encode, lengths_of(options).back());
        material_.seed = static_cast<uint64_t>(options.seed);
        ScoredModel model{
            run.session, {run.selections.begin(), run.selections.end()}, tokenizer_->vocab_size(), run.before_forward};
        if (run.options().scorer == ScorerKind::forced)
            scorer_ = std::make_unique<ForcedDecoding>(std::move(model));
        else
            scorer_ = std::make_unique<GreedyDecoding>(std::move(model));
    }

    /// Throws where an item of the suite has no room.
    void check(Suite suite) const {
        constexpr int64_t kRoomy = 4096;  // more than any item takes besides filler, even in bytes
        int64_t const shortest = lengths_of(run_.session.options()).front();
        for (std::string const& task : tasks_of(suite))
            if (shortest < kRoomy) items_of(suite, task, shortest);
    }

    void run(Suite suite) const {
        for (std::string const& task : tasks_of(suite))
            for (int64_t const length : lengths_of(run_.session.options())) score(suite, items_of(suite, task, length));
    }

  private:
    static std::vector<std::string> const& tasks_of(Suite suite) {
        return suite == Suite::needle ? needle_tasks() : ruler_tasks();
    }
    std::vector<Item> items_of(Suite suite, std::string const& task, int64_t length) const {
        return (suite == Suite::needle ? needle_items : ruler_items)(material_, run_.options(), task, length);
    }
    void score(Suite suite, std::vector<Item> const& items) const {
        auto const scores = scorer_->score(items);
        for (size_t i = 0; i < items.size(); ++i) {
            Measurement m = run_.measurement(suite);
            m.task = items[i].task;
            m.length = items[i].length;
            m.depth = items[i].depth;
            m.number = items[i].number;
            m.weight = static_cast<double>(items[i].answer.size());
            m.nll = scores[i].nll;
            m.correct = scores[i].correct;
            m.passed = passes(items[i], scores[i]);
            m.scorer = scorer_->name();
            if (run_.options().tokens) m.prompt = items[i].prompt, m.answer = items[i].answer;
            run_.results.measurements.push_back(std::move(m));
        }
    }

    SuiteRun const& run_;
    std::unique_ptr<Tokenizer> tokenizer_;
    Material material_;
    std::unique_ptr<Scorer> scorer_;
};

}  // namespace

SuiteResults run_suites(Session& session, int64_t step, std::span<Selection const> selections,
                        std::function<void()> const& before_forward) {
    SuiteResults results;
    SuiteRun const run{session, step, selections, before_forward, results};
    std::unique_ptr<ItemSuites> items;
    for (Suite const suite : suites_of(run.options())) {
        if (suite != Suite::needle && suite != Suite::ruler) continue;
        if (!items) items = std::make_unique<ItemSuites>(run);
        items->check(suite);  // what cannot be made is known before anything is computed
    }
    for (Suite const suite : suites_of(run.options())) {
        size_t const first = results.measurements.size();
        if (suite == Suite::position) {
            run_position(run);
        } else if (suite == Suite::mass) {
            run_mass(run);
        } else {
            items->run(suite);
        }
        auto const found = std::span<Measurement const>(results.measurements).subspan(first);
        results.tables += suite == Suite::position ? position_table(found)
                          : suite == Suite::mass   ? mass_table(found)
                          : suite == Suite::needle ? needle_table(found)
                                                   : ruler_table(found);
        if (suite == Suite::needle)
            results.heat_map = needle_heat_map(found, fmt::format("Needles found, %: {}, step {}, by length and depth",
                                                                  found.front().attention, step));
    }
    return results;
}

SuiteFiles::SuiteFiles(FileSystem& files, Path output_dir) : files_(&files), folder_(std::move(output_dir)) {
    try {
        files_->make_directories(folder_);
        lock_ = files_->lock(folder_ / ".suites.lock", fmt::format("process {} on host {}", ::getpid(), host_name()));
    } catch (LockedError const& e) {
        fail(Category::config, "another job runs suites in {} ({})", folder_.string(), e.holder());
    } catch (IoError const& e) {
        fail(Category::config, "output_dir cannot be written: {}", e.what());
    }
}

namespace {

/// Where the last whole line of a file ends.
int64_t end_of_lines(FileSystem& files, Path const& path) {
    constexpr int64_t kAtOnce = 1 << 16;
    auto const file = files.open(path);
    for (int64_t end = file->size(); end > 0;) {
        int64_t const begin = std::max<int64_t>(0, end - kAtOnce);
        std::string text(static_cast<size_t>(end - begin), '\0');
        file->read_at(begin, std::as_writable_bytes(std::span(text)));
        size_t const newline = text.rfind('\n');
        if (newline != std::string::npos) return begin + static_cast<int64_t>(newline) + 1;
        end = begin;
    }
    return 0;
}

/// Without those that say which suites run, on what layout, and where the results go.
std::string changing_results(std::vector<std::string> const& overrides) {
    constexpr auto kOthers =
        std::to_array<std::string_view>({"eval.suites.run", "log", "output_dir", "parallel", "threads"});
    auto const is_of = [](std::string const& one, std::string_view section) {
        return one.starts_with(section) && (one[section.size()] == '=' || one[section.size()] == '.');
    };
    std::string text;
    for (std::string const& one : overrides)
        if (std::ranges::none_of(kOthers, [&](std::string_view other) { return is_of(one, other); }))
            text += (text.empty() ? "" : " ") + one;
    return text;
}

}  // namespace

void SuiteFiles::write(SuiteResults const& results, std::vector<std::string> const& overrides) {
    Path const path = folder_ / "suites.jsonl";
    auto const file = files_->append(path);
    int64_t const end = end_of_lines(*files_, path);
    if (end < files_->file_size(path)) {
        log::info("{} ended in half a line, which is cut off", path.string());
        file->truncate(end);
    }
    using Json = nlohmann::json;
    std::string const quoted = Json(changing_results(overrides)).dump(-1, ' ', false, Json::error_handler_t::replace);
    std::string const head = fmt::format(R"({{"eval":{},"overrides":{},)", end, quoted);
    std::string lines;
    for (Measurement const& measurement : results.measurements) lines += head + to_json(measurement).substr(1) + "\n";
    try {
        file->write_at(end, std::as_bytes(std::span(lines)));
        file->sync();
    } catch (IoError const&) {
        file->truncate(end);  // no half line
        throw;
    }
    log::info("{} results added to {}", results.measurements.size(), path.string());
    if (results.heat_map.empty()) return;
    auto const needle = std::ranges::find(results.measurements, "needle", &Measurement::suite);
    std::string name = needle->attention;
    std::erase(name, ' ');
    Path const picture = folder_ / fmt::format("needle_{}.svg", name);
    files_->replace_text(picture, results.heat_map);
    log::info("heat map: {}", picture.string());
}

}  // namespace perigee
