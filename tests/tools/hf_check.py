"""Perigee against transformers, on randomly initialised models of every supported architecture and rope scaling.

For each: logits and all gradients of one document, in fp32; MoBA with every block chosen; and conversion to a
checkpoint and back, in each dtype, in one file and in several, after which transformers loads the same bits.
    .venv/bin/python tests/tools/hf_check.py build/cpu/bin [--tokens 2048] [--only llama]
"""
import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import torch
import transformers

LOGITS, GRADIENTS = 1e-5, 1e-4  # relative: ||a - b|| / ||b||
VOCABULARY = 320

ROPES = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 512},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn-all": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512, "beta_fast": 24.0,
                 "beta_slow": 2.0, "attention_factor": 1.25},
}
ARCHITECTURES = {
    "llama": (transformers.LlamaConfig, {}),
    "mistral": (transformers.MistralConfig, {"sliding_window": None, "head_dim": 48}),
    "qwen2": (transformers.Qwen2Config, {}),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 48}),
}


def build(architecture, rope, tied, seed):
    kind, extra = ARCHITECTURES[architecture]
    scaling = dict(ROPES[rope] or {"rope_type": "default"}, rope_theta=10000.0)
    config = kind(vocab_size=VOCABULARY, hidden_size=128, intermediate_size=208, num_hidden_layers=3,
                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, rms_norm_eps=1e-6,
                  initializer_range=0.08, tie_word_embeddings=tied, rope_parameters=scaling, **extra)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    with torch.no_grad():  # norms and biases too, which start as ones and zeros
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def relative(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape or not np.isfinite(a).all():
        return float("inf")
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


class Check:
    def __init__(self, binaries, tokens):
        self.binaries, self.tokens = pathlib.Path(binaries), tokens
        self.failures, self.comparisons, self.worst = [], 0, {}

    def expect(self, name, error, limit, kind):
        self.comparisons += 1
        self.worst[kind] = max(self.worst.get(kind, 0.0), error)
        if not error <= limit:
            self.failures.append(f"{name}: {error:.3g} > {limit:.0e}")

    def require(self, name, condition):
        self.comparisons += 1
        if not condition:
            self.failures.append(name)

    def run(self, program, *arguments):
        done = subprocess.run([self.binaries / program, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{program} {arguments}: exit code {done.returncode}: {done.stderr}")

    def numbers(self, name, model, folder, seed):
        rng = np.random.default_rng(seed)
        ids, targets = (rng.integers(0, VOCABULARY, self.tokens, dtype=np.int32) for _ in range(2))
        weights = rng.choice(np.float32([0, 0.5, 1]), self.tokens)
        with h5py.File(folder / "in.h5", "w") as file:
            file["ids"], file["targets"], file["weights"] = ids, targets, weights
        logits = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
        losses = torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets.astype(np.int64)), reduction="none")
        w = torch.from_numpy(weights)
        model.zero_grad()
        ((losses * w).sum() / w.sum()).backward()
        self.run("probe", "model", folder / "hf", folder / "in.h5", folder / "out.h5", "kind=full")
        with h5py.File(folder / "out.h5") as file:
            self.expect(f"{name}: logits", relative(file["logits"][:], logits.detach()), LOGITS, "logits")
            compared = 0
            for parameter, value in model.named_parameters():
                self.expect(f"{name}: gradient of {parameter}", relative(file["grad/" + parameter][:], value.grad),
                            GRADIENTS, "gradients")
                compared += 1
            stored = []
            file["grad"].visititems(lambda key, item: stored.append(key) if isinstance(item, h5py.Dataset) else None)
            self.require(f"{name}: {len(stored)} gradients for {compared} parameters", len(stored) == compared)
        block = -(-self.tokens // 4)
        self.run("probe", "model", folder / "hf", folder / "in.h5", folder / "moba.h5", f"block_size={block}", "top_k=4")
        with h5py.File(folder / "moba.h5") as file:
            self.expect(f"{name}: logits of MoBA with every block", relative(file["logits"][:], logits.detach()), LOGITS,
                        "logits, MoBA")

    def conversion(self, name, model, folder, dtype, shards):
        there, checkpoint, back = (folder / f"{kind}-{dtype}" for kind in ("there", "checkpoint", "back"))
        model = model.to(getattr(torch, dtype))
        size = "1GB" if shards == 1 else "200KB"
        model.save_pretrained(there, max_shard_size=size)
        (there / "tokenizer_config.json").write_text('{"a": 1}')
        self.run("convert", there, checkpoint)
        self.run("checkpoint", "verify", checkpoint)
        self.run("convert", checkpoint, back, "--shard-gb", 1 if shards == 1 else 2e-4)
        self.run("checkpoint", "diff", there, back)
        count = len(list(back.glob("*.safetensors")))
        self.require(f"{name}: {count} files", count == 1 if shards == 1 else count > 1)
        if shards == 1:  # not even the headers differ
            same = (there / "model.safetensors").read_bytes() == (back / "model.safetensors").read_bytes()
            self.require(f"{name}: {dtype}: bytes of the file", same)
        self.require(f"{name}: tokenizer files", (back / "tokenizer_config.json").read_text() == '{"a": 1}')
        before, after = (json.loads((f / "config.json").read_text()) for f in (there, back))
        after.pop("perigee")
        self.require(f"{name}: config.json", before == after)
        loaded, info = transformers.AutoModelForCausalLM.from_pretrained(back, dtype="auto", output_loading_info=True)
        clean = not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        self.require(f"{name}: {dtype}: loading: {info}", clean)
        mine, theirs = loaded.state_dict(), model.state_dict()
        self.require(f"{name}: {dtype}: names", mine.keys() == theirs.keys())
        for key, value in theirs.items():
            self.require(f"{name}: {dtype}: {key}", value.dtype == mine[key].dtype and torch.equal(value, mine[key]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binaries")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--only", choices=ARCHITECTURES)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    check = Check(options.binaries, options.tokens)
    architectures = [options.only] if options.only else list(ARCHITECTURES)
    for seed, (architecture, rope) in enumerate(itertools.product(architectures, ROPES)):
        for tied in (False, True):
            name = f"{architecture}, rope {rope}, {'tied' if tied else 'untied'}"
            with tempfile.TemporaryDirectory() as temporary:
                folder = pathlib.Path(temporary)
                model = build(architecture, rope, tied, 2 * seed + tied)
                model.save_pretrained(folder / "hf")
                check.numbers(name, model, folder, seed)
                dtype = ["float32", "bfloat16", "float16"][seed % 3]
                check.conversion(name, model, folder, dtype, shards=1 if tied else 2)
                check.conversion(name, model, folder, "float16" if dtype == "bfloat16" else "bfloat16", shards=1)
            print(f"hf_check: {name}: {len(check.failures)} failures so far", flush=True)
    for kind, error in check.worst.items():
        print(f"hf_check: worst {kind}: {error:.3g}")
    for failure in check.failures[:40]:
        print(f"hf_check: FAILED {failure}")
    print(f"hf_check: {check.comparisons} comparisons with transformers {transformers.__version__}, "
          f"{len(check.failures)} failed")
    sys.exit(bool(check.failures))


if __name__ == "__main__":
    main()
