#include "train/spike.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "config/config.h"
#include "support/random.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"
#include "train/guard.h"
#include "train/learner.h"

namespace perigee {
namespace {

constexpr int64_t kWindow = 128;
constexpr double kThreshold = 6;

std::vector<double> normal_values(int count, uint64_t stream, double mean, double sigma) {
    Philox const random(9, Purpose::mock_data, stream);
    std::vector<double> values;
    for (int i = 0; i < count; ++i) values.push_back(mean + sigma * random.normal(static_cast<uint64_t>(i)));
    return values;
}

TEST(Noise, of_normal_values_is_their_own) {
    Noise const noise = noise_of(normal_values(4001, 1, 3, 0.05), 0);
    EXPECT_NEAR(noise.median, 3, 0.005);
    EXPECT_NEAR(noise.sigma, 0.05, 0.005);
}

TEST(Noise, is_moved_little_by_one_value_in_twenty) {
    auto values = normal_values(128, 2, 3, 0.05);
    double const before = noise_of(values, 0).sigma;
    for (size_t i = 0; i < 6; ++i) values[20 * i] = 1e6;
    EXPECT_LT(noise_of(values, 0).sigma, 1.6 * before);
}

TEST(Noise, has_a_least_sigma_in_medians) {
    EXPECT_DOUBLE_EQ(noise_of({2, 2, 2}, 0.25).sigma, 0.5);
    EXPECT_EQ(noise_of({0, 0}, 0.25).sigmas_above(1), 0);
}

TEST(Spikes, are_none_until_half_a_window_is_known) {
    RunState::Spikes history;
    for (int i = 0; i < kWindow / 2; ++i) EXPECT_FALSE(take_step(history, kWindow, kThreshold, i == 40 ? 900 : 3, 1));
    EXPECT_TRUE(take_step(history, kWindow, kThreshold, 900, 1));
}

TEST(Spikes, of_the_norm_alone_are_found_and_fallen_values_are_none) {
    RunState::Spikes history;
    for (double const loss : normal_values(200, 3, 3, 0.05))
        ASSERT_FALSE(take_step(history, kWindow, kThreshold, loss, 1));
    EXPECT_FALSE(take_step(history, kWindow, kThreshold, 1, 0.001));
    auto const spike = take_step(history, kWindow, kThreshold, 3, 32);
    ASSERT_TRUE(spike);
    EXPECT_DOUBLE_EQ(spike->norm_sigmas, 6.2);
}

TEST(Spikes, without_end_become_the_new_level) {
    RunState::Spikes history;
    for (double const loss : normal_values(200, 4, 3, 0.05)) take_step(history, kWindow, kThreshold, loss, 1);
    int spikes = 0;
    for (double const loss : normal_values(200, 5, 6, 0.05))
        spikes += take_step(history, kWindow, kThreshold, loss, 1).has_value();
    EXPECT_GE(spikes, 5);
    EXPECT_LE(spikes, kWindow / 2);
    EXPECT_EQ(history.losses.size(), size_t{kWindow});
}

/// A learner whose steps can be spoiled in three ways.
class Patient {
  public:
    explicit Patient(HostComm& world, FileSystem& files)
        : session_(options(files), world, files), learner_(session_), data_(session_.open(Split::train)) {
        learner_.initialise(1);
    }
    RunState state{.seed = 1, .info = {}};
    StepReport step(std::vector<Batch> const& batches) { return learner_.step(batches, state); }
    std::vector<Batch> batches() {
        return {make_batch(*data_, state.consumed_samples, session_.options().train.global_batch_size)};
    }
    /// All that training has changed.
    std::vector<float> all() {
        std::vector<float> values;
        for (StoredTensor const& t : tensors())
            values.insert(values.end(), t.values.as<float>(), t.values.as<float>() + t.values.size());
        return values;
    }
    void set_all(std::vector<float> const& values) {
        auto from = values.begin();
        for (StoredTensor const& t : tensors()) {
            std::copy_n(from, t.values.size(), t.values.as<float>());
            from += t.values.size();
        }
    }
    std::span<float> weights() {
        TensorView const flat = session_.weights().flat();
        return {flat.as<float>(), static_cast<size_t>(flat.size())};
    }

  private:
    static RunOptions options(FileSystem& files) {
        RunOptions o = parse_config(R"(
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1}
data: {mock_data: true, sequence_length: 32}
train: {steps: 100000, global_batch_size: 4, micro_batch_size: 4}
optimizer: {lr: 6e-3}
schedule: {warmup_steps: 20, decay: constant}
threads: 1
)",
                                    "tiny", {});
        return resolve(o, 1, files);
    }
    std::vector<StoredTensor> tensors() { return learner_.tensors({session_.layout().whole()}); }

    Session session_;
    Learner learner_;
    std::unique_ptr<DataSource> data_;
};

double sigmas_by_definition(std::vector<double> const& window, double value) {
    auto const n = static_cast<double>(window.size());
    double const mean = std::accumulate(window.begin(), window.end(), 0.0) / n;
    double squares = 0;
    for (double const x : window) squares += (x - mean) * (x - mean);
    return (value - mean) / std::sqrt(squares / (n - 1));
}

enum class Harm { bad_batch, scaled_weights, tenfold_rate };

/// Spoils steps that would be clean. `size` is 0, 1 or 2. Returns their reports; the learner is as before.
std::vector<StepReport> spoilt_steps(Patient& patient, Harm harm, int size, uint64_t number) {
    auto const before = patient.all();
    RunState const state = patient.state;
    auto batches = patient.batches();
    if (harm == Harm::bad_batch) {  // some tokens, half of them, or all are random
        Philox const random(11, Purpose::mock_data, number);
        auto& ids = batches[0].ids_T;
        for (size_t i = 0; i < ids.size(); ++i)
            if (random.uniform(i) < 0.3 * (size + 1) + 0.1) batches[0].targets_T[i] = (ids[i] * 7 + 31) % 256;
    } else if (harm == Harm::scaled_weights) {
        for (float& w : patient.weights()) w *= 1.5F + static_cast<float>(size);
    }
    std::vector<StepReport> reports;
    int const steps = harm == Harm::tenfold_rate ? 4 * (size + 1) : 1;
    for (int i = 0; i < steps; ++i) {
        std::vector<float> const w(patient.weights().begin(), patient.weights().end());
        reports.push_back(patient.step(batches));
        batches = patient.batches();
        for (size_t j = 0; j < w.size() && steps > 1; ++j)  // AdamW's update is proportional to its rate
            patient.weights()[j] = w[j] + 10.0F * (patient.weights()[j] - w[j]);
    }
    patient.set_all(before);
    patient.state = state;
    return reports;
}

TEST(Spikes, injected_into_training_are_found_at_their_step_and_clean_steps_are_none) {
    if (PERIGEE_SANITIZED) GTEST_SKIP() << "a hundred steps, as in other tests";
    auto const files = make_file_system();
    auto const alone = make_single_host_comm();
    Patient patient(*alone, *files);
    std::vector<double> losses;
    int large = 0, found = 0, of_harm[3] = {}, alarms = 0;
    for (int i = 0; i < 100; ++i) {
        for (int clean = 0; clean < (i == 0 ? 200 : 20); ++clean) {
            StepReport const r = patient.step(patient.batches());
            alarms += r.judged.spike.has_value();
            losses.push_back(r.loss);
        }
        auto const harm = static_cast<Harm>(i % 3);
        bool known = false;
        for (StepReport const& r : spoilt_steps(patient, harm, i / 3 % 3, static_cast<uint64_t>(i))) {
            known = known || r.judged.spike.has_value();
            if (sigmas_by_definition({losses.end() - kWindow, losses.end()}, r.loss) <= 8) continue;
            ++large;
            ++of_harm[i % 3];
            found += known;
            break;  // it is to be found at this step, or before
        }
    }
    EXPECT_EQ(alarms, 0);
    EXPECT_GE(found, 0.95 * large) << "of " << large << " above 8 sigma";
    for (int const count : of_harm) EXPECT_GE(count, 10) << "too few of one kind are large";
    RecordProperty("large", large);
    RecordProperty("found", found);
    std::printf("%d of 100 are above 8 sigma (%d, %d, %d by kind), %d of them found\n", large, of_harm[0], of_harm[1],
                of_harm[2], found);
}

}  // namespace
}  // namespace perigee
