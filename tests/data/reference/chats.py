"""Chat templates of instruct models, read from packages of PyPI that ship them, on random conversations: the tokens that
`tokenize --chat` writes against transformers' apply_chat_template, and the loss mask against what is said of each template
below: how an answer opens and what ends it.

chats.py TOKENIZE FOLDER [FAMILY...]: FOLDER/wheels holds the packages; CONVERSATIONS of the environment says how many.
"""
import ast
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import zipfile

import numpy as np
import tokenizers
import transformers

COUNT = int(os.environ.get("CONVERSATIONS", "1000"))
SOURCE = pathlib.Path(__file__).resolve().parents[3]
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
IM = dict(opens=r"<\|im_start\|>assistant\n", ends=["<|im_end|>"], special=["<|im_start|>", "<|im_end|>"])
LLAMA = dict(opens=r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n", ends=["<|eot_id|>", "<|eom_id|>"], bos="<|begin_of_text|>",
             special=["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"])
MISTRAL = dict(opens=r"\[/INST\](?=.)|\[/TOOL_RESULTS\](?=(?!\[TOOL_RESULTS\]).)", ends=["</s>"], bos="<s>",
               special=["<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]",
                        "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"])
DEEPSEEK = dict(opens="<\uff5cAssistant\uff5c>|<\uff5ctool\u2581outputs\u2581end\uff5c>", ends=["<\uff5cend\u2581of\u2581sentence\uff5c>"],
                bos="<\uff5cbegin\u2581of\u2581sentence\uff5c>",
                special=[f"<\uff5c{name}\uff5c>" for name in (
                    "begin\u2581of\u2581sentence", "end\u2581of\u2581sentence", "User", "Assistant", "tool\u2581calls\u2581begin",
                    "tool\u2581call\u2581begin", "tool\u2581sep", "tool\u2581call\u2581end", "tool\u2581calls\u2581end",
                    "tool\u2581outputs\u2581begin", "tool\u2581output\u2581begin", "tool\u2581output\u2581end", "tool\u2581outputs\u2581end")])
GEMMA = dict(opens=r"<start_of_turn>model\n", ends=["<end_of_turn>"], bos="<bos>", special=["<bos>", "<start_of_turn>", "<end_of_turn>"])
PHI = dict(opens=r"<\|assistant\|>\n", ends=["<|end|>"], special=["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"])
COHERE = dict(opens=r"<\|START_OF_TURN_TOKEN\|><\|CHATBOT_TOKEN\|>", ends=["<|END_OF_TURN_TOKEN|>"], bos="<BOS_TOKEN>",
              special=["<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>",
                       "<|CHATBOT_TOKEN|>"])
EXAONE = dict(opens=r"\[\|assistant\|\]\n(?:<think>\n\n</think>\n\n)?", ends=["[|endofturn|]"],
              special=["[|system|]", "[|user|]", "[|assistant|]", "[|tool|]", "[|endofturn|]"])
HARMONY = dict(opens=r"<\|start\|>assistant", ends=["<|return|>", "<|end|>", "<|call|>"],
               special=["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"])
# file: of axolotl, or a name of unsloth's chat_templates.py. `rewrites`: later turns change what earlier answers look like.
# mistral_v3 shows the system message only while a question is the last message, so with one no answer can be taught.
FAMILIES = {
    "chatml": dict(IM, file="chatml.jinja"),
    "llama3": dict(LLAMA, file="llama3.jinja"),
    "llama31": dict(LLAMA, file="llama31_template", tools=True, one_call=True),
    "qwen25": dict(IM, file="qwen_25.jinja", tools=True),
    "qwen3": dict(IM, file="qwen3_template", tools=True, reasoning=True, rewrites=True),
    "qwen3_thinking": dict(IM, file="qwen3_thinking_template", opens=r"<\|im_start\|>assistant\n(?:<think>\n)?", tools=True, reasoning=True, rewrites=True),
    "qwen3_instruct": dict(IM, file="qwen3_instruct_template", tools=True),
    "gemma3": dict(GEMMA, file="gemma3.jinja", parts=True),
    "phi35": dict(PHI, file="phi_35.jinja"),
    "phi4": dict(IM, file="phi_4.jinja", opens=r"<\|im_start\|>assistant<\|im_sep\|>",
                 special=["<|im_start|>", "<|im_end|>", "<|im_sep|>"]),
    "mistral_v3": dict(MISTRAL, file="mistral_v3_tekken.jinja", tools=True, rewrites=True, parts=True, no_system=True),
    "mistral_v7": dict(MISTRAL, file="mistral_v7_tekken.jinja"),
    "deepseek_v3": dict(DEEPSEEK, file="deepseek_v3.jinja", tools=True, text_arguments=True, no_content=True),
    "cohere": dict(COHERE, file="cohere.jinja"),
    "exaone4": dict(EXAONE, file="exaone4.jinja", tools=True),
    "falcon_h1": dict(IM, file="falcon_h1.jinja"),
    "gpt_oss": dict(HARMONY, file="gptoss_template", rewrites=True, thinking=True, tools=True, one_call=True, no_content=True),
}


def template_of(wheels, file):
    package = "axolotl" if file.endswith(".jinja") else "unsloth"
    wheel = zipfile.ZipFile(next(wheels.glob(f"{package}-*.whl")))
    if package == "axolotl":
        return wheel.read(f"axolotl/utils/chat_templates/templates/{file}").decode()
    for node in ast.parse(wheel.read("unsloth/chat_templates.py")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == file:
            return ast.literal_eval(node.value)
    raise KeyError(file)


def make_tokenizer(family, template, folder):
    core = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=True))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(PATTERN), behavior="isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=3000, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    core.train_from_iterator((path.read_text() for path in sorted(SOURCE.glob("docs/*.md"))), trainer)
    core.add_special_tokens(family["special"])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token=family["ends"][0],
                                                     **({"bos_token": family["bos"]} if "bos" in family else {}))
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


WORDS = ["gate", "block", "MoBA", "the", "of", "keys", "\u6ce8\u610f", "\U0001f600", "caf\u00e9", "3.14", "12345", "<b>", "&amp;", "{}", "\\n", "'s", "%"]
TOOL_NAMES = ["search", "weather", "add_numbers"]


class Maker:
    def __init__(self, family, seed):
        self.family, self.rng = family, random.Random(seed)

    def text(self):
        rng = self.rng
        words = [rng.choice(WORDS) + rng.choice([" ", " ", " ", "\n", "\n\n", "  ", ""]) for _ in range(rng.randint(1, 25))]
        return rng.choice(["", "", "", "", " ", "\n", "\n\n "]) + "".join(words) + str(rng.randrange(1 << 40)) + rng.choice(["", "", "\n"])

    def content(self):
        if self.family.get("parts") and self.rng.random() < 0.2:
            return [{"type": "text", "text": self.text()} for _ in range(self.rng.randint(1, 3))]
        return self.text()

    def tools(self):
        made = []
        for name in self.rng.sample(TOOL_NAMES, self.rng.randint(1, 3)):
            made.append({"type": "function", "function": {"name": name, "description": "Does \"it\" \u00e9 & <more>", "parameters": {
                "type": "object", "properties": {"q": {"type": "string", "description": "what"}, "n": {"type": "integer", "description": "how many"}},
                "required": ["q"]}}})
        return made

    def call(self):
        arguments = {"q": self.rng.choice(["caf\u00e9", "a \"b\"", "x"]), "n": self.rng.randint(0, 99)}
        return {"id": "".join(self.rng.choice("abcdefghijkABCDE0123456789") for _ in range(9)), "type": "function",
                "function": {"name": self.rng.choice(TOOL_NAMES),
                             "arguments": json.dumps(arguments) if self.family.get("text_arguments") else arguments}}

    def answer(self, **more):
        message = {"role": "assistant", "content": self.text(), **more}
        if self.family.get("reasoning") and self.rng.random() < 0.5:
            if "tool_calls" not in more and self.rng.random() < 0.3:
                message["content"] = f"<think>\n{self.text()}\n</think>\n\n{message['content']}"
            else:
                message["reasoning_content"] = self.text()
        if self.family.get("thinking") and self.rng.random() < 0.5:
            message["thinking"] = self.text()
        return message

    def conversation(self):
        rng, family = self.rng, self.family
        messages = [{"role": "system", "content": self.text()}] * (0 if family.get("no_system") else rng.randint(0, 1))
        tools = self.tools() if family.get("tools") and rng.random() < 0.5 else None
        for _ in range(rng.randint(1, 4)):
            messages.append({"role": "user", "content": self.content()})
            if tools and rng.random() < 0.5:
                calls = [self.call() for _ in range(1 if family.get("one_call") else rng.randint(1, 2))]
                call = self.answer(tool_calls=calls)
                if family.get("no_content"):
                    call["content"] = None
                    call.pop("thinking", None)
                messages.append(call)
                for made in calls:
                    messages.append({"role": "tool", "name": made["function"]["name"], "tool_call_id": made["id"], "content": self.text()})
            messages.append(self.answer())
        return messages, tools


class Reference:
    def __init__(self, family, tokenizer):
        self.family, self.tokenizer = family, tokenizer
        ends = "|".join(re.escape(end) for end in family["ends"])
        self.region = re.compile(f"(?:{family['opens']})(.*?(?:{ends}))", re.S)

    def text(self, messages, tools, opening=False):
        return self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=opening,
                                                  **self.family.get("arguments", {}))

    def ids(self, messages, tools):
        return list(self.tokenizer.apply_chat_template(messages, tools=tools, return_dict=True,
                                                       **self.family.get("arguments", {}))["input_ids"])

    def regions(self, messages, tools):
        """Where each answer of the text is: by what is said of the template, in the order of the answers."""
        text = self.text(messages, tools)
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if self.family["special"][0] == "<|start|>":  # harmony writes one or two blocks for an answer
            found = self.harmony(text, messages, answers)
        else:
            found = [match.span(1) for match in self.region.finditer(text)]
        assert len(found) == len(answers), (found, text)
        return text, dict(zip(answers, found))

    @staticmethod
    def harmony(text, messages, answers):
        blocks = list(re.finditer(r"<\|start\|>assistant(.*?)(<\|end\|>|<\|return\|>|<\|call\|>)", text, re.S))
        found = []
        for i in answers:
            begin = blocks[0].start(1)
            if "<|channel|>analysis" in blocks[0].group(1):
                blocks.pop(0)
            found.append((begin, blocks.pop(0).end(2)))
        assert not blocks, text
        return found

    def mask(self, text, spans):
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return [int(any(begin < e and b < end and b < e for begin, end in spans)) for b, e in encoded["offset_mapping"]]


def read_documents(prefix):
    """Megatron's .idx: header, version, type, counts; lengths, offsets."""
    index = pathlib.Path(prefix + ".idx").read_bytes()
    count = int.from_bytes(index[18:26], "little")
    lengths = np.frombuffer(index, "<i4", count, 34)
    tokens = np.frombuffer(pathlib.Path(prefix + ".bin").read_bytes(), {4: "<i4", 8: "<u2"}[index[17]])
    bits = np.unpackbits(np.frombuffer(pathlib.Path(prefix + ".mask").read_bytes(), "u1", offset=24), bitorder="little")
    ends = np.cumsum(lengths)
    return [(tokens[end - n:end].tolist(), bits[end - n:end].tolist()) for n, end in zip(lengths, ends)]


def check_conversation(reference, documents, messages, tools):
    """Takes the documents of one conversation from the front of `documents`; returns how many, and tokens with loss."""
    missing = {i for i, message in enumerate(messages) if message["role"] == "assistant"}
    taken, with_loss = 0, 0
    for end in [i + 1 for i in sorted(missing)]:
        if not missing or not documents:
            break
        part = messages[:end]
        tokens, mask = documents[0]
        if reference.ids(part, tools) != tokens:
            continue
        text, regions = reference.regions(part, tools)
        covered = {i for i, span in regions.items() if any(m and r for m, r in zip(mask, reference.mask(text, [span])))}
        expected = reference.mask(text, [regions[i] for i in covered])
        assert mask == expected, ("mask", text, mask, expected)
        assert covered <= missing, ("an answer twice", text)
        for i in covered:  # as it is generated
            assert text.startswith(reference.text(messages[:i], tools, opening=True)), ("no continuation", text)
        missing -= covered
        documents.pop(0)
        taken += 1
        with_loss += sum(mask)
    assert not missing, ("answers without loss", missing, reference.text(messages, tools), reference.tokenizer.decode(documents[0][0]) if documents else "")
    return taken, with_loss


def run(tokenize, folder, name):
    family = FAMILIES[name]
    work = folder / name
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(family, template_of(folder / "wheels", family["file"]), work / "tok")
    reference, maker, chats, refused = Reference(family, tokenizer), Maker(family, name), [], 0
    while len(chats) < COUNT:
        messages, tools = maker.conversation()
        try:
            reference.text(messages, tools)
            chats.append((messages, tools))
        except Exception:  # what the template does not take, such as a system message
            refused += 1
            assert refused < 20 * COUNT, "the template takes nothing"
    with open(work / "chats.jsonl", "w") as file:
        for messages, tools in chats:
            file.write(json.dumps({"messages": messages, **({"tools": tools} if tools else {})}, ensure_ascii=False) + "\n")
    arguments = json.dumps(family.get("arguments", {}))
    (work / "chat.yaml").write_text("data: {tokenizer: tok, sequence_length: 1000000}\n" f"chat: {{jinja: {{arguments: '{arguments}'}}}}\n")
    done = subprocess.run([*tokenize, "chats.jsonl", "--chat", "chat.yaml", "-o", "out"], cwd=work, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    documents = read_documents(str(work / "out"))
    total, tokens, with_loss = len(documents), sum(len(ids) for ids, _ in documents), 0
    for messages, tools in chats:
        taken, loss = check_conversation(reference, documents, messages, tools)
        assert taken == 1 or family.get("rewrites"), ("split", messages)
        with_loss += loss
    assert not documents, f"{len(documents)} documents too many"
    extras = [what for what in ("tools", "reasoning", "thinking", "parts") if family.get(what)]
    print(f"{name}: {len(chats)} conversations{' with ' + ', '.join(extras) if extras else ''}, {total} documents, {tokens} tokens, "
          f"{with_loss} with loss: as apply_chat_template", flush=True)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    command, folder = sys.argv[1].split(), pathlib.Path(sys.argv[2]).resolve()
    for name in sys.argv[3:] or FAMILIES:
        run(command, folder, name)
