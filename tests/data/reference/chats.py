"""Chat templates of instruct models, read from packages of PyPI that ship them, on random conversations: the tokens that
`tokenize --chat` writes against transformers' apply_chat_template, and the loss mask against what chat_families.py says of
each template (how an answer opens and what ends it) and, where the template marks what a model writes, against
transformers' return_assistant_tokens_mask. Then each special token that a template writes is taken from its tokenizer:
tokenize must refuse to go on and name it.

In a quarter as many conversations more, names of special tokens stand in the text of messages, which apply_chat_template
would make tokens: transformers is given a character of the private use area for each, and the name is put back into the
text between the template's own tokens.

chats.py TOKENIZE FOLDER [FAMILY...]: FOLDER/wheels holds the packages; CONVERSATIONS of the environment says how many.
"""
import datetime
import functools
import json
import os
import pathlib
import random
import re
import subprocess
import sys

import numpy as np
import tokenizers
import transformers
import transformers.utils.chat_template_utils as chat_template_utils

from chat_families import FAMILIES, template_of

COUNT = int(os.environ.get("CONVERSATIONS", "1000"))
SOURCE = pathlib.Path(__file__).resolve().parents[3]
DAY = datetime.datetime(2024, 7, 26)
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
STAND_IN = 0xE000


class Today(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return DAY


@functools.cache
def trained():
    core = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=True))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(PATTERN), behavior="isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=3000, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    core.train_from_iterator((path.read_text() for path in sorted(SOURCE.glob("docs/*.md"))), trainer)
    return core.to_str()


def make_core(family, special):
    core = tokenizers.Tokenizer.from_str(trained())
    core.add_tokens(family.get("added", []))
    core.add_special_tokens(special)
    return core


def special_names(family):
    return {"eos_token": family.get("eos", family["ends"][0]), **({"bos_token": family["bos"]} if "bos" in family else {})}


def make_tokenizer(family, template, folder):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=make_core(family, family["special"]), **special_names(family))
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


WORDS = ["gate", "block", "MoBA", "the", "of", "keys", "\u6ce8\u610f", "\U0001f600", "caf\u00e9", "3.14", "12345", "<b>", "&amp;", "{}", "\\n", "'s", "%"]
TOOL_NAMES = ["search", "weather", "add_numbers"]


class Maker:
    def __init__(self, family, seed):
        self.family, self.rng, self.with_names = family, random.Random(seed), False

    def text(self):
        rng = self.rng
        words = [rng.choice(WORDS) + rng.choice([" ", " ", " ", "\n", "\n\n", "  ", ""]) for _ in range(rng.randint(1, 25))]
        if self.with_names and rng.random() < 0.25:
            words.insert(rng.randrange(len(words)), chr(STAND_IN + rng.randrange(len(self.family["special"]))))
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
        if self.family.get("think"):
            message["content"] = f"<think>\n{self.text()}\n</think>\n\n{message['content']}"
        if self.rng.random() < 0.05:
            message.setdefault("tool_calls", None)
        reasoning = self.rng.choice(["reasoning_content", "reasoning_content", "reasoning", "thinking"])
        if self.family.get("reasoning") == "always":
            message[reasoning] = self.text()
        elif self.family.get("reasoning") and self.rng.random() < 0.5:
            if "tool_calls" not in more and self.rng.random() < 0.3:
                message["content"] = f"<think>\n{self.text()}\n</think>\n\n{message['content']}"
            else:
                message[reasoning] = self.text()
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
                if "no_content" in family:
                    call["content"] = family["no_content"]
                    call.pop("thinking", None)
                elif rng.random() < 0.3 and not family.get("think"):
                    call["content"] = ""
                messages.append(call)
                for made in calls:
                    messages.append({"role": "tool", "name": made["function"]["name"], "tool_call_id": made["id"], "content": self.text()})
            messages.append(self.answer())
        return messages, None if family.get("tools") == "calls" else tools


class Reference:
    """transformers, and what is said of the template."""

    def __init__(self, family, tokenizer):
        self.family, self.tokenizer = family, tokenizer
        self.plain = make_core(family, [])  # knows no special tokens
        self.next_conversation()
        ends = "|".join(re.escape(end) for end in family["ends"])
        self.region = re.compile(f"(?:{family['opens']})(.*?(?:{ends}))", re.S)
        self.special = re.compile("(" + "|".join(re.escape(name) for name in sorted(family["special"], key=len, reverse=True)) + ")")
        self.lead = re.compile(rf"\s*(?:{re.escape(tokenizer.eos_token)})?|{family.get('lead', '')}")
        self.stand_ins = {chr(STAND_IN + i): name for i, name in enumerate(family["special"])}

    def realised(self, text):
        for character, name in self.stand_ins.items():
            text = text.replace(character, name)
        return text

    def has_stand_ins(self, text):
        return any(character in text for character in self.stand_ins)

    def next_conversation(self):
        self.rendered, self.encoded = {}, {}

    def text(self, messages, tools, opening=False):
        """Of the first messages of the conversation."""
        key = len(messages), opening
        if key not in self.rendered:
            self.rendered[key] = self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=opening,
                                                                    **self.family.get("arguments", {}))
        return self.rendered[key]

    def encode(self, text):
        """Tokens, and where they begin and end in `text` with its names put back."""
        if text not in self.encoded:
            self.encoded[text] = self.encode_anew(text)
        return self.encoded[text]

    def encode_anew(self, text):
        ids, spans, at = [], [], 0
        for i, piece in enumerate(self.special.split(text)):
            real = self.realised(piece)
            if i % 2:
                ids.append(self.tokenizer.convert_tokens_to_ids(piece))
                spans.append((at, at + len(real)))
            elif real:
                encoded = self.plain.encode(real, add_special_tokens=False)
                ids += encoded.ids
                spans += [(at + begin, at + end) for begin, end in encoded.offsets]
            at += len(real)
        return ids, np.array(spans).reshape(-1, 2)

    def ids(self, messages, tools):
        text = self.text(messages, tools)
        ids = self.encode(text)[0]
        if not self.has_stand_ins(text):
            theirs = self.tokenizer.apply_chat_template(messages, tools=tools, return_dict=True, **self.family.get("arguments", {}))
            assert ids == list(theirs["input_ids"]), ("this program's own tokens", text)
        return ids

    def regions(self, messages, tools):
        """Where each answer of the text is: by what is said of the template, in the order of the answers."""
        text = self.text(messages, tools)
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if self.family.get("harmony"):  # one or two blocks for an answer
            found = self.harmony(text, answers)
        else:
            found = [match.span(1) for match in self.region.finditer(text)]
        assert len(found) == len(answers), (found, text)
        place = lambda at: len(self.realised(text[:at]))
        return text, {i: (place(begin), place(end)) for i, (begin, end) in zip(answers, found)}

    @staticmethod
    def harmony(text, answers):
        blocks = list(re.finditer(r"<\|start\|>assistant(.*?)(<\|end\|>|<\|return\|>|<\|call\|>)", text, re.S))
        found = []
        for _ in answers:
            begin = blocks[0].start(1)
            if "<|channel|>analysis" in blocks[0].group(1):
                blocks.pop(0)
            found.append((begin, blocks.pop(0).end(2)))
        assert not blocks, text
        return found

    def mask(self, text, regions):
        begins, ends = self.encode(text)[1].T
        mask = np.zeros(len(begins), bool)
        for begin, end in regions:
            mask |= (begin < ends) & (begins < end) & (begins < ends)
        return mask.astype(int).tolist()

    def check_generation(self, messages, tools, text, covered, others):
        """Against the template's own marks: the answers with loss lie within them, and what they hold beside answers is
        how an answer opens and the white space after it. Returns whether there was something to compare with."""
        if not self.family.get("generation") or self.has_stand_ins(text):
            return False
        theirs = self.tokenizer.apply_chat_template(messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True)
        masks = list(zip(theirs["assistant_masks"], self.mask(text, covered), self.mask(text, others)))
        assert all(marked for marked, mine, _ in masks if mine), ("loss outside of the template's marks", text)
        beside = "".join("x" if marked and not mine and not other else " " for marked, mine, other in masks)
        for run in re.finditer("x+", beside):
            extra = self.tokenizer.decode(theirs["input_ids"][run.start():run.end()])
            assert self.lead.fullmatch(extra), ("the template marks more", extra, text)
        return True


def read_documents(prefix):
    """Megatron's .idx: header, version, type, counts; lengths, offsets."""
    index = pathlib.Path(prefix + ".idx").read_bytes()
    count = int.from_bytes(index[18:26], "little")
    lengths = np.frombuffer(index, "<i4", count, 34)
    tokens = np.frombuffer(pathlib.Path(prefix + ".bin").read_bytes(), {4: "<i4", 8: "<u2"}[index[17]])
    bits = np.unpackbits(np.frombuffer(pathlib.Path(prefix + ".mask").read_bytes(), "u1", offset=24), bitorder="little")
    ends = np.cumsum(lengths)
    return [(tokens[end - n:end].tolist(), bits[end - n:end].tolist()) for n, end in zip(lengths, ends)]


class Counts:
    def __init__(self):
        self.documents = self.tokens = self.with_loss = self.marked = self.with_names = self.refused = 0


def check_conversation(reference, documents, messages, tools, counts):
    """Takes the documents of one conversation from the front of `documents`; returns how many."""
    missing = {i for i, message in enumerate(messages) if message["role"] == "assistant"}
    taken = 0
    reference.next_conversation()
    for end in [i + 1 for i in sorted(missing)]:
        if not missing or not documents:
            break
        part = messages[:end]
        tokens, mask = documents[0]
        if reference.ids(part, tools) != tokens:
            continue
        text, regions = reference.regions(part, tools)
        covered = {i for i, region in regions.items() if any(m and r for m, r in zip(mask, reference.mask(text, [region])))}
        of_answers, of_others = ([region for i, region in regions.items() if (i in covered) == own] for own in (True, False))
        expected = reference.mask(text, of_answers)
        assert mask == expected, ("mask", text, mask, expected)
        assert covered <= missing, ("an answer twice", text)
        for i in covered:  # as it is generated
            assert text.startswith(reference.text(messages[:i], tools, opening=True)), ("no continuation", text)
        counts.marked += reference.check_generation(part, tools, text, of_answers, of_others)
        counts.with_names += reference.has_stand_ins(text)
        counts.documents += 1
        counts.tokens += len(tokens)
        counts.with_loss += sum(mask)
        missing -= covered
        documents.pop(0)
        taken += 1
    assert not missing, ("answers without loss, or other tokens", missing, reference.realised(reference.text(messages, tools)),
                         reference.tokenizer.decode(documents[0][0]) if documents else "")
    return taken


def check_refusals(tokenize, work, family, template, texts):
    """Without one of the special tokens that the template writes, and with templates of other tokenizers."""
    folder, refused = work / "less", 0
    folder.mkdir(exist_ok=True)

    def said(settings):
        (work / "less.yaml").write_text("data: {tokenizer: less, sequence_length: 1000000}\n" + settings)
        done = subprocess.run([*tokenize, "one.jsonl", "--chat", "less.yaml", "-o", "less/out"], cwd=work, capture_output=True, text=True)
        return done.returncode, done.stderr

    (work / "one.jsonl").write_text('{"prompt": "u", "completion": "a"}\n')
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **special_names(family)}))
    for name in family["special"]:
        if name in family.get("as_text", []) or not any(name in text for text in texts):
            continue
        make_core(family, [other for other in family["special"] if other != name]).save(str(folder / "tokenizer.json"))
        code, error = said("")
        assert code == 2 and (name in error or json.dumps(name)[1:-1] in error), (f"without {name}", code, error)
        refused += 1
    make_core(family, family["special"]).save(str(folder / "tokenizer.json"))
    for wrong, marker in (("chatml", "<|im_start|>"), ("llama3", "<|start_header_id|>")):
        if marker not in family["special"]:
            code, error = said(f"chat: {{template: {wrong}}}\n")
            assert code == 2 and marker in error, (wrong, code, error)
            refused += 1
    return refused


def run(tokenize, folder, name):
    family = FAMILIES[name]
    work = folder / name
    work.mkdir(parents=True, exist_ok=True)
    template = template_of(folder / "wheels", family["file"])
    tokenizer = make_tokenizer(family, template, work / "tok")
    reference, maker, chats, texts, refused = Reference(family, tokenizer), Maker(family, name), [], [], 0
    while len(chats) < COUNT + COUNT // 4:
        maker.with_names = len(chats) >= COUNT
        messages, tools = maker.conversation()
        reference.next_conversation()
        try:
            texts.append(reference.text(messages, tools))
            chats.append((messages, tools))
        except Exception:  # what the template does not take, such as a system message
            refused += 1
            assert refused < 20 * COUNT, "the template takes nothing"
    with open(work / "chats.jsonl", "w") as file:
        for messages, tools in chats:
            line = json.dumps({"messages": messages, **({"tools": tools} if tools else {})}, ensure_ascii=False)
            for character, special in reference.stand_ins.items():
                line = line.replace(character, json.dumps(special, ensure_ascii=False)[1:-1])
            file.write(line + "\n")
    arguments = json.dumps(family.get("arguments", {}))
    (work / "chat.yaml").write_text("data: {tokenizer: tok, sequence_length: 1000000}\n"
                                    f"chat: {{jinja: {{arguments: '{arguments}', date: {DAY:%Y-%m-%d}}}}}\n")
    done = subprocess.run([*tokenize, "chats.jsonl", "--chat", "chat.yaml", "-o", "out"], cwd=work, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    documents, counts = read_documents(str(work / "out")), Counts()
    for messages, tools in chats:
        taken = check_conversation(reference, documents, messages, tools, counts)
        assert taken == 1 or family.get("rewrites"), ("split", messages)
    assert not documents, f"{len(documents)} documents too many"
    counts.refused = check_refusals(tokenize, work, family, template, texts)
    extras = [what for what in ("tools", "reasoning", "thinking", "think", "parts") if family.get(what)]
    print(f"{name} ({family['file']}): {len(chats)} conversations{' with ' + ', '.join(extras) if extras else ''}, {counts.documents} "
          f"documents ({counts.with_names} with names of special tokens as text, {counts.marked} compared with the template's own marks), "
          f"{counts.tokens} tokens, {counts.with_loss} with loss: all equal; {counts.refused} wrong tokenizers refused", flush=True)


def main():
    transformers.logging.set_verbosity_error()
    chat_template_utils.datetime = Today  # what strftime_now asks
    command, folder = sys.argv[1].split(), pathlib.Path(sys.argv[2]).resolve()
    failed = []
    for name in sys.argv[3:] or FAMILIES:
        try:
            run(command, folder, name)
        except Exception as error:  # the others are told of too
            failed.append(name)
            print(f"{name}: FAILED: {type(error).__name__}: {str(error)[:3000]}", flush=True)
    print(f"chats: {len(sys.argv[3:] or FAMILIES) - len(failed)} templates passed, {len(failed)} failed: {' '.join(failed)}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
