// What strict reading accepts, what overrides do, and that writing and reading are inverse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/philox.h"
#include "config/sample_options.h"

namespace perigee::testing {
namespace {

TEST(GoodYaml, OverridesTheDefaultsAndLeavesTheRest) {
    auto const options = read_sample(
        "# a comment\n"
        "steps: 1000  # another\n"
        "optimizer:\n"
        "  lr: 1e-4\n"
        "  beta1: 1\n"
        "train:\n"
        "  - path: books\n"
        "    weight: .5\n"
        "  - {path: \"a b: c\"}\n"
        "mode: safe\n");
    SampleOptions expected;
    expected.steps = 1000;
    expected.optimizer.lr = 1e-4;
    expected.optimizer.beta1 = 1;
    expected.train = {{.path = "books", .weight = 0.5}, {.path = "a b: c"}};
    expected.mode = Mode::safe;
    EXPECT_EQ(options, expected);
}

TEST(GoodYaml, NumbersMayBeWrittenInEveryUsualWay) {
    for (auto const& [text, value] :
         std::vector<std::pair<std::string, double>>{{"1", 1},
                                                     {"+1", 1},
                                                     {"1.", 1},
                                                     {".5", 0.5},
                                                     {"0.5", 0.5},
                                                     {"1e3", 1000},
                                                     {"1E+3", 1000},
                                                     {"25e-2", 0.25},
                                                     {"4.9e-324", 4.9e-324},
                                                     {"1.7976931348623157e308", 1.7976931348623157e308}}) {
        EXPECT_EQ(read_sample(fmt::format("optimizer: {{lr: {}}}", text)).optimizer.lr, value) << text;
    }
}

TEST(GoodYaml, TextNeedsQuotesOnlyWhereItCouldBeSomethingElse) {
    for (auto const& [text, value] : std::vector<std::pair<std::string, std::string>>{{"yes", "yes"},
                                                                                      {"08", "08"},
                                                                                      {"1_000", "1_000"},
                                                                                      {"\"5\"", "5"},
                                                                                      {"'true'", "true"},
                                                                                      {"a b", "a b"},
                                                                                      {"\"\"", ""},
                                                                                      {"\"\\n\"", "\n"},
                                                                                      {"|\n  a\n  b\n", "a\nb\n"},
                                                                                      {">-\n  a\n  b\n", "a b"}}) {
        EXPECT_EQ(read_sample(fmt::format("output_dir: {}", text)).output_dir, value) << text;
    }
}

TEST(GoodYaml, MayUseWindowsLineEndsAnchorsAndADocumentMark) {
    auto const options = read_sample("---\r\nsteps: 7\r\nmode: safe\r\n");
    EXPECT_EQ(options.steps, 7);
    EXPECT_EQ(options.mode, Mode::safe);
    EXPECT_EQ(read_sample("steps: 7\n...\n").steps, 7);
    EXPECT_EQ(read_sample("output_dir: |\n  a\n\n\n").output_dir, "a\n");
    EXPECT_EQ(read_sample("output_dir: |+\n  a\n").output_dir, "a\n");
    auto const aliased = read_sample("train: [&a {path: x, weight: 2}, *a]\n");
    EXPECT_EQ(aliased.train, (std::vector<SampleSet>{{"x", 2}, {"x", 2}}));
}

TEST(GoodYaml, ListsReplaceWhatWasThere) {
    auto const options = read_sample("train: [{path: a}, {path: b}]\nfull_layers: {last: 2, layers: [1, 2, 3]}\n",
                                     {"train=[{path: c}]", "full_layers.layers=[4]"});
    EXPECT_EQ(options.train, (std::vector<SampleSet>{{"c", 1}}));
    EXPECT_EQ(options.full_layers, (SampleLayers{.last = 2, .layers = {4}}));
}

TEST(GoodYaml, AListStandsForAWholeSectionThatHasAShorthand) {
    EXPECT_EQ(read_sample("full_layers: [3, 1]").full_layers, (SampleLayers{.last = 0, .layers = {3, 1}}));
    EXPECT_EQ(read_sample("full_layers: {last: 2, layers: [5]}", {"full_layers=[1]"}).full_layers,
              (SampleLayers{.last = 0, .layers = {1}}));
    EXPECT_EQ(read_sample("full_layers: [3]", {"full_layers=[]"}).full_layers, SampleLayers{});
}

TEST(Overrides, ReachSectionsAndListItemsInOrder) {
    auto const options = read_sample(
        "train: [{path: a}]\n", {"optimizer.lr=1", "optimizer.lr=2", "train.0.weight=3", "train.1.path=b",
                                 "train.1.weight=4", "train.2={path: c}", "optimizer={beta1: 0.5}", "output_dir=a=b"});
    EXPECT_EQ(options.optimizer, (SampleRate{.lr = 2, .weight_decay = 0.1, .beta1 = 0.5}));
    EXPECT_EQ(options.train, (std::vector<SampleSet>{{"a", 3}, {"b", 4}, {"c", 1}}));
    EXPECT_EQ(options.output_dir, "a=b");
}

TEST(WrittenYaml, HasEveryKeyAndIsMeantForReading) {
    SampleOptions options;
    options.output_dir = "yes";
    options.full_layers = {.last = 1, .layers = {2, 3}};
    options.train = {{.path = "/data/books", .weight = 2}, {.path = "a b", .weight = 1e-9}};
    EXPECT_EQ(write_sample(options),
              "steps: 10\n"
              "shuffle: true\n"
              "output_dir: \"yes\"\n"
              "mode: fast\n"
              "optimizer:\n"
              "  lr: 0.0003\n"
              "  weight_decay: 0.1\n"
              "  beta1: 0.9\n"
              "full_layers:\n"
              "  last: 1\n"
              "  layers: [2, 3]\n"
              "train:\n"
              "  - path: /data/books\n"
              "    weight: 2\n"
              "  - path: \"a b\"\n"
              "    weight: 1e-09\n");
    EXPECT_THAT(write_sample({}), ::testing::EndsWith("layers: []\ntrain: []\n"));
}

/// Any text a configuration can hold: words YAML is touchy about, and characters of one to four bytes.
std::string random_text(Philox const& random, uint64_t index) {
    static std::vector<std::string> const kPieces = {"a",
                                                     "Z",
                                                     "7",
                                                     "-",
                                                     ".",
                                                     "/",
                                                     "_",
                                                     " ",
                                                     ":",
                                                     ": ",
                                                     "#",
                                                     " #",
                                                     "\n",
                                                     "\t",
                                                     "\"",
                                                     "'",
                                                     "\\",
                                                     "{",
                                                     "}",
                                                     "[",
                                                     "]",
                                                     ",",
                                                     "&",
                                                     "*",
                                                     "!",
                                                     "|",
                                                     ">",
                                                     "%",
                                                     "@",
                                                     "`",
                                                     "?",
                                                     "=",
                                                     "~",
                                                     "null",
                                                     "true",
                                                     "no",
                                                     "1e3",
                                                     "0x",
                                                     "<<",
                                                     "---",
                                                     "...",
                                                     "\n\n",
                                                     "\x01",
                                                     "\x1b",
                                                     "\x7f",
                                                     "\r",
                                                     "\r\n",
                                                     "\xC3\xA9",
                                                     "\xC2\x85",
                                                     "\xE2\x80\xA8",
                                                     "\xEF\xBB\xBF",
                                                     "\xF0\x9F\x8C\x8D"};
    std::string text;
    for (uint64_t i = 0, count = random.below(100 * index, 9); i < count; ++i)
        text += kPieces[random.below(100 * index + i + 1, kPieces.size())];
    return text;
}

double random_double(Philox const& random, uint64_t index) {
    double const value = std::bit_cast<double>(random.u64(index) & ~(uint64_t{1} << 63));  // any positive bits
    return std::isfinite(value) && value > 0 ? value : 1.0;
}

TEST(WrittenYaml, ReadsBackAsTheSameOptions) {
    for (uint64_t seed = 0; seed < 1000; ++seed) {
        Philox const random(seed, Purpose::mock_data);
        SampleOptions options;
        options.steps = static_cast<int64_t>(1 + random.below(1, 1000000));
        options.shuffle = random.below(2, 2) == 0;
        options.output_dir = random_text(random, 3);
        options.mode = random.below(4, 2) == 0 ? Mode::fast : Mode::safe;
        options.optimizer = {random_double(random, 5), random_double(random, 6), random.uniform(7)};
        options.full_layers.last = static_cast<int64_t>(random.u64(8) >> 1);
        for (uint64_t i = 0; i < random.below(9, 5); ++i)
            options.full_layers.layers.push_back(static_cast<int64_t>(random.below(10 + i, 100)));
        for (uint64_t i = 0; i < random.below(20, 4); ++i)
            options.train.push_back({random_text(random, 21 + i), random_double(random, 31 + i)});
        std::string const yaml = write_sample(options);
        ASSERT_EQ(read_sample(yaml), options) << "seed " << seed << "\n" << yaml;
        ASSERT_EQ(write_sample(read_sample(yaml)), yaml);
    }
}

TEST(MutatedYaml, EitherReadsOrIsRefusedAsConfiguration) {
    SampleOptions options;
    options.output_dir = "a \"b\" c";
    options.full_layers = {.last = 1, .layers = {2, 3}};
    options.train = {{"x", 1}, {"y", 2}};
    std::string const valid = write_sample(options) + "# comment\n";
    static constexpr char kBytes[] = "\0\t\n\r \"#%&'*,-.:<>?[]{}|!@`~\\0aZ\x80\xC3\xFF";
    int read = 0, refused = 0;
    for (uint64_t seed = 0; seed < 2000; ++seed) {
        Philox const random(seed, Purpose::mock_data);
        std::string text = valid;
        for (uint64_t i = 0, edits = 1 + random.below(0, 3); i < edits; ++i) {
            size_t const at = random.below(4 * i + 1, text.size());
            size_t const length = std::min<size_t>(random.below(4 * i + 2, 12), text.size() - at);
            char const byte = kBytes[random.below(4 * i + 3, sizeof(kBytes) - 1)];
            switch (random.below(4 * i + 4, 4)) {
                case 0:
                    text[at] = byte;
                    break;
                case 1:
                    text.insert(at, 1, byte);
                    break;
                case 2:
                    text.erase(at, length);
                    break;
                default:
                    text.insert(at, text.substr(random.below(4 * i + 3, text.size()), length));
            }
            if (text.empty()) text.assign(1, 'x');
        }
        try {
            read_sample(text);
            ++read;
        } catch (Error const& error) {
            ++refused;
            ASSERT_EQ(error.category(), Category::config) << text;
            ASSERT_THAT(error.what(), ::testing::StartsWith("f.yaml:")) << text;
        }
    }
    EXPECT_GT(read, 80);
    EXPECT_GT(refused, 100);
}

TEST(Reference, ShowsTypeDefaultRangeAndMeaningOfEveryKey) {
    SampleOptions options;
    Schema schema;
    describe(schema, options);
    EXPECT_EQ(write_reference(schema),
              "\n## Top level\n\n"
              "| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n"
              "| `steps` | integer | `10` | between 1 and 1000000 | how many |\n"
              "| `shuffle` | boolean | `true` | true, false | in another order |\n"
              "| `output_dir` | text | `runs/default` |  | folder |\n"
              "| `mode` | choice | `fast` | fast, safe | how |\n"
              "| [`optimizer`](#optimizer) | section |  |  | The optimizer. |\n"
              "| [`full_layers`](#full_layers) | section, or list of integers |  |  | Layers. |\n"
              "| [`train`](#train) | list of sections | `[]` |  | sets |\n"
              "\n## optimizer\n\nThe optimizer.\n\n"
              "| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n"
              "| `lr` | number | `0.0003` | above 0 | rate |\n"
              "| `weight_decay` | number | `0.1` | at least 0 | decay |\n"
              "| `beta1` | number | `0.9` | between 0 and 1 | decay \\| of the moment |\n"
              "\n## full_layers\n\nLayers.\n\n"
              "| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n"
              "| `last` | integer | `0` | at least 0 | the last ones |\n"
              "| `layers` | list of integers | `[]` | between 0 and 99 | these ones |\n"
              "\n## train\n\nEach item of the list: sets\n\n"
              "| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n"
              "| `path` | text | `\"\"` |  | where it is |\n"
              "| `weight` | number | `1` | above 0 | its share |\n");
}

}  // namespace
}  // namespace perigee::testing
