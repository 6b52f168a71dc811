# A thousand requests from many threads.
import collections, json, random, select, socket, sys, threading, time
from client import Server

server = Server(sys.argv[1], "generate.batch=4", "serve.queue=24", "serve.body_mib=1", "serve.request_s=60",
                "generate.cache_gib=0.001")
pages = server.idle()["free_pages"]
assert pages > 10
PROMPTS = ["one", "a much longer prompt that fills several blocks of the cache", "x" * 40, "\u00e9t\u00e9"]
BODIES = [dict(prompt=p, max_tokens=t, temperature=temperature, seed=11)
          for p in PROMPTS for t, temperature in ((1, 0), (8, 0), (17, 1.2))]
ALONE = [server.complete(**body)["text"] for body in BODIES]
SCORED = server.complete(PROMPTS[1], max_tokens=0, echo=True, logprobs=1)["logprobs"]["token_logprobs"]
server.idle()
counts, problems, lock = collections.Counter(), [], threading.Lock()
resets = []
once = server.request


def request(*arguments, **more):
    """As clients do: a connection that the system resets in the crowd before its request is taken is made once more."""
    try:
        return once(*arguments, **more)
    except ConnectionResetError as error:
        resets.append(error)
        return once(*arguments, **more)


server.request = request


def raw(data, read=0, pause=0.0):
    """Sends bytes, reads some, and leaves."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        try:
            connection.sendall(data)
            time.sleep(pause)
            if read:
                return connection.recv(read)
        except OSError:
            return b""


def http(body, path="/v1/completions", length=None, more=""):
    length = len(body) if length is None else length
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\n{more}\r\n").encode() + body


def good(r):
    i = r.randrange(len(BODIES))
    status, text = server.request("POST", "/v1/completions", BODIES[i])
    if status == 503:
        return "queue full"
    assert status == 200, (status, text)
    assert json.loads(text)["choices"][0]["text"] == ALONE[i], (BODIES[i], text, ALONE[i])
    return "good"


def streamed(r):
    i = r.randrange(len(BODIES))
    status, text = server.request("POST", "/v1/completions", {**BODIES[i], "stream": True})
    if status == 503:
        return "queue full"
    lines = text.decode().split("\n\n")
    assert lines[-2] == "data: [DONE]", text
    assert "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines[:-2]) == ALONE[i]
    return "streamed"


def scored(r):
    status, text = server.request("POST", "/v1/completions",
                                  dict(prompt=PROMPTS[1], max_tokens=r.choice([0, 1, 3]), echo=True, logprobs=1, temperature=0))
    if status == 503:
        return "queue full"
    found = json.loads(text)["choices"][0]["logprobs"]["token_logprobs"][:len(SCORED)]
    assert all(a is b is None or abs(a - b) < 1e-4 for a, b in zip(found, SCORED))
    return "scored"


def chat(r):
    status, text = server.request("POST", "/v1/chat/completions",
                                  dict(messages=[{"role": "user", "content": "hi"}], max_tokens=5, stream=r.random() < 0.5))
    assert status in (200, 503), (status, text)
    return "chat" if status == 200 else "queue full"


def leaves(r):
    body = json.dumps(dict(prompt=r.choice(PROMPTS), max_tokens=5000, stream=r.random() < 0.5)).encode()
    raw(http(body), read=r.choice([0, 0, 20, 300]), pause=r.choice([0, 0.01, 0.1]))
    return "left"


def half(r):
    raw(http(b'{"prompt": "never ', length=500), pause=r.choice([0, 0.05]))
    return "half a body"


def malformed(r):
    body = r.choice([b"{", b"", b"[]", b"nonsense", b'{"prompt": 1}', b'{"prompt": "a", "max_tokens": 1e99}', b"[" * 5000,
                     b'{"prompt": [' + b"9," * 5000 + b"9999999]}", b'{"prompt": "\xc3"}', b"\0" * 100])
    status, text = server.request("POST", r.choice(["/v1/completions", "/v1/chat/completions"]), body, raw=True)
    assert status == 400 and "message" in json.loads(text)["error"], (status, text)
    return "malformed"


def garbage(r):
    raw(r.choice([b"\x16\x03\x01" + bytes(r.randrange(256) for _ in range(200)), b"GET / HTTP/9.9\r\n\r\n",
                  b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"A" * 20000, b"\r\n" * 50,
                  b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", http(b"{}", more="Content-Encoding: gzip\r\n")]), read=100)
    return "garbage"


def oversized(r):
    body = b" " * (1 << 20) + b'{"prompt": "a"}'
    if r.random() < 0.5:
        answer = raw(http(body), read=200)
        assert answer == b"" or b" 413 " in answer, answer
    else:  # in chunks, of a length that nobody says
        head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n")
        raw(head + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 40, read=200)
    return "oversized"


def looks(r):
    assert server.get(r.choice(["/health", "/v1/models"]))
    return "looked"


KINDS = [good] * 5 + [streamed] * 3 + [scored] * 2 + [chat, leaves, leaves, leaves, half, malformed, malformed, garbage,
                                                     oversized, looks]
TOTAL, THREADS = 1000, 24


def work(number):
    r = random.Random(number)
    for _ in range(number, TOTAL, THREADS):
        kind = r.choice(KINDS)
        try:
            name = kind(r)
        except Exception as error:  # noqa: what it is, is the message
            with lock:
                problems.append(f"{kind.__name__}: {error!r}")
            name = "problem"
        with lock:
            counts[name] += 1


threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(dict(counts))
assert not problems, problems[:5]
assert len(resets) < 10, len(resets)
assert sum(counts.values()) == TOTAL and counts["good"] > 100 and counts["left"] > 50
assert server.idle(60)["free_pages"] == pages
for body, text in zip(BODIES, ALONE):
    assert server.complete(**body)["text"] == text

# A client that leaves frees its text at once, whatever was asked of it.
ENDLESS = dict(prompt="a", max_tokens=100000, temperature=0)
begin = time.time()
tokens = server.post("/v1/completions", **ENDLESS)["usage"]["completion_tokens"]
whole = time.time() - begin
assert tokens > 1000, tokens


def leave(stream):
    """Seconds from the moment that four clients leave until nothing runs."""
    connections = []
    for _ in range(4):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(http(json.dumps(dict(ENDLESS, stream=stream)).encode()))
        connections.append(connection)
    end = time.time() + 20
    while not (running := server.get("/health")["running"]) and time.time() < end:
        pass
    for connection in connections:
        connection.close()
    left = time.time()
    assert server.idle()["free_pages"] == pages
    return time.time() - left if running else whole  # else the answers ended before this client looked


for stream in (True, False):
    took = min(leave(stream) for _ in range(5))  # the machine may have others to serve just then
    print(f"an answer takes {whole:.2f} s, four of them end {took:.2f} s after their clients leave")
    assert took < whole / 2
server.stop()

# More clients than texts may run and wait: those beyond are told, and the server still says how it is.
server = Server(sys.argv[1], "generate.batch=2", "serve.queue=290", "generate.cache_gib=0.001")
connections = []
for _ in range(330):
    connections.append(server.connect())
    connections[-1].request("POST", "/v1/completions", json.dumps(ENDLESS), {"Content-Type": "application/json"})
refused, silent, answers = 0, list(connections), []
while refused < 30:  # texts that end meanwhile leave their places to others
    answered, _, _ = select.select([connection.sock for connection in silent], [], [], 60)
    assert answered, f"{refused} clients are refused"
    for connection in [connection for connection in silent if connection.sock in answered]:
        silent.remove(connection)
        answers.append(connection.getresponse())
        if answers[-1].status == 503:
            assert b"too many texts wait" in answers[-1].read()
            refused += 1
    assert server.get("/health")["waiting"] > 200
for connection in connections + answers:
    connection.close()
server.idle(60)
server.stop()
