"""What the README's commands of fine-tuning start from and what they end with, by transformers and tokenizers.

fine_tune_check.py make ARCHITECTURE: Base/ (a random model with a tokenizer trained for it) and chats.jsonl, made of this
repository's documents, in the working folder.
fine_tune_check.py tokens PREFIX: tokens and loss weights that `tokenize --chat` wrote are those of the chat template.
fine_tune_check.py result BINARIES FOLDER: transformers loads the result and computes the logits and the answer we do.
"""
import json
import pathlib
import random
import re
import subprocess
import sys

import h5py
import numpy as np
import tokenizers
import torch
import transformers

SOURCE = pathlib.Path(__file__).resolve().parents[2]
LOGITS = 1e-5  # relative: ||a - b|| / ||b||
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# The templates of the model families, with the marks that tell what assistants say.
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}"
          "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}"
          "{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
LLAMA3 = ("{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' }}"
          "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] | trim + '<|eot_id|>' }}{% endgeneration %}"
          "{% else %}{{ m['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")
FAMILIES = {
    "qwen3": dict(config=transformers.Qwen3Config, digits="", template=CHATML, end="<|im_end|>", tied=True, range=0.2,
                  special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
    "llama": dict(config=transformers.LlamaConfig, digits="{1,3}", template=LLAMA3, end="<|eot_id|>", tied=False, range=0.12,
                  special=["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
}


def paragraphs():
    for path in sorted(SOURCE.glob("**/*.md")):
        if path.relative_to(SOURCE).parts[0] in ("docs", "README.md", "CONTRIBUTING.md"):
            text = path.read_text().replace("<|", "<")  # names of special tokens: to us text, to the template tokens
            for part in re.split(r"^#+ ", text, flags=re.M)[1:]:
                title, _, body = part.partition("\n")
                yield title, body.strip()


def conversations():
    rng = random.Random(20261121)
    for title, body in paragraphs():
        said = [piece.strip() for piece in body.split("\n\n") if piece.strip()]
        messages = [{"role": "system", "content": "Tell what the documents say. \u8bf7 \U0001f600"}] * rng.randint(0, 1)
        for number, piece in enumerate(said):
            messages.append({"role": "user", "content": f"And {number} of {title}?" if number else f"What is {title}?"})
            messages.append({"role": "assistant", "content": piece})
        if said:
            yield messages


def make_tokenizer(family):
    core = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=family["config"] is transformers.LlamaConfig))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(PATTERN % family["digits"]), behavior="isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=2000, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    core.train_from_iterator((body for _, body in paragraphs()), trainer)
    core.add_special_tokens(family["special"])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token=family["end"])
    tokenizer.chat_template = family["template"]
    return tokenizer


def make(architecture):
    family = FAMILIES[architecture]
    tokenizer = make_tokenizer(family)
    tokenizer.save_pretrained("Base")
    # As published models do, room for more tokens than the tokenizer has. Large weights, for answers of many words.
    config = family["config"](vocab_size=-(-len(tokenizer) // 128) * 128, hidden_size=64, intermediate_size=160, head_dim=16,
                              num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
                              max_position_embeddings=4096, tie_word_embeddings=family["tied"],
                              eos_token_id=tokenizer.eos_token_id, initializer_range=family["range"])
    torch.manual_seed(7)
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained("Base")
    with open("chats.jsonl", "w") as file:
        for messages in conversations():
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")


def read_documents(prefix):
    """Megatron's .idx: header, version, type, counts; lengths, offsets."""
    index = pathlib.Path(prefix + ".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00", index[:9]
    dtype = {4: "<i4", 8: "<u2"}[index[17]]
    count = int.from_bytes(index[18:26], "little")
    lengths = np.frombuffer(index, "<i4", count, 34)
    tokens = np.frombuffer(pathlib.Path(prefix + ".bin").read_bytes(), dtype)
    mask = pathlib.Path(prefix + ".mask").read_bytes()
    assert mask[:8] == b"PGEMASK\x00", mask[:8]
    bits = np.unpackbits(np.frombuffer(mask, "u1", offset=24), bitorder="little")
    assert lengths.sum() == len(tokens) <= len(bits)
    ends = np.cumsum(lengths)
    return [(tokens[end - n:end].tolist(), bits[end - n:end].tolist()) for n, end in zip(lengths, ends)]


def tokens(prefix):
    tokenizer = transformers.AutoTokenizer.from_pretrained("Base")
    stored, compared = read_documents(prefix), 0
    expected = []
    for line in open("chats.jsonl"):
        both = tokenizer.apply_chat_template(json.loads(line)["messages"], return_dict=True, return_assistant_tokens_mask=True)
        expected.append((list(both["input_ids"]), list(both["assistant_masks"])))
    whole = [chat for chat in expected if len(chat[0]) <= max(len(ids) for ids, _ in stored)]
    for ids, mask in whole:
        assert (ids, mask) in stored, f"not among what was written: {tokenizer.decode(ids[:40])!r}"
        compared += len(ids)
    assert len(stored) <= len(expected) and len(whole) > 0.8 * len(expected), (len(stored), len(expected), len(whole))
    print(f"{len(whole)} of {len(expected)} conversations, {compared} tokens: as by transformers' chat template, loss mask too")


def probe(binaries, folder, ids, *options):
    with h5py.File("in.h5", "w") as file:
        file["ids"] = file["targets"] = np.int32(ids)
        file["weights"] = np.ones(len(ids), np.float32)
    subprocess.run([binaries / "probe", "model", folder, "in.h5", "out.h5", *options], check=True)
    with h5py.File("out.h5") as file:
        return file["logits"][:].astype(np.float64)


def require_logits(what, ours, theirs):
    error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    assert error <= LOGITS, f"{what}: relative difference {error:.3g}"
    print(f"{what}: relative difference {error:.2g}")


def require_answer(binaries, folder, model, tokenizer, text):
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True,
                                           return_tensors="pt")
    unused = list(range(len(tokenizer), model.config.vocab_size))  # which we never say
    with torch.no_grad():
        answer = model.generate(**prompt, do_sample=False, max_new_tokens=40, suppress_tokens=unused)
    answer = answer[0, prompt["input_ids"].shape[1]:].tolist()
    expected = tokenizer.decode(answer, skip_special_tokens=True)
    done = subprocess.run([binaries / "perigee", "generate", "configs/sft.yaml", f"model.init_from={folder}",
                           f"data.tokenizer={folder}", "output_dir=runs/none", "--prompt", text, "--max-tokens", "40",
                           "generate.temperature=0"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip("\n") == expected.rstrip("\n"), f"answers differ: {done.stdout!r}, transformers: {expected!r}"
    print(f"the answer is transformers' own, {len(answer)} tokens, {len(set(answer))} different: {expected[:50]!r}")


def result(binaries, folder):
    binaries = pathlib.Path(binaries).resolve()
    base, _ = transformers.AutoModelForCausalLM.from_pretrained("Base", dtype="auto", output_loading_info=True)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert model.dtype == base.dtype == torch.bfloat16 and model.config.eos_token_id == base.config.eos_token_id
    # In bf16, a norm's weights near 1 may round to what they were.
    same = [name for name, value in model.state_dict().items() if value.dim() > 1 and torch.equal(value, base.state_dict()[name])]
    assert not same, f"not trained: {same}"
    model = model.float()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    chats = [json.loads(line)["messages"] for line in open("chats.jsonl")]
    ids = [token for chat in chats for token in tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"]][:2048]
    attention = json.loads((pathlib.Path(folder) / "config.json").read_text())["perigee"]["attention"]
    block, top_k = attention["block_size"], attention["top_k"]
    with torch.no_grad():
        logits = lambda n: model(torch.tensor([ids[:n]])).logits[0].double().numpy()
        require_logits(f"logits of {len(ids)} tokens", probe(binaries, folder, ids, "kind=full"), logits(len(ids)))
        every = block * top_k
        require_logits(f"logits of {every} tokens, MoBA of {block} x {top_k}",
                       probe(binaries, folder, ids[:every], f"block_size={block}", f"top_k={top_k}"), logits(every))
    for prompt in ("Hello", "What is Packing?", "2 + 2?", "\u4f60\u597d \U0001f600"):
        require_answer(binaries, folder, model, tokenizer, prompt)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    {"make": make, "tokens": tokens, "result": result}[sys.argv[1]](*sys.argv[2:])
