#!/usr/bin/env bash
# perigee report: the page it writes, and --serve, which follows a run and ends with the process.
set -euo pipefail
work=$(mktemp -d)
server=
trap 'rm -rf "$work"; [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true' EXIT
fail() {
    echo "FAILED: $1"
    exit 1
}
perigee=$PERIGEE_BIN/perigee
mkdir "$work/run"
for i in $(seq 50); do echo "{\"step\":$i,\"loss\":$((100 - i)).25}"; done >"$work/run/metrics.jsonl"

[ "$("$perigee" report "$work/run")" = "$work/run/report.html" ] || fail "the page's place is not said"
grep -q '99.25' "$work/run/report.html" || fail "the first loss is missing"
"$perigee" report "$work/run" "$work/run/metrics.jsonl" --output "$work/both.html" >/dev/null
[ -s "$work/both.html" ] || fail "no page of two runs"
mkdir -p "$work/other"
cp -r "$work/run" "$work/other"
"$perigee" report "$work/run" "$work/other/run" --output "$work/both.html" >/dev/null
grep -qF "\"name\":\"$work/other/run\"" "$work/both.html" || fail "runs of one name are not told apart"
code=0
"$perigee" report "$work/none" 2>"$work/log" || code=$?
[ "$code" = 3 ] && grep -q 'none: no such file' "$work/log" || fail "a missing run: exit $code"

mkdir "$work/evaluated"
echo '{"suite":"ruler","task":"keys","length":4096,"attention":"full","step":0,"weight":7,"nll":1,"passed":true}' >"$work/evaluated/suites.jsonl"
"$perigee" report "$work/evaluated" >/dev/null
grep -q '"items":\[{.*"task":"keys"' "$work/evaluated/report.html" || fail "a folder with suites alone"
mkdir "$work/empty"
code=0
"$perigee" report "$work/empty" 2>"$work/log" || code=$?
[ "$code" = 3 ] && grep -q 'expected a run folder with metrics.jsonl' "$work/log" || fail "an empty folder: exit $code"

echo 'seed: 1' >"$work/run/config.yaml"
cp -r "$work/run" "$work/kept"
for name in metrics.jsonl config.yaml; do
    code=0
    "$perigee" report "$work/run" -o "$work/run/./$name" >"$work/log" 2>&1 || code=$?
    [ "$code" = 2 ] && grep -q "would replace .*$name" "$work/log" || fail "over $name: exit $code: $(cat "$work/log")"
    cmp "$work/run/$name" "$work/kept/$name" || fail "$name is not kept"
done

"$perigee" report "$work/run" --serve --port 0 >"$work/address" 2>"$work/log" &
server=$!
for _ in $(seq 2400); do grep -q '/   ' "$work/address" && break; sleep 0.05; done
port=$(sed -nE 's|^http://127\.0\.0\.1:([0-9]+)/.*|\1|p' "$work/address")
[ -n "$port" ] || fail "no address: $(cat "$work/address" "$work/log")"
get() {
    exec 5<>"/dev/tcp/127.0.0.1/$port"
    printf 'GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$1" "${2:-localhost:$port}" >&5
    cat <&5
    exec 5>&-
}
get / >"$work/page"
grep -q '"live":true' "$work/page" || fail "the page is not live: $(head -c 300 "$work/page")"
echo '{"step":51,"loss":48.125}' >>"$work/run/metrics.jsonl"
get /data >"$work/data"
grep -q '48.125' "$work/data" || fail "the data does not follow the run"
get /etc/passwd | head -1 | grep -q 404 || fail "serves something else"
get /data evil.example | head -1 | grep -q 403 || fail "answers to a name that a page of the web made to point here"
code=0
timeout 60 "$perigee" report "$work/run" --serve --port "$port" >"$work/second" 2>&1 || code=$?
[ "$code" = 2 ] && grep -q "port $port of this machine is taken" "$work/second" || fail "a port that is taken: exit $code"
kill -TERM "$server"
code=0
wait "$server" || code=$?
server=
[ "$code" = 75 ] || fail "told to stop: exit $code"
echo "all passed"
