# Every endpoint of a server, against what `generate --input` wrote.
import json, math, os, signal, socket, subprocess, sys, time
from client import Server, near

folder, ranks = sys.argv[1], int(sys.argv[2])
scratch = os.environ["scratch"]
options = [] if ranks == 1 else ["parallel.tensor=2"]
server = Server(folder, "generate.batch=4", "serve.body_mib=1", "serve.queue=8", *options, ranks=ranks)


def lines(name):
    return [json.loads(line) for line in open(scratch + "/" + name)]


asked, want, want_chat = lines("in.jsonl"), lines("out.jsonl"), lines("chat.jsonl")
assert server.get("/health")["status"] == "ok"
model = server.get("/v1/models")["data"][0]
assert model["id"] == "run" and model["max_model_len"] > 100
assert server.get("/v1/models/run") == model and server.get("/v1/models/%72un") == model
for path in ("/v1/models/other", "/v1/models/run%0A", "/v1/models/%FF", "/v1/models/run/more", "/v1/models/" + "x" * 5000):
    status, text = server.request("GET", path)
    assert status == 404 and json.loads(text)["error"]["message"], (status, text)
assert json.loads(server.request("GET", "/v1/models/other")[1])["error"]["code"] == "model_not_found"

# Greedy answers: text, list of texts, tokens, lists of tokens.
for line, answer in zip(asked, want):
    for prompt in (line["prompt"], list(line["prompt"].encode())):
        found = server.complete(prompt, max_tokens=line["max_tokens"], temperature=0, logprobs=2)
        assert found["text"].encode() == answer["text"].encode(), (found["text"], answer["text"])
        assert found["finish_reason"] == answer["finish_reason"]
        for a, b in zip(found["logprobs"]["token_logprobs"], answer["logprobs"]):
            near(a, b, 1e-5)
        tops = found["logprobs"]["top_logprobs"]
        assert all(len(top) == 2 for top in tops)
        assert all(p == max(top.values()) for p, top in zip(found["logprobs"]["token_logprobs"], tops))
prompts = [line["prompt"] for line in asked]
together = server.post("/v1/completions", prompt=prompts, max_tokens=5, temperature=0)
assert [c["index"] for c in together["choices"]] == [0, 1, 2]
assert together["model"] == "run" and together["object"] == "text_completion"
tokens = [list(p.encode()) for p in prompts]
again = server.post("/v1/completions", prompt=tokens, max_tokens=5, temperature=0)
assert [c["text"] for c in together["choices"]] == [c["text"] for c in again["choices"]]
assert together["choices"][2]["text"] == want[2]["text"]
usage = together["usage"]
assert usage["prompt_tokens"] == sum(map(len, tokens)) and usage["completion_tokens"] <= 15
assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

# A text is a function of its seed, whoever else is in the batch; choices have seeds of their own.
drawn = dict(max_tokens=20, temperature=1.3, top_p=0.9, top_k=60, min_p=0.001, repetition_penalty=1.1)
alone = server.complete("seeded", seed=7, **drawn)["text"]
several = server.post("/v1/completions", prompt=["one", "seeded", "three"], seed=7, **drawn)["choices"]
assert several[1]["text"] == alone
choices = [c["text"] for c in server.post("/v1/completions", prompt="seeded", seed=6, n=3, **drawn)["choices"]]
assert choices[1] == alone and len(set(choices)) == 3
twice = [server.post("/v1/completions", prompt=["seeded"] * 2, n=2, **drawn)["choices"] for _ in range(2)]
fresh = [c["text"] for choices in twice for c in choices]
assert len(set(fresh)) == 8, fresh
server.complete("seeded", seed=2**63 - 1, n=2, max_tokens=1)
hot = server.complete("seeded", seed=7, logprobs=1, max_tokens=20, temperature=2)["logprobs"]
assert all(top[t] == p for t, p, top in zip(hot["tokens"], hot["token_logprobs"], hot["top_logprobs"]))
assert max(map(len, hot["top_logprobs"])) == 2
assert server.complete("seeded", seed=7, max_tokens=20, temperature=1, top_k=1)["text"] == \
    server.complete("seeded", max_tokens=20, temperature=0)["text"]

# Echo with log-probabilities: forced decoding. Scoring, scoring and going on, and decoding agree.
long = asked[1]["prompt"]
scored = server.complete(long, max_tokens=0, echo=True, logprobs=1)
assert scored["text"] == long and scored["finish_reason"] == "length"
probs = scored["logprobs"]
assert probs["tokens"] == list(long) and probs["text_offset"] == list(range(len(long)))
assert probs["token_logprobs"][0] is None and probs["top_logprobs"][0] is None
one = server.complete(long, max_tokens=1, echo=True, logprobs=1, temperature=0)
assert one["logprobs"]["token_logprobs"][:-1] == probs["token_logprobs"]
assert len(one["logprobs"]["tokens"]) == len(long) + 1 and one["text"][:len(long)] == long
more = server.complete(long, max_tokens=4, echo=True, logprobs=1, temperature=0)["logprobs"]["token_logprobs"]
for a, b in zip(more[1:len(long)], probs["token_logprobs"][1:]):
    near(a, b, 1e-6)
near(more[len(long)], one["logprobs"]["token_logprobs"][-1], 1e-5)
for cut in (5, 17, 40):  # what decoding says of the next token
    step = server.complete(long[:cut], max_tokens=1, temperature=0, logprobs=5)["logprobs"]["top_logprobs"][0]
    if long[cut] in step:
        near(step[long[cut]], probs["token_logprobs"][cut], 1e-4)
    near(max(step.values()), max(probs["top_logprobs"][cut].values()), 1e-4)
packed = server.post("/v1/completions", prompt=[long, "abc", long[:30]], max_tokens=1, temperature=0, echo=True,
                     logprobs=1)["choices"]
for a, b in zip(packed[0]["logprobs"]["token_logprobs"][1:-1], probs["token_logprobs"][1:]):
    near(a, b, 1e-5)
for a, b in zip(packed[2]["logprobs"]["token_logprobs"][1:-1], probs["token_logprobs"][1:30]):
    near(a, b, 1e-5)
text = open(scratch + "/texts/a.txt").read()
document = server.complete([*text.encode(), 256], max_tokens=0, echo=True, logprobs=0)["logprobs"]["token_logprobs"]
near(-sum(document[1:]) / len(text), json.load(open(scratch + "/eval.json"))["eval_loss"], 1e-5)
assert server.complete("abc", max_tokens=0)["text"] == "" and server.complete("abc", max_tokens=0, echo=True)["text"] == "abc"

# Stop texts.
full = server.complete(long, max_tokens=30, temperature=0)["text"]
if len(full) > 6:
    stop = full[3:5]
    cut = full[:full.index(stop)]
    found = server.complete(long, max_tokens=30, temperature=0, stop=[stop, "never there"])
    assert found["text"] == cut and found["finish_reason"] == "stop", (found, full)
    events = server.events("/v1/completions", prompt=long, max_tokens=30, temperature=0, stop=stop)
    assert "".join(e["choices"][0]["text"] for e in events) == cut

# Streams.
events = server.events("/v1/completions", prompt=prompts, max_tokens=9, temperature=0, logprobs=1, echo=True,
                       stream_options={"include_usage": True})
whole = server.post("/v1/completions", prompt=prompts, max_tokens=9, temperature=0, logprobs=1, echo=True)["choices"]
assert events[-1]["usage"]["total_tokens"] > 0 and events[-1]["choices"] == []
for index, choice in enumerate(whole):
    mine = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == index]
    assert "".join(c["text"] for c in mine) == choice["text"]
    assert sum((c["logprobs"]["tokens"] for c in mine), []) == choice["logprobs"]["tokens"]
    assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [choice["finish_reason"]]

# Chat.
for line, answer in zip(asked, want_chat):
    body = dict(messages=[{"role": "user", "content": line["prompt"]}], max_tokens=line["max_tokens"], temperature=0)
    found = server.post("/v1/chat/completions", logprobs=True, top_logprobs=2, **body)
    assert found["object"] == "chat.completion"
    choice = found["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": answer["text"]}
    assert choice["finish_reason"] == answer["finish_reason"]
    for token, p in zip(choice["logprobs"]["content"], answer["logprobs"]):
        near(token["logprob"], p, 1e-5)
        assert len(token["top_logprobs"]) == 2
    events = server.events("/v1/chat/completions", **body)
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == answer["text"]
    assert events[-1]["choices"][0]["finish_reason"] == answer["finish_reason"]
    assert all(e["object"] == "chat.completion.chunk" for e in events)

# What is wrong is refused, in OpenAI's shape.
for body in (dict(), dict(prompt=3), dict(prompt=[]), dict(prompt=""), dict(prompt=["a", 3]), dict(prompt=[257]),
             dict(prompt=[-1]), dict(prompt=[1.5]), dict(prompt="a", max_tokens=-1), dict(prompt="a", n=0),
             dict(prompt="a", temperature=-1), dict(prompt="a", temperature="hot"), dict(prompt="a", top_p=0),
             dict(prompt="a", min_p=2), dict(prompt="a", repetition_penalty=0), dict(prompt="a", seed=2**70),
             dict(prompt="a", logprobs=21), dict(prompt="a", stop=[3]), dict(prompt="a", stop=["x"] * 17),
             dict(prompt="a", stream=1), dict(prompt="a", presence_penalty=1), dict(prompt="a", temprature=1),
             dict(prompt=["a"] * 9), dict(prompt="a", n=9)):
    assert server.refused("/v1/completions", 400, **body)
assert "temprature" in server.refused("/v1/completions", 400, prompt="a", temprature=1)
too_long = server.refused("/v1/completions", 400, prompt="a" * (model["max_model_len"] + 1))
assert str(model["max_model_len"]) in too_long
server.complete("a", presence_penalty=0, user="me", logit_bias=None, max_tokens=2)
hello = [{"role": "user", "content": "hello"}]
server.post("/v1/chat/completions", messages=hello, max_tokens=2, tools=[], tool_choice="none", parallel_tool_calls=True,
            response_format={"type": "text"}, service_tier="auto", ignore_eos=False, store=False, metadata=None)
server.refused("/v1/chat/completions", 400, messages=hello, max_tokens=2, response_format={"type": "json_object"})
tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", **tool}]}
for more in (dict(messages=hello, tools=[tool]), dict(messages=[*hello, called])):
    assert "not supported by this template" in server.refused("/v1/chat/completions", 400, **more)
server.events("/v1/completions", prompt="a", max_tokens=1, stream_options={"include_usage": None})
assert "logprobs is not true" in server.refused("/v1/chat/completions", 400, messages=hello, top_logprobs=2)
status, text = server.request("POST", "/v1/completions", '{"prompt": "a", "temperature": 1e400}', raw=True)
assert status == 400 and b"out of range" in text, (status, text)
for messages in (None, [], "hello", [{"role": "user"}], [{"role": "nobody", "content": "x"}]):
    server.refused("/v1/chat/completions", 400, messages=messages)
for body, want_status in ((b"{", 400), (b"[1]", 400), (b'{"prompt": "a", "prompt": "b"}', 400),
                          (b"[" * 100000, 400), (b'{"prompt": "\xff"}', 400), (b"x" * 1100000, 413)):
    status, text = server.request("POST", "/v1/completions", body, raw=True)
    assert status == want_status and "error" in json.loads(text), (status, text)
assert server.request("POST", "/v1/completions", b"{}", {"Content-Type": "text/plain"}, raw=True)[0] == 415
asks = b'{"prompt": "a", "max_tokens": 2}'
assert server.request("POST", "/v1/completions", asks, {"Content-Type": "Application/JSON"}, raw=True)[0] == 200
parts = b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na\r\n--x--\r\n'
in_parts = {"Content-Type": "multipart/form-data; boundary=x"}
assert server.request("POST", "/v1/completions", parts, in_parts, raw=True)[0] == 415
connection = socket.create_connection(("127.0.0.1", server.port))
connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n")  # no length: no body
assert b" 415 " in connection.recv(100)

# A client of HTTP/1.0 knows no chunks.
for body in (asks, asks[:-1] + b', "stream": true}'):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body) + body)
        head, text = b"".join(iter(lambda: connection.recv(4096), b"")).split(b"\r\n\r\n", 1)
        assert b"chunked" not in head, head
        assert text.endswith(b"data: [DONE]\n\n") if b"stream" in body else json.loads(text)["choices"], text

# The body of a refused request is no next request of its connection.
hidden = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
for header in ("Host: evil.example", "Host: localhost\r\nContent-Type: text/plain"):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\n{header}\r\nContent-Length: {len(hidden)}\r\n\r\n"
        connection.sendall(head.encode())
        time.sleep(0.2)
        connection.sendall(hidden)
        text = b""
        try:
            while part := connection.recv(4096):
                text += part
        except ConnectionResetError:
            pass
        assert text.count(b"HTTP/1.1 ") == 1 and b"running" not in text, text
assert server.request("GET", "/v1/nothing")[0] == 404
assert "error" in json.loads(server.request("GET", "/v1/nothing")[1])
assert server.request("GET", "/health", headers={"Host": "evil.example:80"})[0] == 403
assert server.request("GET", "/health", headers={"Host": "127.evil.example"})[0] == 403
assert server.request("GET", "/health", headers={"Host": "LocalHost:80"})[0] == 200
server.idle()

# A port belongs to one server.
second = subprocess.run([os.environ["PERIGEE_BIN"] + "/perigee", "serve", os.environ["scratch"] + "/run.yaml",
                         "output_dir=" + folder, f"serve.port={server.port}"], capture_output=True, text=True, timeout=120)
assert second.returncode == 2 and "cannot be had" in second.stderr, second

# Running answers have time to end when the server is told to stop; what waits is refused.
# The answer must take longer than what this client does meanwhile, and less than the 20 s that it has to end.
answer = dict(prompt="hello", n=4, temperature=0)
begin = time.time()
server.post("/v1/completions", max_tokens=100, **answer)
seconds = 3 if ranks == 1 else 1
most = max(100, min(4000, int(100 * seconds / (time.time() - begin))))
for attempt in range(10):
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps(dict(max_tokens=most, stream=True, **answer)),
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    if ranks > 1:  # a launcher's ranks learn of it later, when nothing waits any longer
        break
    waits = server.connect()
    waits.request("POST", "/v1/completions", json.dumps(dict(prompt="b")), {"Content-Type": "application/json"})
    state = server.get("/health")
    while state["waiting"] == 0 and state["running"] > 0:
        state = server.get("/health")
    if state["waiting"] > 0 and state["running"] > 0:
        break
    response.read(), waits.getresponse().read()  # this client was too slow
else:
    raise AssertionError("no text waited while the answer ran, in ten attempts")
server.process.send_signal(signal.SIGTERM)
if ranks == 1:
    refused = waits.getresponse()
    assert refused.status == 503 and b"the server stops" in refused.read(), refused.status
rest = response.read()
assert rest.endswith(b"data: [DONE]\n\n"), rest[-300:]
assert server.process.wait(60) == 0
print("endpoints:", ranks, "ranks")
