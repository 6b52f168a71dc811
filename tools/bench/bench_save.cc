// What a save costs the training thread: a save that training waits for against one beside it, on a real disk. One
// rank, its state in a few large tensors. The copy is warm, as it is after a run's first save.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include "base/philox.h"
#include "checkpoint/saver.h"
#include "device/device.h"

namespace perigee {
namespace {

struct Settings {
    std::string folder;
    int64_t megabytes = 360;
    int tensors = 24;
    int repeats = 5;
};

double seconds_of(auto const& work) {
    auto const start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
    std::ranges::sort(values);
    return values[values.size() / 2];
}

void run(Settings const& settings) {
    auto const files = make_file_system();
    auto const world = make_single_host_comm();
    Path const root = Path(settings.folder) / "bench_save";
    int64_t const count = settings.megabytes * 1'000'000 / settings.tensors / 4;
    std::vector<std::vector<float>> values;
    std::vector<StoredTensor> parts;
    for (int i = 0; i < settings.tensors; ++i) {
        Philox const random(1, Purpose::mock_data, static_cast<uint64_t>(i));
        auto& tensor = values.emplace_back(static_cast<size_t>(count));
        for (size_t j = 0; j < tensor.size(); ++j) tensor[j] = static_cast<float>(random.uniform(j));
        parts.push_back({fmt::format("tensor_{}", i), whole_shard({count}), {tensor.data(), {count}}});
    }

    auto const device = make_host_device();
    Saver saver(*files, *world, root, {.last = 1}, *device);
    std::vector<double> waited, began, wrote, finished;
    RunState state;
    for (int i = 0; i <= settings.repeats; ++i) {
        ++state.step;
        double const all = seconds_of([&] { save_checkpoint(*files, *world, root, state, parts, {.last = 1}); });
        ++state.step;
        double const begin = seconds_of([&] { saver.begin(state, parts); });
        double const write = seconds_of([&] {
            while (saver.writing()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        });
        double const finish = seconds_of([&] { saver.finish(); });
        if (i == 0) continue;
        waited.push_back(all);
        began.push_back(begin);
        wrote.push_back(write);
        finished.push_back(finish);
    }
    std::filesystem::remove_all(root);
    fmt::print("{} MB, medians of {}\n", settings.megabytes, settings.repeats);
    fmt::print("training waits      {:6.3f} s\n", median(waited));
    fmt::print("beside training     {:6.3f} s = copy {:.3f} + completing it {:.3f}; the thread writes for {:.3f} s\n",
               median(began) + median(finished), median(began), median(finished), median(wrote));
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    perigee::Settings settings;
    CLI::App app("Seconds that a save takes from training, waited for and beside it.");
    app.add_option("folder", settings.folder, "on the disk to measure")->required();
    app.add_option("--megabytes", settings.megabytes, "weights and moments of the rank");
    app.add_option("--tensors", settings.tensors, "how many tensors they are in");
    app.add_option("--repeats", settings.repeats, "saves of each kind");
    CLI11_PARSE(app, argc, argv);
    perigee::run(settings);
    return 0;
}
