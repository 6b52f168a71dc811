"""Chat templates of instruct models that packages of PyPI ship, and what is said of each: how an answer opens, what ends
it, which special tokens its tokenizer has, and which conversations it takes."""
import ast
import functools
import zipfile

PACKAGES = ("axolotl", "unsloth", "trl")  # wheels that are read; mistral-common is asked for its templates


def bars(*names):
    return [f"<\uff5c{name}\uff5c>" for name in names]


IM = dict(opens=r"<\|im_start\|>assistant\n", ends=["<|im_end|>"], special=["<|im_start|>", "<|im_end|>"])
QWEN3 = dict(IM, added=["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
LLAMA = dict(opens=r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n", ends=["<|eot_id|>", "<|eom_id|>"], bos="<|begin_of_text|>",
             special=["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"])
MISTRAL = dict(opens=r"\[/INST\](?=.)|\[/TOOL_RESULTS\](?=(?!\[TOOL_RESULTS\]).)", ends=["</s>"], bos="<s>",
               special=["<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]",
                        "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"])
DEEPSEEK = dict(opens="<\uff5cAssistant\uff5c>|<\uff5ctool\u2581outputs\u2581end\uff5c>", ends=bars("end\u2581of\u2581sentence"),
                bos=bars("begin\u2581of\u2581sentence")[0],
                special=bars("begin\u2581of\u2581sentence", "end\u2581of\u2581sentence", "User", "Assistant", "tool\u2581calls\u2581begin",
                             "tool\u2581call\u2581begin", "tool\u2581sep", "tool\u2581call\u2581end", "tool\u2581calls\u2581end",
                             "tool\u2581outputs\u2581begin", "tool\u2581output\u2581begin", "tool\u2581output\u2581end",
                             "tool\u2581outputs\u2581end"))
GEMMA = dict(opens=r"<start_of_turn>model\n", ends=["<end_of_turn>"], bos="<bos>", special=["<bos>", "<start_of_turn>", "<end_of_turn>"])
# The results of tools stand inside of the model's turn, which goes on after them.
GEMMA4 = dict(opens=r"<\|turn>model\n|<tool_response\|>(?!<\|tool_response>)", ends=["<turn|>", "<|tool_response>"], bos="<bos>",
              special=["<bos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>",
                       "<|tool_response>", "<tool_response|>", "<|\"|>", "<|think|>"])
PHI = dict(opens=r"<\|assistant\|>\n", ends=["<|end|>"], eos="<|endoftext|>",
           special=["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"])
COHERE = dict(opens=r"<\|START_OF_TURN_TOKEN\|><\|CHATBOT_TOKEN\|>", ends=["<|END_OF_TURN_TOKEN|>"], bos="<BOS_TOKEN>",
              special=["<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>",
                       "<|CHATBOT_TOKEN|>"])
EXAONE = dict(opens=r"\[\|assistant\|\]\n(?:<think>\n\n</think>\n\n)?", ends=["[|endofturn|]"],
              special=["[|system|]", "[|user|]", "[|assistant|]", "[|tool|]", "[|endofturn|]"])
HARMONY = dict(opens=r"<\|start\|>assistant", ends=["<|return|>", "<|end|>", "<|call|>"], harmony=True,
               special=["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"])
GLM = dict(as_text=["[gMASK]", "<sop>"], opens=r"<\|assistant\|>", ends=["<|user|>", "<|observation|>", "<|system|>"], added=["<think>", "</think>"],
           special=["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"])
LFM = dict(IM, bos="<|startoftext|>", special=["<|startoftext|>", "<|im_start|>", "<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>"])
# file: PACKAGE/NAME, a file of axolotl or trl, a name of unsloth's chat_templates.py, a version of mistral-common.
# What the conversations have: tools ("calls": calls, as the template lists no tools), reasoning and thinking (keys of an
# answer; "always": of each), think (in the text of each answer), parts (content in parts); one_call: at most one call in an answer, text_arguments: as JSON in a text,
# no_content: what an answer that calls has instead of content, no_system: no system message.
# as_text: names that another template could mean as text, so that a tokenizer without them is taken.
# rewrites: later turns change what earlier answers look like. generation: the template marks what a model writes, from
# `lead` on. Templates of trl named _training are those of the models with such marks.
# mistral_v3 shows the system message only while a question is the last message, so with one no answer can be taught.
FAMILIES = {
    "chatml": dict(IM, file="axolotl/chatml.jinja"),
    "llama3": dict(LLAMA, file="axolotl/llama3.jinja"),
    "llama3_training": dict(LLAMA, file="trl/llama3_training.jinja", generation=True),
    "llama31": dict(LLAMA, file="unsloth/llama31_template", tools=True, one_call=True),
    "llama32": dict(LLAMA, file="trl/llama3_2.jinja", tools=True, one_call=True),
    "qwen25": dict(IM, file="axolotl/qwen_25.jinja", tools=True),
    "qwen25_training": dict(QWEN3, file="trl/qwen2_5_training.jinja", tools=True, generation=True),
    "qwen3": dict(IM, file="unsloth/qwen3_template", tools=True, reasoning=True, rewrites=True),
    "qwen3_no_thinking": dict(QWEN3, file="unsloth/qwen3_template", opens=r"<\|im_start\|>assistant\n(?:<think>\n\n</think>\n\n)?",
                              tools=True, rewrites=True, arguments={"enable_thinking": False}),
    "qwen3_training": dict(QWEN3, file="trl/qwen3_training.jinja", tools=True, reasoning=True, generation=True),
    "qwen3_thinking": dict(IM, file="unsloth/qwen3_thinking_template", opens=r"<\|im_start\|>assistant\n(?:<think>\n)?", tools=True,
                           reasoning=True, rewrites=True),
    "qwen3_instruct": dict(IM, file="unsloth/qwen3_instruct_template", tools=True),
    "qwen35_training": dict(QWEN3, file="trl/qwen3_5_think_training.jinja", opens=r"<\|im_start\|>assistant\n(?:<think>\n)?", tools=True,
                            parts=True, reasoning=True, rewrites=True, generation=True, lead=r"<think>\n?"),
    "gemma2_training": dict(GEMMA, file="trl/gemma_training.jinja", generation=True),
    "gemma3": dict(GEMMA, file="axolotl/gemma3.jinja", parts=True),
    "gemma3_training": dict(GEMMA, file="trl/gemma3_training.jinja", parts=True, generation=True),
    "gemma4": dict(GEMMA4, file="trl/gemma4_v5.jinja", tools=True, parts=True, reasoning=True, no_content=None, rewrites=True),
    "phi35": dict(PHI, file="axolotl/phi_35.jinja"),
    "phi35_training": dict(PHI, file="trl/phi3_5_training.jinja", generation=True),
    "phi4": dict(IM, file="axolotl/phi_4.jinja", opens=r"<\|im_start\|>assistant<\|im_sep\|>",
                 special=["<|im_start|>", "<|im_end|>", "<|im_sep|>"]),
    "mistral_v1": dict(MISTRAL, file="mistral-common/v1", special=["<s>", "</s>"], opens=r"\[/INST\](?=.)", parts=True),
    "mistral_v3": dict(MISTRAL, file="axolotl/mistral_v3_tekken.jinja", tools=True, rewrites=True, parts=True, no_system=True),
    "mistral_v7": dict(MISTRAL, file="axolotl/mistral_v7_tekken.jinja"),
    "mistral_v11": dict(MISTRAL, file="mistral-common/v11", tools=True, parts=True, rewrites=True,
                        special=[*MISTRAL["special"], "[TOOL_CONTENT]", "[CALL_ID]", "[ARGS]"]),
    "deepseek_v3": dict(DEEPSEEK, file="axolotl/deepseek_v3.jinja", tools="calls", text_arguments=True, no_content=""),
    "deepseek_r1_distill_training": dict(DEEPSEEK, file="trl/deepseek_r1_distill_training.jinja", think=True, generation=True,
                                         opens="<\uff5cAssistant\uff5c><think>\n", lead="<\uff5cAssistant\uff5c><think>\n?",
                                         added=["<think>", "</think>"]),
    "cohere": dict(COHERE, file="axolotl/cohere.jinja"),
    "cohere2_training": dict(COHERE, file="trl/cohere2_training.jinja", generation=True,
                             opens=r"<\|START_OF_TURN_TOKEN\|><\|CHATBOT_TOKEN\|><\|START_RESPONSE\|>",
                             special=[*COHERE["special"], "<|START_RESPONSE|>", "<|END_RESPONSE|>"]),
    "exaone4": dict(EXAONE, file="axolotl/exaone4.jinja", tools=True),
    "falcon_h1": dict(IM, file="axolotl/falcon_h1.jinja"),
    "glm4_training": dict(GLM, file="trl/glm4moe_training.jinja", tools=True, parts=True, reasoning=True, rewrites=True, generation=True),
    "lfm25": dict(LFM, file="trl/lfm2_2_5.jinja", tools=True, thinking=True, rewrites=True, parts=True, generation=True),
    "nemotron3_training": dict(QWEN3, file="trl/nemotron_3_nano_training.jinja", opens=r"<\|im_start\|>assistant\n(?:<think>\n)?", tools=True,
                               reasoning="always", rewrites=True, generation=True, lead=r"<think>\n?"),
    "gpt_oss": dict(HARMONY, file="unsloth/gptoss_template", rewrites=True, thinking=True, tools=True, one_call=True, no_content=None),
    "gpt_oss_training": dict(HARMONY, file="trl/gptoss_training.jinja", rewrites=True, thinking=True, tools=True, one_call=True,
                             no_content=None, generation=True, lead=r"<\|start\|>assistant"),
    "vicuna": dict(file="unsloth/vicuna_template", opens=r"ASSISTANT:", ends=["</s>"], bos="<s>", special=["<s>", "</s>"]),
    "zephyr": dict(file="unsloth/zephyr_template", opens=r"<\|assistant\|>\n", ends=["</s>"],
                   special=["<|system|>", "<|user|>", "<|assistant|>", "</s>"]),
}


@functools.cache
def wheel_of(wheels, package):
    return zipfile.ZipFile(max(wheels.glob(f"{package}-*.whl"), key=lambda path: path.stat().st_mtime))


def mistral_template(version):
    from mistral_common.integrations.chat_templates.chat_templates import generate_chat_template
    from mistral_common.tokens.tokenizers.base import TokenizerVersion
    return generate_chat_template(
        spm=version == "v1", tokenizer_version=TokenizerVersion(version), image_support=False, audio_support=False,
        thinking_support=False, default_system_prompt=None, plain_thinking_support=False, use_special_token_variables=True,
        model_settings_fields=None, reasoning_effort_values=None, reasoning_effort_default=None)


def template_of(wheels, file):
    package, name = file.split("/")
    if package == "mistral-common":
        return mistral_template(name)
    wheel = wheel_of(wheels, package)
    if package != "unsloth":
        return wheel.read({"axolotl": "axolotl/utils/chat_templates/templates/", "trl": "trl/chat_templates/"}[package] + name).decode()
    for node in ast.parse(wheel.read("unsloth/chat_templates.py")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    raise KeyError(file)
