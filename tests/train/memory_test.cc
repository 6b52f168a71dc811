#include "train/memory.h"

#include <gmock/gmock.h>

namespace perigee {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(OutOfMemoryReport, TellsWhereMemoryWentAndTheThreeCheapestRemedies) {
    RunOptions options;
    options.train.micro_batch_size = 4;
    std::string const text = out_of_memory_report("out of memory for `gate_up`",
                                                  {.weights = int64_t{2} << 30, .activations = 5 << 20}, options);
    EXPECT_THAT(text, HasSubstr("`gate_up`"));
    EXPECT_THAT(text, HasSubstr("weights 2.00GiB"));
    EXPECT_THAT(text, HasSubstr("train.micro_batch_size=2"));
    EXPECT_THAT(text, HasSubstr("train.recompute=elementwise"));
    EXPECT_THAT(text, HasSubstr("train.recompute=mlp"));
    EXPECT_THAT(text, Not(HasSubstr("train.recompute=block")));
}

TEST(OutOfMemoryReport, AdvisesNoLayerToComputeLessAgain) {
    RunOptions options;
    options.train.micro_batch_size = 1;
    options.model.num_hidden_layers = 32;
    options.train.recompute = "block*28, none*4";
    std::string text = out_of_memory_report("out of memory", {}, options);
    EXPECT_THAT(text, HasSubstr("train.recompute=block: "));
    EXPECT_THAT(text, Not(HasSubstr("train.recompute=elementwise")));
    EXPECT_THAT(text, Not(HasSubstr("train.recompute=attention")));
    options.train.recompute = "mlp*16, elementwise*16";
    text = out_of_memory_report("out of memory", {}, options);
    EXPECT_THAT(text, HasSubstr("train.recompute=mlp: "));
    EXPECT_THAT(text, HasSubstr("train.recompute=attention: "));
    EXPECT_THAT(text, Not(HasSubstr("train.recompute=elementwise")));
}

TEST(OutOfMemoryReport, NamesNothingThatIsAlreadyDone) {
    RunOptions options;
    options.train.micro_batch_size = 1;
    options.train.recompute = "block";
    options.data.sequence_length = 4096;
    std::string const text = out_of_memory_report("out of memory", {}, options);
    EXPECT_THAT(text, Not(HasSubstr("micro_batch_size")));
    EXPECT_THAT(text, Not(HasSubstr("recompute")));
    EXPECT_THAT(text, HasSubstr("parallel.context"));
    EXPECT_THAT(text, HasSubstr("data.sequence_length=2048"));
}

}  // namespace
}  // namespace perigee
