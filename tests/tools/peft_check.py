"""LoRA adapters against PEFT.

peft_check.py make ARCHITECTURE BASE: a folder with a random model in fp32.
peft_check.py adapt BASE ADAPTERS: adapters that PEFT makes, with a B that is not zero.
peft_check.py compare BINARIES BASE ADAPTERS [MERGED]: PEFT loads the adapters; its logits, its gradients of A and B, and
the logits of its merged model are ours, and so are those of MERGED.
"""
import pathlib
import subprocess
import sys

import h5py
import numpy as np
import peft
import torch
import transformers

CONFIGS = {"qwen3": transformers.Qwen3Config, "llama": transformers.LlamaConfig}
LOGITS = GRADIENTS = 1e-5  # relative: ||a - b|| / ||b||


def make(architecture, folder):
    config = CONFIGS[architecture](vocab_size=320, hidden_size=64, intermediate_size=160, head_dim=16, num_hidden_layers=3,
                                   num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
                                   max_position_embeddings=256, tie_word_embeddings=architecture == "qwen3",
                                   initializer_range=0.1)
    torch.manual_seed(7)
    transformers.AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def adapt(base, folder):
    torch.manual_seed(8)
    config = peft.LoraConfig(r=4, lora_alpha=32, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.1,
                             init_lora_weights=False, task_type="CAUSAL_LM")
    peft.get_peft_model(load(base), config).save_pretrained(folder)


def probe(binaries, folder, ids, targets, *options):
    with h5py.File("in.h5", "w") as file:
        file["ids"], file["targets"] = ids, targets
        file["weights"] = np.ones(len(ids), np.float32)
    subprocess.run([pathlib.Path(binaries) / "probe", "model", folder, "in.h5", "out.h5", "kind=full", *options], check=True)
    with h5py.File("out.h5") as file:
        found = {}
        file.visititems(lambda name, item: found.update({name: item[:]}) if isinstance(item, h5py.Dataset) else None)
        return found


def require(what, ours, theirs, limit):
    ours, theirs = np.float64(ours), np.float64(theirs)
    error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    assert error <= limit, f"{what}: relative difference {error:.3g}"
    return error


def compare(binaries, base, adapters, merged=None):
    model = peft.PeftModel.from_pretrained(load(base), adapters, is_trainable=True).eval()
    plain = load(base)
    random = np.random.default_rng(3)
    ids, targets = random.integers(0, 320, 64, np.int32), random.integers(0, 320, 64, np.int32)
    logits = model(torch.tensor(ids[None], dtype=torch.long)).logits[0]
    torch.nn.functional.cross_entropy(logits, torch.tensor(targets, dtype=torch.long)).backward()
    theirs = logits.detach().double().numpy()
    ours = probe(binaries, base, ids, targets, "--adapters", adapters)
    error = require("logits", ours["logits"], theirs, LOGITS)
    with torch.no_grad():
        far = plain(torch.tensor(ids[None], dtype=torch.long)).logits[0].double().numpy()
    effect = np.linalg.norm(far - theirs) / np.linalg.norm(theirs)
    assert effect > 0.01, f"the adapters change nothing: {effect}"
    worst, compared = 0, 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        name = name.removeprefix("base_model.model.").replace(".default", "")
        worst = max(worst, require(name, ours["grad/" + name], parameter.grad.numpy(), GRADIENTS))
        compared += 1
    assert compared == sum("lora_" in name for name in ours), compared
    print(f"{adapters}: logits {error:.2g} from PEFT's ({effect:.2g} from the base's), {compared} gradients at most {worst:.2g}")
    if merged:
        own = probe(binaries, merged, ids, targets)["logits"]
        print(f"{merged}: {require('merged', own, theirs, LOGITS):.2g} from PEFT's")
        with torch.no_grad():
            loaded = load(merged)(torch.tensor(ids[None], dtype=torch.long)).logits[0].double().numpy()
        require("merged, by transformers", loaded, theirs, LOGITS)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    {"make": make, "adapt": adapt, "compare": compare}[sys.argv[1]](*sys.argv[2:])
