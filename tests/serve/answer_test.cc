// The answer to a request: when it is one, and when it has failed.
#include "serve/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace perigee::serve {
namespace {

using ::testing::HasSubstr;

TEST(Answers, FailWithoutTheLogProbabilitiesOfAllPrompts) {
    auto const files = make_file_system();
    auto const tokenizer = make_tokenizer(*files, "bytes");
    ServedPrompt const prompt{.ids = {'h', 'i'}, .text = "hi"};
    ServedRequest const request{
        .prompts = {prompt, prompt}, .sampling = {}, .echo = true, .stream = true, .logprobs = 0};
    for (size_t const scored : {1, 2}) {
        Answer answer(request, *tokenizer, "1", 0);
        for (size_t task = 0; task < scored; ++task)
            answer.add({.task = task, .what = PromptScores{.logprobs = {-2}, .top = {{}, {}}}});
        EXPECT_EQ(answer.complete(), scored == 2);
        EXPECT_EQ(answer.end_now(), "");  // nothing that looks like the end of a choice
        EXPECT_TRUE(answer.complete());
        EXPECT_EQ(answer.failed(), scored == 1);
        EXPECT_THAT(answer.finish(), HasSubstr(scored == 1 ? "before all prompts were read" : "[DONE]"));
    }
}

}  // namespace
}  // namespace perigee::serve
