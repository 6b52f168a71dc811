#!/usr/bin/env python3
"""What rounding to FP8 costs a trained model in the forward pass alone, by product and operand. Needs torch, transformers.

    python3 tools/studies/fp8_forward.py data/smollm2 ~/perigee_data/corpus/held_out_long_000.jsonl.zst -o rows.csv

Inputs and weights of the blocks' linear layers are rounded as docs/fp8.md says: E4M3, a scale that is a power of two per
1 x 128 values of an input and per 128 x 128 values of a weight. Everything else, and the products, are fp32. Each row
compares the mean loss of the same samples with that of the plain model: difference, its standard error over samples, and
the difference relative to the loss.
"""
import argparse
import csv
import pathlib
import sys

import torch
import transformers

sys.path.append(str(pathlib.Path(__file__).parents[1] / "data"))
import texts

PEAK, TILE = 448.0, 128
PRODUCTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def power_of_two(largest):
    """The smallest power of two that brings the largest magnitude to 448 or below; 1 for zeros."""
    return torch.where(largest > 0, torch.exp2(torch.ceil(torch.log2(largest / PEAK))), torch.ones_like(largest))


def exact(largest):
    return torch.where(largest > 0, largest / PEAK, torch.ones_like(largest))


def rounded(tiles, axes, scale_of):
    scale = scale_of(tiles.abs().amax(axes, keepdim=True))
    return (tiles / scale).to(torch.float8_e4m3fn).float() * scale


def round_input(x, scale_of):
    """x [..., channels]: tiles of 1 x 128 channels, the last one may be shorter."""
    channels = x.shape[-1]
    padded = torch.nn.functional.pad(x, (0, -channels % TILE))
    tiles = padded.reshape(*x.shape[:-1], -1, TILE)
    return rounded(tiles, (-1,), scale_of).reshape(padded.shape)[..., :channels]


def round_weight(weight, scale_of):
    """weight [outputs, inputs]: tiles of 128 x 128, those at the ends may be smaller."""
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -inputs % TILE, 0, -outputs % TILE))
    tiles = padded.view(padded.shape[0] // TILE, TILE, padded.shape[1] // TILE, TILE)
    return rounded(tiles, (1, 3), scale_of).view(padded.shape)[:outputs, :inputs]


class Rounded:
    """The model with the chosen linear layers rounded, until the next choice."""

    def __init__(self, model):
        self.model, self.hooks = model, []
        self.layers = {name: layer for name, layer in model.named_modules()
                       if isinstance(layer, torch.nn.Linear) and ".layers." in name}
        self.weights = {name: layer.weight.data.clone() for name, layer in self.layers.items()}

    def choose(self, chosen, inputs=True, weights=True, scale_of=power_of_two):
        while self.hooks:
            self.hooks.pop().remove()
        for name, layer in self.layers.items():
            layer.weight.data = self.weights[name]
            if not chosen(name):
                continue
            if weights:
                layer.weight.data = round_weight(self.weights[name], scale_of)
            if inputs:
                self.hooks.append(layer.register_forward_pre_hook(lambda _, given: round_input(given[0], scale_of)))

    @torch.no_grad()
    def losses(self, samples):
        """Mean loss of each sample [tokens]."""
        found = []
        for sample in samples:
            logits = self.model(sample[None]).logits[0, :-1]
            found.append(torch.nn.functional.cross_entropy(logits, sample[1:]))
        return torch.stack(found)


def arms(layers):
    last = f".layers.{layers - 1}."
    yield "all", {}
    yield "all, inputs alone", {"weights": False}
    yield "all, weights alone", {"inputs": False}
    yield "all, scales that are no powers of two", {"scale_of": exact}
    yield "all but the first and the last block", {"chosen": lambda name: not (".layers.0." in name or last in name)}
    for product in PRODUCTS:
        yield product, {"chosen": lambda name, product=product: product in name}


def read_samples(path, tokenizer, count, tokens):
    """So many samples, each from the middle of a document of its own that is long enough."""
    samples = []
    for document in texts.documents(path):
        text = document["text"]
        middle = text[len(text) // 2:len(text) // 2 + 8 * tokens]
        ids = tokenizer(middle)["input_ids"]
        if len(ids) >= tokens and len(samples) < count:
            samples.append(torch.tensor(ids[:tokens]))
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="Hugging Face folder")
    parser.add_argument("text", help="JSONL of corpus.py")
    parser.add_argument("-o", "--output", required=True, help="CSV")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=1024, help="per sample")
    args = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    samples = read_samples(args.text, tokenizer, args.samples, args.tokens)
    model = Rounded(model)
    plain = model.losses(samples)
    print(f"{len(samples)} samples of {args.tokens} tokens, loss {plain.mean():.4f}", flush=True)
    with open(args.output, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["rounded", "samples", "tokens", "plain_loss", "difference", "standard_error"])
        for name, choice in arms(model.model.config.num_hidden_layers):
            model.choose(**{"chosen": lambda name: True, **choice})
            differences = model.losses(samples) - plain
            mean, error = differences.mean().item(), (differences.std() / len(samples) ** 0.5).item()
            writer.writerow([name, len(samples), args.tokens, *(f"{x:.6f}" for x in (plain.mean().item(), mean, error))])
            file.flush()
            print(f"| {name} | {mean:+.4f} +- {error:.4f} | {100 * mean / plain.mean():+.2f}% |", flush=True)


if __name__ == "__main__":
    main()
