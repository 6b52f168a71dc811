#!/usr/bin/env bash
# `generate --chat`: messages from a pipe and from a terminal, where Ctrl-C ends an answer and not the program.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
folder=$scratch/run
run 1 "$folder" perigee chat.template=chatml
[ "$code" = 0 ] || complain "training"
chat() { timeout 100 "$PERIGEE_BIN/perigee" generate "$scratch/run.yaml" output_dir="$folder" chat.template=chatml --chat "$@"; }

printf 'one\n\ntwo\n/new\none\n/exit\nthree\n' | chat --max-tokens 12 generate.temperature=0 >"$scratch/printed" 2>"$scratch/log" ||
    complain "a pipe: exit $?"
[ "$(grep -ac '' "$scratch/printed")" -ge 3 ] || complain "three messages before /exit"
printf 'one' | chat --max-tokens 12 generate.temperature=0 >"$scratch/one" 2>"$scratch/log" || complain "no newline at the end"
cmp -s <(head -c "$(stat -c %s "$scratch/one")" "$scratch/printed") "$scratch/one" || complain "another first answer"
tail -c "$(stat -c %s "$scratch/one")" "$scratch/printed" | cmp -s - "$scratch/one" || complain "another answer after /new"

printf 'one\r\n/exit\r\nthree\r\n' | chat --max-tokens 12 generate.temperature=0 >"$scratch/printed" 2>"$scratch/log" ||
    complain "lines that end with CR LF: exit $?"
cmp -s "$scratch/one" "$scratch/printed" || complain "another answer where lines end with CR LF"

code=0
chat chat.template=none </dev/null >"$scratch/printed" 2>"$scratch/log" || code=$?
[ "$code" = 2 ] && grep -qF 'needs a chat template' "$scratch/log" || complain "no template: exit $code"
code=0
"$PERIGEE_SOURCE/launch/mpirun.sh" 2 "$PERIGEE_BIN/perigee" generate "$scratch/run.yaml" output_dir="$folder" \
    chat.template=chatml --chat </dev/null >"$scratch/printed" 2>"$scratch/log" || code=$?
[ "$code" = 2 ] && grep -qF 'for one process' "$scratch/log" || complain "two ranks: exit $code"

python3 - "$PERIGEE_BIN/perigee" "$scratch/run.yaml" "$folder" <<'PY' || complain "a terminal"
import os, pty, select, signal, sys, time
binary, config, folder = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(binary, [binary, "generate", config, "output_dir=" + folder, "chat.template=chatml", "--chat",
                      "model.max_position_embeddings=100000", "--max-tokens", "90000"])
seen = b""
def until(what, seconds=60):
    global seen
    end = time.time() + seconds
    while what() is False:
        assert time.time() < end, seen[-2000:]
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                seen += os.read(terminal, 65536)
            except OSError:
                return
until(lambda: seen.endswith(b"> "))
prompts = seen.count(b"\n> ")
os.write(terminal, b"hello\n")
before = len(seen)
until(lambda: len(seen) > before + 200)       # an answer of 90,000 tokens goes on
os.write(terminal, b"\x03")                    # Ctrl-C
until(lambda: seen.endswith(b"\n> "))
os.write(terminal, b"half a li\x03")           # and of what is typed
until(lambda: seen.endswith(b"> "))
os.write(terminal, b"again\n")
before = len(seen)
until(lambda: len(seen) > before + 200)
os.write(terminal, b"\x03")
until(lambda: seen.endswith(b"\n> "))
os.write(terminal, b"/exit\n")
until(lambda: False if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None else True)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
PY
verdict
