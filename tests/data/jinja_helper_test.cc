// A conversation that the helper of a Jinja template does not survive, and those after it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/jinja_encoder.h"
#include "marked_tokenizer.h"
#include "megatron_files.h"

namespace perigee {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::MarkedTokenizer;

TEST(JinjaHelper, IsReplacedAfterAConversationThatNeverEnds) {
    JinjaTemplate const chat{.text =
                                 "{% for m in messages %}{% if m.content == 'long' %}{% for i in range(99999) %}"
                                 "{% for j in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
                                 "<|im_start|>{{ m.role + m.content }}<|im_end|>{% endfor %}"
                                 "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}",
                             .source = "test",
                             .tools_text = "",
                             .special = {}};
    MarkedTokenizer const tokenizer;
    JinjaEncoder encoder(chat, {}, 100, tokenizer, std::chrono::seconds(10));
    auto const prompt = encoder.prompt(conversation_line({{"user", "u"}}));
    EXPECT_THAT(error_of(Category::data,
                         [&] {
                             encoder.prompt(conversation_line({{"user", "long"}}));
                         }),
                HasSubstr("no sign of life for 10 s"));
    EXPECT_EQ(encoder.prompt(conversation_line({{"user", "u"}})), prompt);
}

}  // namespace
}  // namespace perigee
