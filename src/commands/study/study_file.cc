#include "commands/study/study_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <set>

#include "checkpoint/folders.h"
#include "config/config.h"
#include "config/schema_yaml.h"
#include "config/yaml_tree.h"

namespace perigee::study {

namespace {

using Kind = YamlNode::Kind;
using Overrides = std::vector<std::string>;

constexpr size_t kMostRuns = 10'000;
constexpr char const* kArm = "arm";

/// A value as it stands on a command line.
std::string value_text(YamlNode const& node, Findings& findings) {
    if (node.kind == Kind::scalar) return node.quoted ? yaml_text(node.text) : node.text;
    std::vector<std::string> items;
    for (auto const& item : node.items) items.push_back(value_text(*item, findings));
    for (auto const& [key, value] : node.entries)
        items.push_back(fmt::format("{}: {}", yaml_text(key->text), value_text(*value, findings)));
    if (node.kind == Kind::null) findings.add(node.place, "expected a value");
    std::string const all = fmt::format("{}", fmt::join(items, ", "));
    return node.kind == Kind::map ? "{" + all + "}" : "[" + all + "]";
}

struct Axis {
    std::string key;
    std::vector<std::string> values;
};

/// The file's sections before they are multiplied out.
struct Plan {
    RunOptions run;
    std::vector<Overrides> before;  ///< in the order of training
    std::vector<std::pair<std::string, Overrides>> arms, evaluations;
    std::vector<Axis> grid;
    std::vector<std::string> seeds, metrics;
    std::string output_dir, figure;
};

class Reader {
  public:
    Reader(Plan& plan, Findings& findings) : plan_(plan), findings_(findings) {}

    void read(YamlNode const& root) {
        if (root.kind != Kind::map) return findings_.add(root.place, "expected sections: run, grid, seeds, ...");
        refuse_duplicates(root);
        std::set<std::string> seen;
        for (auto const& [key, value] : root.entries) {
            seen.insert(key->text);
            section(*key, *value);
        }
        for (char const* const needed : {"output_dir", "run", "seeds", "metrics", "figure"})
            if (!seen.contains(needed)) findings_.add(root.place, fmt::format("{} is missing", needed));
        if (plan_.grid.empty() && plan_.arms.empty()) findings_.add(root.place, "there are no arms and no grid");
    }

  private:
    void section(YamlNode const& key, YamlNode const& value) {
        if (key.text == "run") {
            refuse_own(key.text, value);
            Schema schema;
            describe(schema, plan_.run);
            read_tree(schema, value, findings_);
        } else if (key.text == "before") {
            if (value.kind != Kind::list) plan_.before.push_back(overrides(key.text, value));
            for (auto const& stage : value.items) plan_.before.push_back(overrides(key.text, *stage));
        } else if (key.text == "arms") {
            plan_.arms = named(key.text, value);
        } else if (key.text == "evaluations") {
            plan_.evaluations = named(key.text, value);
        } else if (key.text == "grid") {
            refuse_own(key.text, value);
            for (auto const& [name, list] : entries(value)) plan_.grid.push_back({name->text, values(*list)});
        } else if (key.text == "seeds") {
            plan_.seeds = values(value);
        } else if (key.text == "metrics") {
            plan_.metrics = values(value);
        } else if (key.text == "output_dir") {
            plan_.output_dir = scalar(value);
        } else if (key.text == "figure") {
            plan_.figure = scalar(value);
        } else {
            findings_.add(
                key.place,
                fmt::format("unknown key \"{}\"; known are output_dir, run, before, arms, grid, evaluations, seeds, "
                            "metrics, figure",
                            key.text));
        }
    }

    std::vector<std::pair<std::shared_ptr<YamlNode const>, std::shared_ptr<YamlNode const>>> entries(
        YamlNode const& node) {
        if (node.kind != Kind::map) findings_.add(node.place, "expected lines of `option: value`");
        refuse_duplicates(node);
        return node.entries;
    }
    void refuse_duplicates(YamlNode const& map) {
        std::set<std::string> seen;
        for (auto const& [key, value] : map.entries)
            if (!seen.insert(key->text).second)
                findings_.add(key->place, fmt::format("duplicate key \"{}\"", key->text));
    }
    /// What the study itself sets in every run would be overwritten.
    void refuse_own(std::string const& section, YamlNode const& node) {
        for (auto const& [name, value] : node.entries) {
            if (name->text == "seed")
                findings_.add(name->place, fmt::format("found seed in {}: seed belongs in `seeds`, a section of the "
                                                       "study, and every case is run with each of them",
                                                       section));
            if (name->text == "output_dir")
                findings_.add(name->place, fmt::format("found output_dir in {}: output_dir belongs to the study, which "
                                                       "gives every run a folder in its own; leave it out here",
                                                       section));
        }
    }
    Overrides overrides(std::string const& section, YamlNode const& node) {
        refuse_own(section, node);
        Overrides all;
        for (auto const& [name, value] : entries(node))
            all.push_back(fmt::format("{}={}", name->text, value_text(*value, findings_)));
        return all;
    }
    std::vector<std::pair<std::string, Overrides>> named(std::string const& section, YamlNode const& node) {
        std::vector<std::pair<std::string, Overrides>> all;
        for (auto const& [name, changes] : entries(node)) {
            if (section == "arms" && (name->text == "before" || name->text.starts_with("before ")))
                findings_.add(name->place, fmt::format("\"{}\" names what is trained before all arms", name->text));
            all.emplace_back(name->text, overrides(section, *changes));
        }
        return all;
    }
    std::vector<std::string> values(YamlNode const& node) {
        std::vector<std::string> result;
        if (node.kind != Kind::list || node.items.empty()) {
            findings_.add(node.place, "expected a list of values, as [1, 2]");
            return result;
        }
        for (auto const& item : node.items) {
            result.push_back(value_text(*item, findings_));
            if (std::ranges::count(result, result.back()) > 1)
                findings_.add(item->place, fmt::format("{} stands there twice", result.back()));
        }
        return result;
    }
    std::string scalar(YamlNode const& node) {
        if (node.kind != Kind::scalar || node.text.empty()) findings_.add(node.place, "expected a text");
        return node.text;
    }

    Plan& plan_;
    Findings& findings_;
};

/// The settings of every case, the first key varying slowest. Seeds vary slower still, so that an unfinished study has
/// something to say about every case.
std::vector<std::vector<std::string>> cases(std::vector<Axis> const& grid) {
    std::vector<std::vector<std::string>> all{{}};
    for (Axis const& axis : grid) {
        std::vector<std::vector<std::string>> longer;
        for (auto const& settings : all)
            for (std::string const& value : axis.values) {
                longer.push_back(settings);
                longer.back().push_back(value);
            }
        if (longer.size() > kMostRuns) fail(Category::config, "the grid has more than {} cases", kMostRuns);
        all = std::move(longer);
    }
    return all;
}

/// In a folder's name; what no folder may be called is replaced.
std::string setting_name(std::string const& label, std::string const& value) {
    std::string name = fmt::format("{}={}", label, value);
    std::ranges::replace_if(
        name, [](unsigned char c) { return std::isalnum(c) == 0 && !std::strchr("=+-._", c); }, '_');
    return name;
}

class Builder {
  public:
    Builder(Plan const& plan, std::string const& source) : plan_(plan), source_(source) {
        study_.output_dir = plan.output_dir;
        study_.metrics = plan.metrics;
        study_.figure = plan.figure;
        if (!plan.arms.empty()) study_.keys.emplace_back(kArm);
        for (Axis const& axis : plan.grid) study_.keys.push_back(axis.key);
    }

    Study build() {
        std::vector<std::optional<size_t>> last(plan_.seeds.size());
        for (size_t stage = 0; stage < plan_.before.size(); ++stage)
            for (size_t seed = 0; seed < last.size(); ++seed) {
                std::string const name = plan_.before.size() == 1 ? "before" : fmt::format("before={}", stage + 1);
                last[seed] = add(name, {}, plan_.seeds[seed], plan_.before[stage], last[seed]);
                Run const& run = study_.runs[*last[seed]];
                if (run.steps == 0 && !run.config.empty())
                    problems_.push_back(fmt::format(
                        "{}: {}: train.epochs cannot be set where others go on from the last step", source_, run.name));
            }
        evaluate_from(0);
        for (size_t seed = 0; seed < last.size(); ++seed) {
            size_t const first = study_.runs.size();
            for (auto const& settings : cases(axes())) add_case(settings, plan_.seeds[seed], last[seed]);
            evaluate_from(first);
        }
        if (!problems_.empty()) fail(Category::config, "{}", fmt::join(problems_, "\n"));
        return std::move(study_);
    }

  private:
    using Arm = std::pair<std::string, Overrides>;

    /// That of the arms before those of the grid.
    std::vector<Axis> axes() const {
        std::vector<Axis> all;
        if (!plan_.arms.empty()) {
            all.push_back({kArm, {}});
            for (Arm const& arm : plan_.arms) all.back().values.push_back(arm.first);
        }
        all.insert(all.end(), plan_.grid.begin(), plan_.grid.end());
        return all;
    }

    void add_case(std::vector<std::string> const& settings, std::string const& seed, std::optional<size_t> before) {
        std::vector<std::string> names;
        Overrides overrides;
        for (size_t i = 0; i < settings.size(); ++i) {
            names.push_back(setting_name(study_.label(study_.keys[i]), settings[i]));
            if (study_.keys[i] == kArm)
                overrides = std::ranges::find(plan_.arms, settings[i], &Arm::first)->second;
            else
                overrides.push_back(fmt::format("{}={}", study_.keys[i], settings[i]));
        }
        add(fmt::format("{}", fmt::join(names, ",")), settings, seed, overrides, before);
    }

    /// Gives the runs from this place on to every evaluation.
    void evaluate_from(size_t first) {
        size_t const end = study_.runs.size();
        for (auto const& [evaluation, changes] : plan_.evaluations)
            for (size_t run = first; run < end; ++run) evaluate(run, evaluation, changes);
    }

    void evaluate(size_t run, std::string const& evaluation, Overrides const& overrides) {
        Run const& trained = study_.runs[run];
        std::string const name = trained.name + "," + setting_name("eval", evaluation);
        refuse_taken(name);
        try {
            if (!trained.config.empty()) (void)parse_config(trained.config, name, overrides);  // else that is a problem
        } catch (Error const& error) {
            problems_.push_back(fmt::format("{}: {}: {}", source_, name, error.what()));
        }
        study_.runs.push_back({.name = name,
                               .settings = {},
                               .seed = trained.seed,
                               .config = trained.config,
                               .before = run,
                               .threads = trained.threads,
                               .overrides = overrides,
                               .evaluates = true});
    }

    void refuse_taken(std::string const& name) {
        if (std::ranges::find(study_.runs, name, &Run::name) != study_.runs.end())
            problems_.push_back(fmt::format("{}: two runs would be called {}", source_, name));
    }

    /// Adds a run that goes on from run `before`, if there is one; returns its place.
    size_t add(std::string const& case_name, std::vector<std::string> settings, std::string const& seed,
               Overrides overrides, std::optional<size_t> before) {
        std::string const name = fmt::format("{},seed={}", case_name, seed);
        Run run{.name = name, .settings = std::move(settings), .seed = 0, .config = {}, .before = before};
        refuse_taken(name);
        if (before) {
            Run const& from = study_.runs[*before];
            Path const checkpoint = study_.folder(from) / "checkpoints" / step_name(from.steps);
            overrides.push_back("checkpoint.resume=" + yaml_text(checkpoint.string()));
            overrides.emplace_back("checkpoint.allow_model_change=true");  // the study says which
        }
        overrides.push_back("seed=" + seed);
        overrides.push_back("output_dir=" + yaml_text(study_.folder(run).string()));
        try {
            RunOptions const options = parse_config(to_yaml(plan_.run), source_, overrides);
            for (std::string const& problem : problems(options, 1))
                problems_.push_back(fmt::format("{}: {}: {}", source_, name, problem));
            if (before && options.train.epochs == 0 && options.train.steps <= study_.runs[*before].steps)
                problems_.push_back(
                    fmt::format("{}: {}: train.steps ({}) must be above the {} of {}, which it goes on from", source_,
                                name, options.train.steps, study_.runs[*before].steps, study_.runs[*before].name));
            run.seed = options.seed;
            run.threads = options.threads;
            run.steps = options.train.epochs > 0 ? 0 : options.train.steps;
            run.config = to_yaml(options);
        } catch (Error const& error) {
            problems_.push_back(fmt::format("{}: {}: {}", source_, name, error.what()));
        }
        study_.runs.push_back(std::move(run));
        return study_.runs.size() - 1;
    }

    Plan const& plan_;
    std::string source_;
    std::vector<std::string> problems_;
    Study study_;
};

}  // namespace

std::string Study::label(std::string const& key) const {
    auto const is_taken = [&](std::string const& end) {
        for (char const* const other : {"seed", kArm, "before", "eval"})
            if (end == other && key != other) return true;
        return std::ranges::any_of(
            keys, [&](std::string const& other) { return other != key && ("." + other).ends_with("." + end); });
    };
    size_t begin = key.rfind('.') + 1;  // 0 where there is none
    while (begin > 0 && is_taken(key.substr(begin))) begin = begin < 2 ? 0 : key.rfind('.', begin - 2) + 1;
    return key.substr(begin);
}

Study read_study(FileSystem& files, Path const& path) {
    std::string text;
    try {
        text = files.read_text(path, kMaxYamlBytes);
    } catch (Error const& error) {
        fail(Category::config, "the study cannot be read: {}", error.what());
    }
    Plan plan;
    Findings findings(path.string(), Findings::Places::shown);
    auto const tree = parse_yaml(text, findings);
    if (tree) Reader(plan, findings).read(*tree);
    if (!findings.empty()) fail(Category::config, "{}", fmt::join(findings.lines(), "\n"));
    return Builder(plan, path.string()).build();
}

}  // namespace perigee::study
