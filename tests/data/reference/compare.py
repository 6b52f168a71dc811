"""Perigee's tokenizers against Hugging Face's tokenizers and sentencepiece, token for token and byte for byte.

compare.py PROBE FOLDER: trains tokenizers like GPT-2's, Llama 3's and Qwen's and two sentencepiece models on a part of the
corpus, into FOLDER, and requires that encoding and decoding all of it (bin/tokenizer_probe) gives what the reference gives.
"""

import concurrent.futures
import itertools
import json
import pathlib
import struct
import subprocess
import sys
import time

import numpy
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import corpus

SEED = 20261121
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(vocabulary, texts, normalizer, pre_tokenizer, special):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def split_by(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2(texts):
    tokenizer = byte_level(20000, texts, None, pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    file = json.loads(tokenizer.to_str())
    # As OpenAI's own file is written: no type, merges in one string.
    del file["model"]["type"], file["model"]["ignore_merges"]
    file["model"]["merges"] = [" ".join(merge) for merge in file["model"]["merges"]]
    return file, {"eos_token": "<|endoftext|>"}


def llama3(texts):
    tokenizer = byte_level(30000, texts, None, split_by(LLAMA3), [])
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                                             special_tokens=[("<|begin_of_text|>", begin)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    file = json.loads(tokenizer.to_str())
    file["model"]["ignore_merges"] = True
    # Words that no merge makes: only ignore_merges finds them.
    for word in ("\u0120inaccessible", "zqxj"):
        file["model"]["merges"] = [merge for merge in file["model"]["merges"] if "".join(merge) != word]
    return file, {"eos_token": {"content": "<|end_of_text|>", "lstrip": False}}


def qwen(texts):
    tokenizer = byte_level(25000, texts, normalizers.NFC(), split_by(QWEN), [])
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([
        AddedToken("<think>", normalized=False), AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("WORD", single_word=True, normalized=False), AddedToken("cafe\u0301", normalized=True),
        AddedToken("<|im_", normalized=False)])
    return json.loads(tokenizer.to_str()), {"eos_token": "<|im_end|>"}


def probe(program, tokenizer, mode, lists, dtype):
    request = b"".join(struct.pack("<I", len(x) // dtype.itemsize) + x for x in lists)
    done = subprocess.run([program, tokenizer, mode], input=request, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    out_size, at, answers = (1 if mode in ("decode", "stream") else 4), 0, []
    while at < len(done.stdout):
        size = struct.unpack_from("<I", done.stdout, at)[0] * out_size
        answers.append(done.stdout[at + 4:at + 4 + size])
        at += 4 + size
    assert len(answers) == len(lists)
    return answers, done.stderr.decode().strip()


def require_equal(what, documents, ours, theirs):
    for i, (document, mine, reference) in enumerate(zip(documents, ours, theirs, strict=True)):
        if mine == reference:
            continue
        at = next((k for k, (a, b) in enumerate(zip(mine, reference)) if a != b), min(len(mine), len(reference)))
        sys.exit(f"FAILED: {what}: document {i} ({document[:60]!r}...) differs at {at}: "
                 f"{mine[max(0, at - 8):at + 8]} instead of {reference[max(0, at - 8):at + 8]}")


def ids_of(answers):
    return [numpy.frombuffer(answer, "<i4").tolist() for answer in answers]


def check(program, path, documents, encoders, decode):
    """`encoders`: mode of the probe to the reference's function from documents to lists of ids."""
    for mode, encode in encoders.items():
        start = time.monotonic()
        expected = encode(documents)
        seconds = time.monotonic() - start
        answers, speed = probe(program, path, mode, documents, numpy.dtype("u1"))
        require_equal(f"{path} {mode}", documents, ids_of(answers), expected)
        tokens = sum(map(len, expected))
        size = sum(map(len, documents)) / 1e6
        print(f"{path.parent.name}: {mode}: {tokens} tokens of {size:.1f} MB equal; {speed}; reference {size / seconds:.2f} MB/s on all")
    # Also what no encoder makes: halves of characters, tokens in any order.
    rng = numpy.random.default_rng(SEED)
    largest = max(max(ids, default=0) for ids in expected)
    lists = expected + [rng.integers(0, largest + 1, 200).tolist() for _ in range(3000)]
    packed = [numpy.array(ids, "<i4").tobytes() for ids in lists]
    texts = [text.encode() for text in decode(lists)]
    for mode in ("decode", "stream") if path.suffix == ".json" else ("decode",):
        answers, speed = probe(program, path, mode, packed, numpy.dtype("<i4"))
        whole = [answer.decode(errors="replace").encode() for answer in answers] if mode == "decode" else answers
        require_equal(f"{path} {mode}", packed, whole, texts)
        print(f"{path.parent.name}: {mode}: {sum(map(len, texts)) / 1e6:.1f} MB equal; {speed}")


def check_json(program, folder, name, documents, sample, make):
    path = folder / name / "tokenizer.json"
    path.parent.mkdir(exist_ok=True)
    file, config = make(sample)
    path.write_text(json.dumps(file, ensure_ascii=name != "gpt2"))
    (path.parent / "tokenizer_config.json").write_text(json.dumps(config))
    with_special, plain = Tokenizer.from_file(str(path)), Tokenizer.from_file(str(path))
    plain.encode_special_tokens = True
    texts = lambda documents: [document.decode(errors="replace") for document in documents]
    encode = lambda tokenizer: lambda documents: [
        encoding.ids for encoding in tokenizer.encode_batch_fast(texts(documents), add_special_tokens=False)]
    check(program, path, documents, {"encode": encode(plain), "encode_with_special": encode(with_special)},
          lambda lists: with_special.decode_batch(lists, skip_special_tokens=True))
    end = config["eos_token"]["content"] if isinstance(config["eos_token"], dict) else config["eos_token"]
    begin = with_special.encode("", add_special_tokens=True).ids
    info = subprocess.run([program, path.parent, "info"], capture_output=True, text=True, check=True).stdout.split()
    expected = [with_special.get_vocab_size(), with_special.token_to_id(end), begin[0] if begin else -1]
    assert list(map(int, info)) == expected, (info, expected)


def check_sentencepiece(program, folder, name, documents, sample, options):
    (folder / name).mkdir(exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=itertools.islice((line for text in sample for line in text.split("\n") if line), 150000),
        model_prefix=str(folder / name / "tokenizer"), minloglevel=2, num_threads=2, **options)
    path = folder / name / "tokenizer.model"
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    check(program, path, documents, {"encode": lambda documents: [library.encode(document.decode(errors="replace")) for document in documents]},
          lambda lists: [library.decode(ids) for ids in lists])


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    documents = corpus.build(folder, SEED)
    size = sum(map(len, documents)) / 1e6
    print(f"{len(documents)} documents, {size:.1f} MB")
    assert size >= 20
    sample = [document.decode(errors="replace") for document in documents[::4]]
    pieces = dict(vocab_size=8000, character_coverage=0.995)
    jobs = [(check_sentencepiece, "unigram", dict(pieces, model_type="unigram", user_defined_symbols=["<mask>"])),
            (check_sentencepiece, "llama2", dict(pieces, model_type="bpe", byte_fallback=True, split_digits=True,
                                                 normalization_rule_name="identity", remove_extra_whitespaces=False,
                                                 allow_whitespace_only_pieces=True))]
    jobs += [(check_json, make.__name__, make) for make in (qwen, llama3, gpt2)]
    sys.stdout.reconfigure(line_buffering=True)
    with concurrent.futures.ProcessPoolExecutor() as pool:  # the longest first
        for done in [pool.submit(check, program, folder, name, documents, sample, how) for check, name, how in jobs]:
            done.result()
    print("tokenizers: all as the references")


if __name__ == "__main__":
    main()
