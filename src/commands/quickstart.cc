// A first run: tokens, training, held-out loss with MoBA and with full attention, the loss curve, a sample, the report.
// Each stage is a command of this program, shown as a user would type it. Safe to run again: what is there is not made
// again.
//     perigee quickstart
//     perigee quickstart --ranks 2 train.steps=100
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/printable.h"
#include "commands/child.h"
#include "commands/command.h"
#include "config/config.h"

namespace perigee {
namespace {

using Words = std::vector<std::string>;

constexpr char kConfig[] = "configs/quickstart.yaml";

struct QuickstartRequest {
    int ranks = 1;
    Words overrides;
};

/// The path as seen from this folder, where it is below it.
Path from_here(Path const& path) {
    Path const near = std::filesystem::proximate(path);
    return near.string().starts_with("..") ? path : near;
}

/// The program, and the folder of the files that come with it: share/perigee of an installed one, else the source
/// folder that it was built in.
struct Program {
    std::string path;
    std::string typed;  ///< as a user in this folder types it
    Path share;
};

Program find_program(FileSystem const& files) {
    Path const program = std::filesystem::read_symlink("/proc/self/exe");
    Path const installed = program.parent_path().parent_path() / "share" / "perigee";
    if (files.exists(installed / kConfig)) return {program.string(), "perigee", installed};
    for (Path folder = program.parent_path(); folder != folder.root_path(); folder = folder.parent_path())
        if (files.exists(folder / kConfig)) return {program.string(), from_here(program).string(), from_here(folder)};
    fail(Category::config, "neither {} nor a folder above {} has {}", installed.string(), program.string(), kConfig);
}

/// What the layers attend after training.
std::string attention_name(RunOptions const& options) {
    auto const layers =
        layer_selections(options.attention, options.model.num_hidden_layers, options.train.steps, options.seed);
    auto const is_full = [](Selection const& layer) { return std::holds_alternative<FullAttention>(layer); };
    int64_t const count = std::ranges::count_if(layers, is_full);
    if (count == std::ssize(layers)) return "full attention";
    std::string const name =
        options.attention.selection == MobaOptions::kName ? "MoBA" : "blocks: " + options.attention.selection;
    if (count == 0) return name;
    if (std::all_of(layers.end() - count, layers.end(), is_full))
        return count == 1 ? name + ", last layer full" : fmt::format("{}, last {} layers full", name, count);
    return fmt::format("{}, {} of {} layers full", name, count, layers.size());
}

/// As typed in a shell.
std::string typed_word(std::string const& word) {
    bool const is_plain = !word.empty() && std::ranges::all_of(word, [](unsigned char letter) {
        return std::isalnum(letter) != 0 || std::string_view("_-+=./,:%@").find(letter) != std::string_view::npos;
    });
    if (is_plain) return word;
    std::string quoted = "'";
    for (char const letter : word) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
    return quoted + "'";
}

std::string typed_words(Words const& words) {
    std::string line;
    for (std::string const& word : words) line += " " + typed_word(word);
    return line;
}

class Quickstart {
  public:
    Quickstart(QuickstartRequest const& request, FileSystem& files)
        : files_(files),
          overrides_(request.overrides),
          ranks_(request.ranks),
          program_(find_program(files)),
          config_(share(kConfig)),
          options_(load_config(config_, overrides_)) {
        refuse_problems(options_, ranks_, config_);
    }

    /// 0, or the exit code of the first stage that did not end well.
    int run() {
        if (!tokenize() || !command("Training", "train") || !compare()) return code_;
        std::string const run = options_.output_dir;
        if (!stage("Loss",
                   {"plot", run, "--output", run + "/loss.svg", "--terminal", "--width", "72", "--height", "14"}) ||
            !command("A sample", "generate", {}, 1) || !stage("Report", {"report", run}))
            return code_;
        tell_what_is_next();
        return 0;
    }

  private:
    /// The program's own manual, where there are no tokens under the configuration's own name.
    bool tokenize() {
        if (options_.data.mock_data) return true;
        std::string const manual = load_config(config_, {}).data.train.at(0).path;
        bool wants_manual = false;
        for (DatasetOptions const& dataset : options_.data.train) {
            if (dataset.path.empty() || files_.exists(dataset.path + ".idx")) continue;
            if (dataset.path != manual)
                fail(Category::config, "data.train: there is no {0}.idx; perigee tokenize TEXTS --output {0} makes it",
                     dataset.path);
            wants_manual = true;
        }
        if (!wants_manual) return true;
        files_.make_directories(Path(manual).parent_path());
        return stage("Text", {"tokenize", share("docs"), "--suffix", ".md", "--output", manual});
    }

    bool compare() {
        title("Held-out loss of the same weights");
        std::string const full = "full attention", own = attention_name(options_);
        std::vector<std::pair<std::string, Words>> kinds = {{own, {}}};
        if (own != full) kinds.push_back({full, {"attention.kind=full", "attention.schedule=[]"}});
        size_t const width = std::max(own.size(), full.size()) + 2;
        std::string lines;
        for (auto const& [name, overrides] : kinds) {
            ChildResult const result = run_child(launched(job("eval", overrides), ranks_), /*keep_output=*/true);
            code_ = result.exit_code;
            if (code_ != 0) return false;
            double const loss = nlohmann::json::parse(result.output).at("eval_loss").get<double>();
            lines += fmt::format("{:{}} {:.4f} nats per {}\n", name, width, loss, unit());
        }
        print_printable("{}", lines);
        return true;
    }

    char const* unit() const {
        return options_.data.mock_data || options_.data.tokenizer != "bytes" ? "token" : "byte";
    }

    void tell_what_is_next() const {
        title("Where everything is");
        constexpr int64_t kLonger = 600;
        TrainOptions const& train = options_.train;
        std::string const longer =
            train.epochs > 0 ? fmt::format("train.epochs={}", 2 * train.epochs)
                             : fmt::format("train.steps={}", train.steps < kLonger ? kLonger : 2 * train.steps);
        print_printable(
            "{0}/config.yaml     the resolved configuration\n"
            "{0}/metrics.jsonl   every step\n"
            "{0}/samples.jsonl   what the model wrote at each evaluation\n"
            "{0}/loss.svg        the loss curve\n"
            "{0}/checkpoints/    the latest checkpoints; the same command resumes from them\n"
            "\n"
            "Three things to try next:\n"
            "  {1}{2} --prompt \"To undo a commit, \"\n"
            "  {1}{3}\n"
            "  {1}{4} --world-size 2\n"
            "\n"
            "All curves, where time and memory go, samples, which blocks heads choose:\n"
            "{0}/report.html\n",
            options_.output_dir, program_.typed, typed_words(job("generate")), typed_words(job("train", {longer})),
            typed_words(job("check", {"model.hidden_size=1024", "data.sequence_length=8192"})));
    }

    std::string share(char const* name) const { return (program_.share / name).lexically_normal().string(); }

    static void title(std::string const& text) {
        fmt::print("\n== {}\n", text);
        std::fflush(stdout);
    }

    /// Arguments of a command that takes the run's configuration.
    Words job(std::string const& name, Words const& more = {}) const {
        Words words{name, config_};
        words.insert(words.end(), overrides_.begin(), overrides_.end());
        words.insert(words.end(), more.begin(), more.end());
        return words;
    }

    Words launched(Words const& arguments, int ranks) const {
        Words words{program_.path};
        if (ranks > 1) words = {share("launch/mpirun.sh"), std::to_string(ranks), program_.path};
        words.insert(words.end(), arguments.begin(), arguments.end());
        return words;
    }

    bool command(std::string const& name, std::string const& what, Words const& more = {}, int ranks = 0) {
        return stage(name, job(what, more), ranks == 0 ? ranks_ : ranks);
    }

    bool stage(std::string const& name, Words const& arguments, int ranks = 1) {
        title(name);
        print_printable("$ {}{}\n", program_.typed, typed_words(arguments));
        std::fflush(stdout);
        code_ = run_child(launched(arguments, ranks)).exit_code;
        return code_ == 0;
    }

    FileSystem& files_;
    Words const overrides_;
    int const ranks_;
    Program const program_;
    std::string const config_;
    RunOptions const options_;
    int code_ = 0;
};

}  // namespace

Action declare_quickstart(CLI::App& app) {
    auto const request = std::make_shared<QuickstartRequest>();
    app.add_option("overrides", request->overrides, "Override configs/quickstart.yaml, as in train.steps=100")
        ->type_name("key=value");
    app.add_option("--ranks", request->ranks, "Train on so many ranks, by mpirun")
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    return [request](FileSystem& files) { return Quickstart(*request, files).run(); };
}

}  // namespace perigee
