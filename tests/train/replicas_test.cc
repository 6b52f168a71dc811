// Bits that flip in what ranks hold alike are found, and the right rank is named.
#include "train/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config.h"
#include "ops/observed_ops.h"
#include "support/thread_comm.h"
#include "train/learner.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

RunOptions tiny_hashed(std::string const& more = "") {
    RunOptions o = parse_config(R"(
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2}
data: {mock_data: true, sequence_length: 32}
train: {steps: 1000, global_batch_size: 4, micro_batch_size: 1}
guard: {hash_every: 3}
threads: 1
)" + more,
                                "tiny", {});
    return resolve(o, 1, *make_file_system());
}

void flip(TensorView x, int64_t element, unsigned bit) {
    auto* const bytes = reinterpret_cast<unsigned char*>(x.data + element * size_of(x.dtype));
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ 1u << bit % 8);
}

/// The host's operations, with something done before or after each.
class FaultyOps final : public ObservedOps {
  public:
    using Do = std::function<void(Operation const&)>;
    FaultyOps(std::unique_ptr<Ops> real, Do before, Do after)
        : ObservedOps(*real), real_(std::move(real)), before_(std::move(before)), after_(std::move(after)) {}
    void run(Operation const& operation) override {
        before_(operation);
        ObservedOps::run(operation);
        after_(operation);
    }

  private:
    std::unique_ptr<Ops> real_;
    Do before_, after_;
};

Machine machine_of(FaultyOps::Do before, FaultyOps::Do after) {
    auto device = make_host_device();
    auto real = make_host_ops(*device, 1);
    auto ops = std::make_unique<FaultyOps>(std::move(real), std::move(before), std::move(after));
    return {std::move(device), std::move(ops)};
}

/// What is flipped before the update; with `lasting` also in the third loss from then on, which is that of the step
/// computed a second time, and with `backward` in its gradient.
enum class Where { weight, gradient, moment, lasting, backward };

struct Fault {
    int rank;
    int64_t step;
    Where where;
};

Machine machine_with(Fault const& fault, int rank, int64_t const& step) {
    auto const flipped = std::make_shared<bool>(rank != fault.rank);
    auto const before = [=, &step](Operation const& operation) {
        auto const* const adamw = std::get_if<AdamW>(&operation);
        if (adamw == nullptr || step != fault.step || std::exchange(*flipped, true)) return;
        ConstView const g = adamw->g;
        if (fault.where == Where::gradient) flip(TensorView(const_cast<std::byte*>(g.data), g.dtype, g.shape), 17, 30);
        if (fault.where == Where::weight || fault.where == Where::lasting || fault.where == Where::backward)
            flip(adamw->w, 17, 3);
        if (fault.where == Where::moment) flip(adamw->v, 17, 30);
    };
    auto const losses = std::make_shared<int>(0);
    auto const after = [=, &step](Operation const& operation) {
        if (rank != fault.rank || step < fault.step) return;
        auto const* const loss = std::get_if<CrossEntropy>(&operation);
        if (loss != nullptr && fault.where == Where::lasting && ++*losses == 3) flip(loss->nll_T, 3, 20);
        auto const* const embedding = std::get_if<EmbeddingBackward>(&operation);
        if (embedding != nullptr && fault.where == Where::backward && ++*losses == 3)
            flip(embedding->dtable_accumulated_VD, 3, 30);
    };
    return machine_of(before, after);
}

/// The error that ends a job of so many ranks, and when.
struct Ended {
    Category category = Category::internal;
    std::string message;
    int64_t step = 0;
};

Ended train(RunOptions const& options, int ranks, Fault const& fault, int64_t steps = 7) {
    auto const files = make_file_system();
    Ended ended;
    testing::run_ranks(ranks, [&](HostComm& world) {
        RunState state{.info = {}};
        int64_t step = 1;
        Session session(options, machine_with(fault, world.rank(), step), world, *files);
        Learner learner(session);
        learner.initialise(1);
        auto const data = session.open(Split::train);
        int64_t const dp = session.mesh().shape().dp;
        for (; step <= steps; ++step) {
            std::vector<Batch> batches;
            for (int64_t i = session.mesh().dp_rank(); i < 4; i += dp)
                batches.push_back(make_batch(*data, state.consumed_samples + i, 1));
            try {
                learner.step(batches, state);
            } catch (Error const& e) {
                if (world.rank() == 0) ended = {e.category(), e.what(), step};
                return;
            }
        }
    });
    return ended;
}

TEST(Replicas, that_are_alike_raise_no_alarm_in_any_layout) {
    for (char const* const parallel :
         {"parallel: {shard: none}", "parallel: {shard: optimizer}", "parallel: {shard: gradients}",
          "parallel: {shard: weights}", "parallel: {tensor: 2, shard: none}", "parallel: {tensor: 2, shard: weights}",
          "parallel: {tensor: 2, context: 2}"}) {
        Ended const ended = train(tiny_hashed(parallel), 4, {.rank = -1, .step = 0, .where = Where::weight});
        EXPECT_EQ(ended.step, 0) << parallel << ": " << ended.message;
    }
}

TEST(Replicas, a_flipped_bit_is_found_within_the_interval_and_its_rank_named) {
    for (Where const where : {Where::weight, Where::gradient, Where::moment})
        for (int const rank : {0, 2, 3}) {
            Ended const ended = train(tiny_hashed("parallel: {shard: none}"), 4, {rank, 4, where});
            EXPECT_EQ(ended.step, 6);
            EXPECT_EQ(ended.category, Category::corruption) << ended.message;
            EXPECT_THAT(ended.message, HasSubstr(fmt::format("of rank {} (on the CPU of host ", rank)));
            EXPECT_THAT(ended.message, HasSubstr("differs from that of rank"));
            EXPECT_THAT(ended.message, HasSubstr("a passing fault"));
        }
}

TEST(Replicas, of_two_ranks_both_are_named) {
    Ended const ended = train(tiny_hashed("parallel: {shard: none}"), 2, {1, 2, Where::weight});
    EXPECT_EQ(ended.step, 3);
    EXPECT_THAT(ended.message, HasSubstr("differs between rank 0"));
    EXPECT_THAT(ended.message, HasSubstr("one of them is wrong"));
}

TEST(Replicas, a_rank_that_computes_two_results_has_a_lasting_fault) {
    Ended const ended = train(tiny_hashed("parallel: {shard: none}"), 4, {1, 3, Where::lasting});
    EXPECT_EQ(ended.step, 3);
    EXPECT_EQ(ended.category, Category::faulty_device) << ended.message;
    EXPECT_THAT(ended.message, HasSubstr("two results on rank 1 (on the CPU of host "));
}

TEST(Replicas, a_rank_that_computes_two_gradients_has_a_lasting_fault) {
    Ended const ended = train(tiny_hashed("parallel: {shard: none}"), 4, {1, 3, Where::backward});
    EXPECT_EQ(ended.step, 3);
    EXPECT_EQ(ended.category, Category::faulty_device) << ended.message;
    EXPECT_THAT(ended.message, HasSubstr("has one loss on every rank, but two gradients, seen by rank "));
}

TEST(Replicas, names_the_tensor) {
    auto const files = make_file_system();
    RunOptions const options = tiny_hashed("parallel: {tensor: 2, shard: optimizer}");
    for (std::string const name : {"model.norm.weight", "model.layers.1.mlp.down_proj.weight"}) {
        testing::run_ranks(4, [&](HostComm& world) {
            Session session(options, world, *files);
            Learner learner(session);
            learner.initialise(1);
            AdamWOptimizer const optimizer(options.optimizer, session.layout(), session.sharding().ownership,
                                           session.weights().updated(), session.ops());
            auto const tensors = replicated_tensors(session, optimizer, learner.gradients());
            EXPECT_FALSE(compare_replicas(session, tensors));
            if (world.rank() == 3) flip(session.layout().view(session.weights().flat(), name), 5, 0);
            auto const found = compare_replicas(session, tensors);
            ASSERT_TRUE(found);
            EXPECT_EQ(found->tensor, name);
            // Ranks 1 and 3 hold the same part, and of what is not cut 2 and 3 do, too.
            EXPECT_THAT(found->suspects, ::testing::Contains(3));
        });
    }
}

/// The loss of step 150, which is wrong the first time it is computed where `broken`.
double loss_of_step_150(bool broken) {
    auto const files = make_file_system();
    auto const alone = make_single_host_comm();
    int64_t step = 1;
    bool flipped = !broken;
    auto const after = [&](Operation const& operation) {
        auto const* const loss = std::get_if<CrossEntropy>(&operation);
        if (loss != nullptr && step == 150 && !std::exchange(flipped, true)) flip(loss->nll_T, 3, 29);
    };
    Session session(tiny_hashed(), machine_of([](Operation const&) {}, after), *alone, *files);
    Learner learner(session);
    learner.initialise(1);
    auto const data = session.open(Split::train);
    RunState state{.info = {}};
    double last = 0;
    for (; step <= 150; ++step) {
        StepReport const r = learner.step({make_batch(*data, state.consumed_samples, 4)}, state);
        EXPECT_FALSE(r.judged.spike || r.skipped) << "step " << step;
        last = r.loss;
    }
    EXPECT_TRUE(flipped);
    return last;
}

TEST(ComputedAgain, a_step_with_a_passing_fault_counts_by_its_second_result) {
    EXPECT_EQ(loss_of_step_150(true), loss_of_step_150(false));
}

}  // namespace
}  // namespace perigee
