// By Python's jinja2 as the distribution has it; templates of our own with the constructs that published ones have.
#include <gmock/gmock.h>

#include "jinja_encoder_case.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using testing::write_bytes;
using Fate = EncodedChat::Fate;

/// Writes another end where more is said.
constexpr char kRewrites[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{{ '<|eos|>' if loop.last and m.role == 'assistant' else '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST_F(JinjaEncoderTest, RendersTheFoldersTemplateAndFindsAnswersByPrefixes) {
    EXPECT_THAT(documents(talk_),
                ElementsAre("<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n"
                            "<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n[<think>r</think>b<|im_end|>]\n"));
}

TEST_F(JinjaEncoderTest, WritesToolsCallsResultsAndPartsInTheOrderOfTheirKeys) {
    EXPECT_THAT(
        documents(R"({"tools": [{"z": "<&>", "a": "\u00e9"}], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "text", "text": "v"}]},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"y": 1, "b": 2}}}]},
        {"role": "tool", "content": "7"}, {"role": "assistant", "content": "b"}]})"),
        ElementsAre(
            "<|im_start|>system\n{\"z\": \"<&>\", \"a\": \"\xc3\xa9\"}\n<|im_end|>\n<|im_start|>user\nuv<|im_end|>\n"
            "<|im_start|>assistant\n[{\"call\": {\"name\": \"f\", \"arguments\": {\"y\": 1, \"b\": 2}}}<|im_end|>]\n"
            "<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n"));
}

TEST_F(JinjaEncoderTest, AnswersThatLaterTurnsRewriteGetDocumentsOfTheirOwn) {
    std::string const line = R"({"messages": [{"role": "user", "content": "u"},
        {"role": "assistant", "content": "a", "reasoning_content": "q"}, {"role": "user", "content": "v"},
        {"role": "assistant", "content": "b", "reasoning_content": "r"}]})";
    std::string const first = "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n";
    std::string const second = "<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n[<think>r</think>b<|im_end|>]\n";
    EXPECT_THAT(documents(line),
                ElementsAre(first + "[<think>q</think>a<|im_end|>]\n", first + "a<|im_end|>\n" + second));
    EXPECT_THAT(documents(line, {.jinja = {.rewritten = Rewritten::no_loss}}),
                ElementsAre(first + "a<|im_end|>\n" + second));
    EXPECT_THAT(documents(line, {.loss = ChatLoss::last}), ElementsAre(first + "a<|im_end|>\n" + second));
    auto const all = encoder()->encode_all({parse_conversation(line)});
    EXPECT_EQ(all[0].rewritten, 1);
    EXPECT_EQ(all[0].without_reasoning, 0) << "each answer has its reasoning where it is generated";
}

TEST_F(JinjaEncoderTest, AnAnswerToNothingIsToldWhereTheTemplateWantsAQuestion) {
    use("{% if messages[0].role == 'system' %}S{% endif %}" + std::string(kPlain));
    std::string const line = R"({"messages": [{"role": "assistant", "content": "a")";
    std::string const rest = R"(}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "b"}]})";
    EXPECT_THAT(documents(line + rest), ElementsAre(AllOf(HasSubstr("message 1: the messages before it cannot be"),
                                                          HasSubstr("\"weight\": 0 does not"))));
    EXPECT_THAT(documents(line + R"(, "weight": 0)" + rest), ElementsAre(HasSubstr("[b<|im_end|>]")));
}

TEST_F(JinjaEncoderTest, AnswersWhoseReasoningTheTemplateLeavesOutAreCounted) {
    use("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    auto const all = encoder()->encode_all(
        {parse_conversation(R"({"messages": [{"role": "user", "content": "u"},
            {"role": "assistant", "content": "a", "reasoning": "why"}, {"role": "user", "content": "v"},
            {"role": "assistant", "content": "b", "thinking": " so  "}, {"role": "user", "content": "w"},
            {"role": "assistant", "content": "c", "reasoning_content": ""}]})"),
         parse_conversation(
             R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]})")});
    EXPECT_EQ(all[0].problem, "");
    EXPECT_EQ(all[0].without_reasoning, 2);
    EXPECT_EQ(all[1].without_reasoning, 0);
}

TEST_F(JinjaEncoderTest, ManyRewrittenAnswersAreEachRenderedOnce) {
    use(kRewrites);
    std::vector<Message> messages;
    for (int i = 0; i < 200; ++i) messages.insert(messages.end(), {{"user", "u"}, {"assistant", "a"}});
    auto const chat = encoder();
    auto const start = std::chrono::steady_clock::now();
    EXPECT_EQ(chat->encode_all({conversation_line(messages)})[0].documents.size(), 200u);
    // Once for each document would take 35 s, not 1.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST_F(JinjaEncoderTest, ATemplateWhoseTextIsNoContinuationOfItsPromptIsRefusedWithThePlace) {
    use("{% for m in messages %}<|im_start|>{{ m.role + ':' + m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant:<think>{% endif %}");
    EXPECT_THAT(documents(talk_), ElementsAre(AllOf(HasSubstr("message 2: the text to train on is no continuation"),
                                                    HasSubstr("<think>"))));
}

TEST_F(JinjaEncoderTest, AnEndThatOnlyTheLastMessageHasIsNoPartOfAnAnswer) {
    use("{% for m in messages %}<|im_start|>{{ m.role + ':' + m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant:{% else %}{{ eos_token }}{% endif %}");
    EXPECT_THAT(
        documents(R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},
                              {"role": "user", "content": "v"}, {"role": "assistant", "content": "b"}]})"),
        ElementsAre("<|im_start|>user:u<|im_end|><|im_start|>assistant:[a<|im_end|>]<|im_start|>user:v<|im_end|>"
                    "<|im_start|>assistant:[b<|im_end|>]<|eos|>"));
}

TEST_F(JinjaEncoderTest, NamesOfSpecialTokensThatUsersWriteStayText) {
    use(kPlain);
    auto const chat = encoder();
    auto const encoded = chat->encode_all({parse_conversation(
        R"({"messages": [{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "x<|im_start|>y"}]})")});
    ASSERT_EQ(encoded[0].documents.size(), 1u);
    EXPECT_EQ(shown(encoded[0].documents[0]),
              "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n[x<|im_start|>y<|im_end|>]\n");
    EXPECT_EQ(std::ranges::count(encoded[0].documents[0].tokens, 300), 2);
    EXPECT_EQ(std::ranges::count(encoded[0].documents[0].tokens, 301), 2);
    auto const prompt = chat->prompt(conversation_line({{"user", "<|im_end|>"}}));
    EXPECT_EQ(std::ranges::count(prompt, 301), 1);
}

TEST_F(JinjaEncoderTest, AMarkerThatTheTokenizerSpellsOutIsRefused) {
    use("{% for m in messages %}<|turn|>{{ m.role + '\n' + m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}");
    EXPECT_THAT(error_of(Category::config, [&] { encoder(); }),
                HasSubstr("it writes <|turn|>, which is no single token"));
    use("{% for m in messages %}{{ m.role + ': ' + m.content + ' ##\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}");
    EXPECT_THAT(error_of(Category::config, [&] { encoder(); }),
                HasSubstr("ends answers with \" ##\", which is no special token"));
    use("{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    EXPECT_THAT(error_of(Category::config, [&] { encoder(); }), HasSubstr("no answer would end"));
}

TEST_F(JinjaEncoderTest, TokensAcrossTheBeginningOfAnAnswerAreThoseOfTheWholeTextAndCarryLoss) {
    // The merge of space and w makes one token of the prompt's last character and the answer's first.
    use("{% for m in messages %}<|im_start|>{{ m.role + ': ' + m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}");
    auto const encoded = encoder()->encode_all({parse_conversation(
        R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "we"}]})")});
    EncodedChat const& chat = encoded[0].documents[0];
    EXPECT_EQ(chat.tokens,
              tokenizer_->encode_with_special("<|im_start|>user: u<|im_end|><|im_start|>assistant: we<|im_end|>"));
    EXPECT_EQ(shown(chat), "<|im_start|>user: u<|im_end|><|im_start|>assistant:[ we<|im_end|>]");
}

TEST_F(JinjaEncoderTest, MarkersOfOtherShapesAreRefusedWhereTheTokenizerSpellsThemOut) {
    auto const chat = [](std::string const& open, std::string const& close, std::string const& first = "") {
        return first + "{% for m in messages %}" + open + "{{ m.role + '\n' + m.content }}" + close +
               "{% endfor %}{% if add_generation_prompt %}" + open + "assistant\n{% endif %}";
    };
    for (auto const& [text, name] :
         {std::pair{chat("[|turn|]", "<|im_end|>"), "[|turn|]"},
          {chat("<|turn>", "<|im_end|>"), "<|turn>"},
          {chat("<turn|>", "<|im_end|>"), "<turn|>"},
          {chat("<start_of_turn>", "<end_of_turn>"), "<start_of_turn>"},
          {chat("[BEGIN]", "[/TURN]"), "[BEGIN]"},
          {chat("<|im_start|>", "<|im_end|>", "{{ bos_token }}"), "<begin>"},
          {chat("<|im_start|>", "<|im_end|>", "{% if tools %}<|tools|>{{ tools | tojson }}{% endif %}"),
           "<|tools|>"}}) {
        use(text);
        EXPECT_THAT(error_of(Category::config, [&] { encoder(); }),
                    HasSubstr(fmt::format("it writes {}, which is no single token", name)));
    }
    use(chat("[BEGIN]", "<|im_end|>"));  // no name of its kind is a token, so it may be meant as text
    EXPECT_NO_THROW(encoder());
    use(chat("<|im_start|>", "<|im_end|>", "List<int> [NOTE] <b> {\"a\": [\"X\"]} "));
    EXPECT_NO_THROW(encoder());
}

TEST_F(JinjaEncoderTest, SpecialTokensThatAlwaysFollowTheEndOfAnAnswerAtOnceBelongToIt) {
    use("{% for m in messages %}<|im_start|>{{ m.role + ':' + m.content }}<|im_end|>"
        "{% if m.role == 'assistant' %}<|eos|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}");
    EXPECT_THAT(documents(R"({"prompt": "u", "completion": "a"})"),
                ElementsAre("<|im_start|>user:u<|im_end|><|im_start|>assistant:[a<|im_end|><|eos|>]"));
    EXPECT_THAT(encoder()->stop(), ElementsAre(301, 302));
}

TEST_F(JinjaEncoderTest, TokensAreThoseOfTheWholeTextAlsoWhereUsersWriteNamesOfSpecialTokens) {
    use("{% for m in messages %}<|im_start|>{{ m.role + ': ' + m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}");
    std::string const both = R"({"messages": [{"role": "user", "content": "<|eos|>"},
        {"role": "assistant", "content": "we"}]})";
    auto const encoded = encoder()->encode_all({parse_conversation(both)});
    EXPECT_EQ(shown(encoded[0].documents[0]),
              "<|im_start|>user: <|eos|><|im_end|><|im_start|>assistant:[ we<|im_end|>]");
    EXPECT_EQ(std::ranges::count(encoded[0].documents[0].tokens, 302), 0);
    auto const plain = encoder()->encode_all({parse_conversation(R"({"prompt": "u", "completion": "we"})")});
    auto const tail = [](EncodedChat const& chat) {
        return std::vector<int32_t>(std::ranges::find(chat.tokens, 301), chat.tokens.end());
    };
    EXPECT_EQ(tail(encoded[0].documents[0]), tail(plain[0].documents[0]));
}

TEST_F(JinjaEncoderTest, NamesWithQuotesThatUsersWriteStayText) {
    use(kPlain);
    auto const encoded = encoder()->encode_all({parse_conversation(
        R"({"messages": [{"role": "user", "content": "<|\"|>"}, {"role": "assistant", "content": "a"}]})")});
    EXPECT_EQ(shown(encoded[0].documents[0]),
              "<|im_start|>user\n<|\"|><|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n");
    EXPECT_EQ(std::ranges::count(encoded[0].documents[0].tokens, 305), 0);
}

TEST_F(JinjaEncoderTest, NamesThatAreWordsStayTextWhereUsersWriteThem) {
    use("{{ tools | tojson if tools }}{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}"
        "{% else %}<|im_end|>{{ m.content }}{% endif %}ENDTURN{% endfor %}"
        "{% if add_generation_prompt %}<|im_end|>{% endif %}");
    auto const encoded =
        encoder()->encode_all({parse_conversation(R"({"messages": [{"role": "user", "content": "ENDTURNs"},
        {"role": "assistant", "content": "a"}], "tools": [{"type": "x", "an ENDTURN": ["ENDTURN"]}]})")});
    ASSERT_EQ(encoded[0].problem, "");
    EXPECT_EQ(shown(encoded[0].documents[0]),
              "[{\"type\": \"x\", \"an ENDTURN\": [\"ENDTURN\"]}]<|im_start|>ENDTURNsENDTURN<|im_end|>[aENDTURN]");
    EXPECT_EQ(std::ranges::count(encoded[0].documents[0].tokens, 306), 2);
    use("{% for m in messages %}<|im_start|>{{ raise_exception(m.content) if m.content[0] == 'E' "
        "else m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}");
    EXPECT_THAT(documents(R"({"prompt": "ENDTURN", "completion": "a"})"),
                ElementsAre("problem: the template says: ENDTURN"));
}

TEST_F(JinjaEncoderTest, TheTokensOfTheTemplateAreTheSameWhateverNamesUsersWrite) {
    use("{% for m in messages %}<|im_start|><|say|>\n{{ '<think>' if m.role == 'assistant' }}{{ m.content }}<|im_end|>"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|><|say|>\n<think>{% endif %}");
    auto const chat = encoder();
    auto const tokens = [&](std::string const& asked) {
        return chat->encode_all({conversation_line({{"user", asked}, {"assistant", "a"}})})[0].documents[0].tokens;
    };
    auto const plain = tokens("u"), named = tokens("<|eos|>");
    EXPECT_THAT(plain, ElementsAre(300, 307, 'u', 301, 300, 307, 308, 'a', 301));
    EXPECT_EQ(std::vector(named.end() - 6, named.end()), std::vector(plain.end() - 6, plain.end()));
    EXPECT_THAT(std::vector(named.begin(), named.begin() + 3), ElementsAre(300, 307, '<'));
}

// The constructs of published templates that kAgent has not, in a template of our own: slices, a reversed loop, a loop
// that ends early, the items before and after, tests, text that is taken apart, a block that is set, a recursive macro,
// sorted keys, arguments with defaults, joined lists and indented JSON.
constexpr char kRich[] = R"({%- set show = show if show is defined else true -%}
{%- macro value_of(value) -%}
    {%- if value is mapping -%}
        {%- for key, inner in value | dictsort -%}
            {{ key }}={{ value_of(inner) }}{{ ',' if not loop.last }}
        {%- endfor -%}
    {%- elif value is boolean -%}
        {{ 'yes' if value else 'no' }}
    {%- elif value is iterable and value is not string -%}
        {{ '[' ~ (value | map('string') | map('upper') | join('/')) ~ ']' }}
    {%- else -%}
        {{ value | string }}
    {%- endif -%}
{%- endmacro -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- set head = messages[0]['content'].strip() + '
' -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set head, rest = '', messages -%}
{%- endif -%}
{%- set ns = namespace(asked=-1, names=[], whole=true) -%}
{%- for message in rest[::-1] if message.role == 'user' -%}
    {%- set ns.asked = rest.index(message) -%}
    {%- break -%}
{%- endfor -%}
{%- for tool in tools or [] -%}
    {%- set ns.names = ns.names + [tool['function']['name'] | default('none')] -%}
{%- endfor -%}
{{- '<|im_start|>system
' ~ head ~ (ns.names | join(', ')) -}}
{%- if tools %}{{ '
' ~ (tools[0] | tojson(indent=2)) }}{% endif -%}
{{- '<|im_end|>
' -}}
{%- for message in rest -%}
    {%- if message.role == 'tool' -%}
        {%- if loop.previtem is undefined or loop.previtem.role != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}
        {{- '
<r>' ~ (message.content | trim) ~ '</r>' -}}
        {%- if loop.last or loop.nextitem.role != 'tool' -%}{{ '<|im_end|>
' }}{%- endif -%}
    {%- elif message.role == 'assistant' -%}
        {%- set thought, said = '', message.content or '' -%}
        {%- if message.reasoning_content is string -%}
            {%- set thought = message.reasoning_content -%}
        {%- elif '</think>' in said -%}
            {%- set thought = said.split('</think>')[0].rstrip('
').split('<think>')[-1].lstrip('
') -%}
            {%- set said = said.split('</think>')[-1].lstrip('
') -%}
        {%- endif -%}
        {%- set written -%}
            {%- if show and thought and loop.index0 >= ns.asked -%}{{ '<think>' ~ thought ~ '</think>' }}{%- endif -%}
            {{- said -}}
            {%- for call in message.tool_calls | default([], true) -%}
                {%- set call = call.function if call.function is defined else call -%}
                {{- '(' ~ call.name ~ ': ' ~ value_of(call.arguments) ~ ')' -}}
            {%- endfor -%}
        {%- endset -%}
        {{- '<|im_start|>assistant
' -}}
        {%- generation -%}{{- written ~ '<|im_end|>
' -}}{%- endgeneration -%}
    {%- elif message['role'] in ['user', 'developer'] -%}
        {%- if message.content is string and message.content.startswith('/') -%}
            {{- raise_exception('No commands: ' + message.content[:3] + '.') -}}
        {%- endif -%}
        {{- '<|im_start|>' ~ (message.role | capitalize) ~ '
' -}}
        {%- for part in ([{'text': message.content}] if message.content is string else message.content) -%}
            {{- part['text'] | replace('&', 'and') -}}
        {%- endfor -%}
        {{- '<|im_end|>
' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif -%})";

TEST_F(JinjaEncoderTest, ConstructsOfPublishedTemplates) {
    use(kRich);
    std::string const system = "<|im_start|>system\n", end = "<|im_end|>\n", answer = "<|im_start|>assistant\n";
    std::string const line = R"({"tools": [{"function": {"name": "f", "x": "\u00e9"}}], "messages": [
        {"role": "system", "content": " S "}, {"role": "user", "content": [{"type": "text", "text": "a&b"}]},
        {"role": "assistant", "content": null, "thinking": "t", "tool_calls": [{"function": {"name": "f",
            "arguments": {"z": {"k": true}, "b": ["q", 1]}}}, {"name": "g", "arguments": 2.5}]},
        {"role": "tool", "content": "1 "}, {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nso", "tool_calls": null}]})";
    std::string const head = system +
                             "S\nf\n{\n  \"function\": {\n    \"name\": \"f\",\n    \"x\": \"\u00e9\"\n  }\n}" + end +
                             "<|im_start|>User\naandb" + end + answer;
    std::string const calls = "(f: b=[Q/1],z=k=yes)(g: 2.5)", results = "<|im_start|>user\n<r>1</r>\n<r>2</r>" + end;
    EXPECT_THAT(documents(line), ElementsAre(head + "[<think>t</think>" + calls + "<|im_end|>]\n" + results + answer +
                                             "[<think>why</think>so<|im_end|>]\n"));
    EXPECT_THAT(documents(line, {.jinja = {.arguments = R"({"show": false})"}}),
                ElementsAre(head + "[" + calls + "<|im_end|>]\n" + results + answer + "[so<|im_end|>]\n"));
    EXPECT_THAT(documents(R"({"prompt": "/help", "completion": "a"})"),
                ElementsAre("problem: the template says: No commands: /he."));
}

TEST_F(JinjaEncoderTest, ContentThatIsNullIsLeftOutUnlessTheTemplateLooksForIt) {
    std::string const line = R"({"messages": [{"role": "user", "content": "u"},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]}]})";
    std::string const text = "<|im_start|>user:u<|im_end|><|im_start|>assistant:[f<|im_end|>]";
    std::string const begin = "{% for m in messages %}<|im_start|>{{ m.role + ':' }}";
    std::string const end = "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}";
    use(begin + "{% if 'content' in m %}{{ m.content }}{% else %}{{ m.tool_calls[0].function.name }}{% endif %}" + end);
    EXPECT_THAT(documents(line), ElementsAre(text));
    use(begin +
        "{% if m.content is none %}{{ m.tool_calls[0].function.name }}{% else %}{{ '' + m.content }}{% endif %}" + end);
    EXPECT_THAT(documents(line), ElementsAre(text));
}

TEST_F(JinjaEncoderTest, TheTemplateIsFoundInEveryPlaceAndForm) {
    use({{{"name", "default"}, {"template", kPlain}}, {{"name", "tool_use"}, {"template", kAgent}}});
    std::string const asked =
        R"("messages": [{"role": "user", "content": " u"}, {"role": "assistant", "content": "a"}]})";
    std::string const plain = "<|im_start|>user\n u<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n";
    EXPECT_THAT(documents("{" + asked), ElementsAre(plain));
    EXPECT_THAT(documents(R"({"tools": [1], )" + asked)[0], HasSubstr("<|im_start|>system\n1\n<|im_end|>"));
    EXPECT_THAT(documents("{" + asked, {.jinja = {.name = "tool_use"}})[0], HasSubstr("user\nu<|im_end|>"));
    EXPECT_THAT(error_of(Category::config, [&] { encoder({.jinja = {.name = "x"}}); }),
                HasSubstr("no template \"x\"; there are: default, tool_use"));
    write_bytes(folder() / "chat_template.jinja", "{# a file wins #}" + std::string(kAgent));
    EXPECT_THAT(documents("{" + asked)[0], HasSubstr("user\nu<|im_end|>"));
    write_bytes(home_ / "own.jinja", kPlain);
    EXPECT_THAT(documents("{" + asked, {.jinja = {.file = (home_ / "own.jinja").string()}}), ElementsAre(plain));
    std::filesystem::remove(folder() / "chat_template.jinja");
    write_bytes(folder() / "tokenizer_config.json", R"({"eos_token": "<|eos|>"})");
    EXPECT_EQ(resolved(*files_, folder().string(), {}).format, ChatFormat::none);
    EXPECT_THAT(documents("{" + asked), ElementsAre(" u[a<|eos|>]"));
}

TEST_F(JinjaEncoderTest, ArgumentsTheDayAndSpecialTokensAreGivenToTheTemplate) {
    use("{{ strftime_now('%d %b %Y') + eos_token + (mood | default('no')) }}{% for m in messages %}<|im_start|>"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ "
        "m.content }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}");
    ChatOptions const options{.jinja = {.arguments = R"({"mood": "good"})", .date = "2024-07-26"}};
    EXPECT_THAT(documents(R"({"prompt": "u", "completion": "a"})", options),
                ElementsAre("26 Jul 2024<|eos|>good<|im_start|>u<|im_start|>[a<|im_end|>]"));
}

TEST_F(JinjaEncoderTest, WhatATemplateSaysOrDoesWrongIsTheConversationsProblem) {
    use("{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}" +
        std::string(kPlain));
    EXPECT_THAT(documents(R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "u"},
                              {"role": "assistant", "content": "a"}]})"),
                ElementsAre("problem: the template says: no system here"));
    use("{% for x in [1] %}");
    EXPECT_THAT(error_of(Category::config, [&] { encoder(); }), HasSubstr("tokenizer_config.json: "));
    use(std::string(kPlain) + "{{ messages.__class__.__mro__ }}");
    EXPECT_THAT(error_of(Category::config, [&] { encoder(); }), HasSubstr("unsafe"));
}

TEST_F(JinjaEncoderTest, ATemplateThatNeverEndsIsEnded) {
    use("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}");
    auto const chat = find_jinja_template(*files_, folder().string(), {});
    ASSERT_TRUE(chat.has_value());
    EXPECT_THAT(
        error_of(Category::data, [&] { JinjaEncoder(*chat, {}, 100, *tokenizer_, std::chrono::milliseconds(500)); }),
        HasSubstr("no sign of life for 0.5 s"));
}

TEST_F(JinjaEncoderTest, TooLongIsDroppedCutOrLosesItsOldestTurns) {
    use(kPlain);
    ConversationLine const line = parse_conversation(
        R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},
            {"role": "user", "content": "v"}, {"role": "assistant", "content": "b"}]})");
    auto const encode = [&](TooLong policy, int64_t most) {
        return encoder({.too_long = policy}, most)->encode_all({line})[0].documents.at(0);
    };
    int64_t const all = encode(TooLong::drop, 1000).full_tokens;
    EXPECT_EQ(encode(TooLong::drop, all).fate, Fate::whole);
    EXPECT_EQ(encode(TooLong::drop, all - 1).fate, Fate::too_long);
    EXPECT_EQ(std::ssize(encode(TooLong::cut_end, all - 1).tokens), all - 1);
    EncodedChat const rest = encode(TooLong::drop_oldest, all - 1);
    EXPECT_EQ(rest.fate, Fate::shortened);
    EXPECT_EQ(shown(rest),
              "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n");
    EXPECT_EQ(encode(TooLong::drop_oldest, 5).fate, Fate::too_long);
}

TEST_F(JinjaEncoderTest, AnAnswerCarriesLossInOneDocumentAlsoWhereAnotherOneLosesItsOldestTurns) {
    // The document that ends after b shows its reasoning, so it is longer than the whole conversation.
    ConversationLine const line = parse_conversation(fmt::format(
        R"({{"messages": [{{"role": "user", "content": "t"}}, {{"role": "assistant", "content": "0"}},
            {{"role": "user", "content": "u"}}, {{"role": "assistant", "content": "a"}}, {{"role": "user", "content": "v"}},
            {{"role": "assistant", "content": "b", "reasoning_content": "{}"}}, {{"role": "user", "content": "w"}},
            {{"role": "assistant", "content": "c"}}]}})",
        std::string(60, 'r')));
    auto const encode = [&](int64_t most) {
        return encoder({.too_long = TooLong::drop_oldest}, most)->encode_all({line})[0].documents;
    };
    int64_t const all = encode(1000).at(0).full_tokens;
    auto const documents = encode(all - 1);
    ASSERT_EQ(documents.size(), 2u);
    EXPECT_EQ(documents[0].fate, Fate::shortened);
    EXPECT_THAT(shown(documents[0]), AllOf(StartsWith("<|im_start|>user\nu"), HasSubstr("assistant\na<|im_end|>"),
                                           HasSubstr("assistant\n[<think>r")));
    EXPECT_EQ(documents[1].fate, Fate::whole);
    EXPECT_THAT(shown(documents[1]), AllOf(HasSubstr("assistant\n[a<|im_end|>]"), HasSubstr("assistant\nb<|im_end|>")));
}

TEST_F(JinjaEncoderTest, OfManyTurnsAsManyStayAsFit) {
    use(kPlain);
    std::string turns;
    for (int i = 10; i < 60; ++i)
        turns += fmt::format(R"({{"role": "user", "content": "u{0}"}}, {{"role": "assistant", "content": "a{0}"}}{1})",
                             i, i < 59 ? ", " : "");
    ConversationLine const line = parse_conversation(R"({"messages": [)" + turns + "]}");
    auto const encode = [&](int64_t most) {
        return encoder({.too_long = TooLong::drop_oldest}, most)->encode_all({line})[0].documents.at(0);
    };
    int64_t const all = encode(10000).full_tokens, turn = all / 50;
    ASSERT_EQ(all % 50, 0);
    for (int64_t const kept : {49, 31, 1}) {
        EncodedChat const rest = encode(kept * turn + turn - 1);
        EXPECT_EQ(rest.fate, EncodedChat::Fate::shortened) << kept;
        EXPECT_EQ(std::ssize(rest.tokens), kept * turn);
        EXPECT_THAT(shown(rest), StartsWith(fmt::format("<|im_start|>user\nu{}<|im_end|>", 60 - kept)));
    }
}

TEST_F(JinjaEncoderTest, RewrittenAnswersAreEachRenderedOnceAlsoWhereTheirDocumentsLoseTheOldestTurns) {
    use(kRewrites);
    std::vector<Message> messages;
    for (int i = 0; i < 150; ++i) messages.insert(messages.end(), {{"user", "u"}, {"assistant", "a"}});
    auto const chat = encoder({.too_long = TooLong::drop_oldest}, 1000);
    auto const start = std::chrono::steady_clock::now();
    auto const found = chat->encode_all({conversation_line(messages)})[0].documents;
    ASSERT_EQ(found.size(), 150u);
    EXPECT_EQ(found[149].fate, EncodedChat::Fate::shortened);
    EXPECT_THAT(shown(found[149]), EndsWith("<|im_end|><|im_start|>assistant\n[a<|eos|>]"));
    // Rendering every answer of every shortened document would take minutes, not 2 s.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST_F(JinjaEncoderTest, WhatFitsWithoutATokenThatCarriesLossIsNotTooLong) {
    use(kPlain);
    ConversationLine const line = parse_conversation(
        R"({"messages": [{"role": "user", "content": "a long first question"}, {"role": "assistant", "content": "a"},
            {"role": "user", "content": "v"}, {"role": "assistant", "content": "b", "weight": 0}]})");
    auto const encode = [&](int64_t most) {
        return encoder({.too_long = TooLong::drop_oldest}, most)->encode_all({line})[0].documents.at(0).fate;
    };
    EXPECT_EQ(encode(1000), Fate::whole);
    EXPECT_EQ(encode(40), Fate::without_loss);
    EXPECT_EQ(encode(5), Fate::too_long);
}

TEST_F(JinjaEncoderTest, ToolsAndCallsThatTheTemplateDoesNotWriteAreRefused) {
    use(kPlain);
    std::string const asks = R"("messages": [{"role": "user", "content": "u"}, )";
    EXPECT_THAT(documents(R"({"tools": [{"type": "function", "function": {"name": "weather"}}], )" + asks +
                          R"({"role": "assistant", "content": "a"}]})"),
                ElementsAre(HasSubstr("the template does not write tools")));
    EXPECT_THAT(documents("{" + asks + R"({"role": "assistant", "content": "", "tool_calls": [{"type": "function",
                    "function": {"name": "weather", "arguments": {}}}]}]})"),
                ElementsAre(HasSubstr("the template does not write tool calls")));
}

TEST_F(JinjaEncoderTest, NamesOfToolsThatOtherTextsHaveAreNotTakenForTools) {
    use(kPlain);
    std::string const tools = R"("tools": [{"type": "function", "function": {"name": "weather"}}], )";
    EXPECT_THAT(documents("{" + tools + R"("messages": [{"role": "user", "content": "the weather?"},
                    {"role": "assistant", "content": "a"}]})"),
                ElementsAre(HasSubstr("the template does not write tools")));
    std::string const calls = R"("messages": [{"role": "user", "content": "the weather?"}, {"role": "assistant",
                    "content": "a", "tool_calls": [{"type": "function", "function": {"name": "weather"}}]}]})";
    EXPECT_THAT(documents("{" + calls), ElementsAre(HasSubstr("the template does not write tool calls")));
    use("{{ tools | tojson }}" + std::string(kPlain));  // the list names what is called
    EXPECT_THAT(documents("{" + tools + calls), ElementsAre(HasSubstr("the template does not write tool calls")));
    std::string const told = R"({% for c in m.tool_calls or [] %})", end = "{% endfor %}";
    auto const with = [&](std::string const& list, std::string const& call) {
        use(list + "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}" + told + call + end +
            "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
        return documents("{" + tools + calls);
    };
    auto const taken = ElementsAre(HasSubstr("[a"));
    EXPECT_THAT(with("{{ tools | tojson }}", "{{ c.function.name }}"), taken);
    EXPECT_THAT(with("{{ tools | tojson }}", "{{ c.function.name | replace('_', '-') }}"), taken);
    EXPECT_THAT(with("{{ tools | tojson }}",
                     "{% for t in tools if t.function.name == c.function.name %}"
                     "{{ t.function.name }}{% endfor %}"),
                taken);
    EXPECT_THAT(
        with(
            "{{ tools | tojson }}{% if tools and tools[0].function.name != 'weather' %}{{ raise_exception('unknown') }}"
            "{% endif %}",
            "{{ c.function.name }}"),
        taken)
        << "a template of certain tools";
    EXPECT_THAT(with("{{ tools | tojson }}", "{{ c.id }}"),
                ElementsAre(HasSubstr("the template does not write tool calls")));
}

TEST_F(JinjaEncoderTest, WeightsOfAnswersAndLossOnAllTokens) {
    use(kPlain);
    std::string const line =
        R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a", "weight": 0},
        {"role": "user", "content": "v"}, {"role": "assistant", "content": "b", "weight": 0.5}]})";
    EXPECT_THAT(documents(line)[0], AllOf(HasSubstr("assistant\na<|im_end|>"), HasSubstr("assistant\n[b<|im_end|>]")));
    EXPECT_EQ(documents(line, {.loss = ChatLoss::all})[0],
              "[<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n]a<|im_end|>[\n<|im_start|>user\nv<|im_end|>\n"
              "<|im_start|>assistant\nb<|im_end|>\n]");
}

TEST_F(JinjaEncoderTest, GenerationBeginsAndEndsAsTrainingDid) {
    auto const chat = encoder();
    auto const prompt = chat->prompt(conversation_line({{"user", "u"}}));
    EncodedChat const trained =
        chat->encode_all({conversation_line({{"user", "u"}, {"assistant", "a"}})})[0].documents[0];
    auto const first = static_cast<long>(std::ranges::find(trained.weights, 1.0f) - trained.weights.begin());
    EXPECT_EQ(prompt, std::vector<int32_t>(trained.tokens.begin(), trained.tokens.begin() + first));
    EXPECT_THAT(chat->stop(), ElementsAre(301));
}

TEST_F(JinjaEncoderTest, TemplatesOfRolesAreTheSameAsJinja) {
    ChatOptions const custom{.format = ChatFormat::custom,
                             .begin = "<|eos|>",
                             .roles = {{"user", "\"Q\" ", "\n"}, {"assistant", "<|im_start|>", "<|im_end|>\n\n"}},
                             .stop = "<|im_end|>"};
    for (ChatOptions const& options : {ChatOptions{.format = ChatFormat::chatml}, custom}) {
        ChatEncoder own(options, 1000, *tokenizer_);
        write_bytes(home_ / "written.jinja", own.template_text());
        auto const jinja = encoder({.jinja = {.file = (home_ / "written.jinja").string()}}, 1000);
        ConversationLine const line =
            conversation_line({{"user", "u\n"}, {"assistant", "a"}, {"user", "v"}, {"assistant", "b"}});
        EncodedChat const a = own.encode_all({line})[0].documents[0], b = jinja->encode_all({line})[0].documents[0];
        EXPECT_EQ(a.tokens, b.tokens);
        EXPECT_EQ(a.weights, b.weights);
        EXPECT_EQ(own.prompt(line), jinja->prompt(line));
    }
}

TEST(JinjaOptions, ContradictionsAreTold) {
    EXPECT_THAT(problems(JinjaOptions{}), IsEmpty());
    EXPECT_THAT(problems(JinjaOptions{.arguments = "[]"}), ElementsAre(HasSubstr("must be a JSON object")));
    for (char const* const date : {"today", "2024-13-01", "24-07-26", "2024-07-26x", "2026-02-30", "2023-02-29"})
        EXPECT_THAT(problems(JinjaOptions{.date = date}), ElementsAre(HasSubstr("no day written as YYYY-MM-DD")))
            << date;
    EXPECT_THAT(problems(JinjaOptions{.date = "2024-02-29"}), IsEmpty());
}

}  // namespace
}  // namespace perigee
