# What the tests of `perigee serve` share: a server of a small trained model, and a client.
import atexit, http.client, json, os, re, signal, subprocess, time


class Server:
    def __init__(self, folder, *options, ranks=1):
        program = [os.environ["PERIGEE_BIN"] + "/perigee", "serve", os.environ["scratch"] + "/run.yaml",
                   "output_dir=" + folder, "serve.port=0", *options]
        if ranks > 1:
            program = [os.environ["PERIGEE_SOURCE"] + "/launch/mpirun.sh", str(ranks), *program]
        self.log = open(os.environ["scratch"] + "/log", "a")
        self.process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=self.log, text=True)
        atexit.register(self.process.terminate)
        line = self.process.stdout.readline()
        found = re.match(r"http://127\.0\.0\.1:(\d+)/v1 ", line)
        assert found, line
        self.port = int(found[1])

    def connect(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, raw=False):
        connection = self.connect()
        if headers is None:
            headers = {"Content-Type": "application/json"}
        connection.request(method, path, body if raw or body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, text

    def get(self, path):
        status, text = self.request("GET", path)
        assert status == 200, (status, text)
        return json.loads(text)

    def post(self, path, **body):
        status, text = self.request("POST", path, body)
        assert status == 200, (status, text)
        return json.loads(text)

    def refused(self, path, want, **body):
        status, text = self.request("POST", path, body)
        error = json.loads(text)["error"]
        assert status == want and error["message"], (status, text)
        return error["message"]

    def events(self, path, **body):
        status, text = self.request("POST", path, {**body, "stream": True})
        assert status == 200, (status, text)
        lines = text.decode().split("\n\n")
        assert lines[-1] == "" and lines[-2] == "data: [DONE]", lines[-3:]
        assert all(line.startswith("data: ") for line in lines[:-1])
        return [json.loads(line[6:]) for line in lines[:-2]]

    def complete(self, prompt, **more):
        return self.post("/v1/completions", prompt=prompt, **more)["choices"][0]

    def idle(self, seconds=60):
        end = time.time() + seconds
        while True:
            state = self.get("/health")
            if state["running"] == state["waiting"] == state["open_requests"] == 0:
                return state
            assert time.time() < end, state
            time.sleep(0.02)

    def stop(self, how=signal.SIGTERM, want=0):
        self.process.send_signal(how)
        code = self.process.wait(60)
        assert code == want, code


def near(a, b, bound):
    assert abs(a - b) <= bound, (a, b)
