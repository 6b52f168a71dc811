"""lm_eval_check.py make: a tokenizer in $scratch/Base, tasks and data for lm-eval.
lm_eval_check.py compare RUN: lm-eval's numbers through `perigee serve` against those of `perigee eval` and `generate`."""
import glob, json, os, pathlib, re, shutil, subprocess, sys
import tokenizers, transformers
from client import Server, near

SCRATCH = os.environ["scratch"]
END = "<|endoftext|>"
ITEMS = [dict(context="The cat sat on the mat. The dog", choices=[" sat on the cat", " ran away from the house"], answer=0),
         dict(context="Question: what is a block?\nAnswer:", choices=[" a part of the text", " nothing"], answer=1),
         dict(context="1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22", choices=[" 23", " 7 8 9"], answer=0)]
TASKS = {"choose": {"output_type": "multiple_choice", "doc_to_target": "{{answer}}", "doc_to_choice": "{{choices}}",
                    "metric_list": [{"metric": "acc"}]},
         "write": {"output_type": "generate_until", "doc_to_target": "{{choices[0]}}",
                   "generation_kwargs": {"until": ["e", END], "max_gen_toks": 12, "temperature": 0.0, "do_sample": False},
                   "metric_list": [{"metric": "exact_match"}]}}


def make():
    source = pathlib.Path(os.environ["PERIGEE_SOURCE"])
    texts = [path.read_text() for path in sorted(source.glob("docs/*.md"))]
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    model.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
        vocab_size=600, special_tokens=[END], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    transformers.PreTrainedTokenizerFast(tokenizer_object=model, eos_token=END).save_pretrained(SCRATCH + "/Base")
    with open(SCRATCH + "/items.jsonl", "w") as file:
        for item in ITEMS:  # lm-eval scores the end of the document where the choice names it
            file.write(json.dumps({**item, "choices": [choice + END for choice in item["choices"]]}) + "\n")
    os.mkdir(SCRATCH + "/tasks")
    for name, task in TASKS.items():
        common = dict(task="perigee_" + name, dataset_path="json", test_split="test", doc_to_text="{{context}}",
                      target_delimiter="", dataset_kwargs={"data_files": {"test": SCRATCH + "/items.jsonl"}})
        with open(f"{SCRATCH}/tasks/{name}.yaml", "w") as file:
            json.dump({**common, **task}, file)


def perigee(*words):
    done = subprocess.run([os.environ["PERIGEE_BIN"] + "/perigee", *words], capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr


def lm_eval(server):
    subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args",
                    f"model=mine,base_url=http://127.0.0.1:{server.port}/v1/completions,tokenizer={SCRATCH}/Base,"
                    "tokenizer_backend=huggingface,num_concurrent=2,max_length=1024",
                    "--tasks", ",".join("perigee_" + name for name in TASKS), "--include_path", SCRATCH + "/tasks",
                    "--output_path", SCRATCH + "/out", "--log_samples", "--batch_size", "2"],
                   check=True, stdout=subprocess.DEVNULL, stderr=server.log)
    samples = {}
    for name in TASKS:
        (path,) = glob.glob(f"{SCRATCH}/out/**/samples_perigee_{name}_*.jsonl", recursive=True)
        lines = [json.loads(line) for line in open(path)]
        samples[name] = [line["resps"] for line in sorted(lines, key=lambda line: line["doc_id"])]
    return samples


def evaluated(run, tokenizer, context, choice):
    """-loglikelihood of the choice and the end of the document, as `perigee eval` says it."""
    with open(SCRATCH + "/pair.jsonl", "w") as file:
        file.write(json.dumps(dict(prompt=context, completion=choice)) + "\n")
    for old in glob.glob(SCRATCH + "/pair.[bicl]*"):
        if not old.endswith(".jsonl"):
            os.remove(old)
    whole = tokenizer(context + choice + END)["input_ids"]
    answer = len(whole) - len(tokenizer(context)["input_ids"])
    options = [f"data.tokenizer={SCRATCH}/Base", "chat.template=custom", "chat.roles.0.role=user",
               "chat.roles.1.role=assistant", f"data.sequence_length={len(whole) - 1}"]
    perigee("tokenize", SCRATCH + "/pair.jsonl", "--chat", SCRATCH + "/run.yaml",
            *[word for option in options for word in ("--set", option)], "-o", SCRATCH + "/pair")
    for part in glob.glob(SCRATCH + "/pair.*"):
        shutil.copy(part, part.replace("/pair.", "/other."))  # what is trained on must be another data set
    said = perigee("eval", SCRATCH + "/run.yaml", "output_dir=" + run, "data.mock_data=false", *options,
                   f"data.train.0.path={SCRATCH}/other", f"data.validation.0.path={SCRATCH}/pair")
    return answer * json.loads(re.search(r"^\{.*\}$", said, re.M)[0])["eval_loss"]


def compare(run):
    tokenizer = transformers.AutoTokenizer.from_pretrained(SCRATCH + "/Base")
    server = Server(run, f"data.tokenizer={SCRATCH}/Base")
    samples = lm_eval(server)
    server.stop()
    compared = 0
    for item, responses in zip(ITEMS, samples["choose"], strict=True):
        for choice, response in zip(item["choices"], responses, strict=True):
            found, wanted = float(response[0][0]), -evaluated(run, tokenizer, item["context"], choice)
            print(f"{choice!r}: lm-eval {found:.6f}, perigee eval {wanted:.6f}")
            near(found, wanted, 1e-3)
            compared += 1
    assert compared == 6
    with open(SCRATCH + "/in.jsonl", "w") as file:
        for item in ITEMS:
            file.write(json.dumps(dict(prompt=item["context"], max_tokens=12, temperature=0)) + "\n")
    perigee("generate", SCRATCH + "/run.yaml", "output_dir=" + run, f"data.tokenizer={SCRATCH}/Base", "--input",
            SCRATCH + "/in.jsonl", "--output", SCRATCH + "/out.jsonl")
    for line, responses in zip(open(SCRATCH + "/out.jsonl"), samples["write"], strict=True):
        text = json.loads(line)["text"].split("e")[0]
        print(f"lm-eval {responses[0][0]!r}, perigee generate {text!r}")
        assert responses[0][0] == text


make() if sys.argv[1] == "make" else compare(sys.argv[2])
