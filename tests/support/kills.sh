# Sourced after signals.sh by tests that kill jobs and start them again. Each next start must need no hand, take the newest
# whole checkpoint, lose no step in the metrics and repeat the unbroken run bit for bit; nothing may be left behind.
seed=${PERIGEE_SEED:-$RANDOM}
RANDOM=$seed
# Every fourth step saves. The operations of a rank until step 16: after any kill 20 losses and more are there to compare.
steps=40
options=(train.steps=$steps checkpoint.every=4 checkpoint.keep_last=2 log.every=1)
operations=180
earliest=0  # moment of a kill, as a part of the unbroken run

unbroken() {
    local began
    began=$(seconds)
    run 2 "$scratch/whole" perigee_faulty "${options[@]}"
    length=$(since "$began")
    [ "$code" = 0 ] || complain "unbroken run"
}

newest_whole() {  # the newest folder of the final name: the protocol says it is whole
    ls "$1/checkpoints" 2>/dev/null | grep -E '^step_[0-9]{8}(\.old)?$' | sort | tail -1 | sed -E 's/step_0*([0-9]+).*/\1/'
}

kills=0 resumed=0 damages=0 folder=$scratch/broken
# Bytes of the newest checkpoint, where an older one can take its place.
damage() {
    local newest file bytes
    [ "$(ls "$folder/checkpoints" 2>/dev/null | grep -cE '^step_[0-9]{8}$')" -ge 2 ] || return 0
    newest=$folder/checkpoints/$(printf 'step_%08d' "$(newest_whole "$folder")")
    [ -d "$newest" ] || return 0  # it has only its name for a save that was being replaced
    file=$newest/rank_000$((RANDOM % 2)).h5
    bytes=$(stat -c %s "$file")
    case $((RANDOM % 5)) in
        0) truncate -s $((RANDOM * bytes / 32768)) "$file" ;;
        1) flip "$file" $(((RANDOM * 32768 + RANDOM) % bytes)) ;;
        2) rm "$file" ;;
        3) rm "$newest/manifest.json" ;;
        4) flip "$newest/manifest.json" $((RANDOM % $(stat -c %s "$newest/manifest.json"))) ;;
    esac
    damages=$((damages + 1))
    damaged=$newest
}
flip() {  # flip FILE OFFSET: one bit of that byte
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\$(printf %o $((byte ^ 1 << RANDOM % 8)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
# goes_on WHAT: the next start
goes_on() {
    local what=$1 before
    before=$(newest_whole "$folder") || true
    if [ -n "$damaged" ]; then before=$(ls "$folder/checkpoints" | grep -E '^step_[0-9]{8}$' | sort | tail -2 | head -1 |
        sed -E 's/step_0*//'); fi
    run 2 "$folder" perigee "${options[@]}"
    [ "$code" = 0 ] || complain "$what: the next start ended with $code"
    if [ -n "$before" ]; then
        grep -q "resumed at step $before from" "$scratch/log" || complain "$what: not resumed at $before"
        resumed=$((resumed + 1))
    fi
    if [ -n "$damaged" ]; then
        [ -e "$damaged.damaged" ] || complain "$what: not set aside"
    fi
    [ "$(grep -c '"loss"' "$folder/metrics.jsonl")" = "$steps" ] || complain "$what: steps are missing in the metrics"
    diff <(numbers "$scratch/whole") <(numbers "$folder") >"$scratch/diff" ||
        complain "$what: losses differ: $(head -3 "$scratch/diff")"
    diff <(weights "$scratch/whole" step_000000$steps) <(weights "$folder" step_000000$steps) >"$scratch/diff" ||
        complain "$what: weights differ"
    leftovers=$(ls -A "$folder/checkpoints" | grep -vE '^step_[0-9]{8}(\.damaged)?$') || true
    [ -z "$leftovers" ] || complain "$what: $leftovers was left behind"
    clean || complain "$what: left behind: $(left_behind)"
}
# kill_at RANK POINT [MICROSECONDS [damage]]: false where the run is over before it dies
kill_at() {
    local what="rank $1 at $2 +${3:-0} us" damaged=
    rm -rf "$folder"
    PERIGEE_KILL_RANK=$1 PERIGEE_KILL=$2 PERIGEE_KILL_DELAY=${3:-0} run 2 "$folder" perigee_faulty "${options[@]}"
    if [ "$code" = 0 ]; then return 1; fi
    kills=$((kills + 1))
    eventually 10 job_ended "$folder" || complain "$what: processes are left"
    ${4:-}
    goes_on "$what${damaged:+, $damaged damaged}"
}
# kill_after VICTIM SECONDS [damage]: false where the run is over before it dies
kill_after() {
    local what="$1 after $2 s" victims damaged=
    rm -rf "$folder"
    begin "$PERIGEE_SOURCE/launch/mpirun.sh" 2 "$PERIGEE_BIN/perigee" train "$scratch/run.yaml" output_dir="$folder" \
        "${options[@]}"
    pause "$2"
    case $1 in
        rank) victims=$(processes "$folder" | shuf -n 1 --random-source=<(yes "$RANDOM")) ;;
        mpirun) victims=$(pgrep -f "^mpirun .* output_dir=$folder( |\$)") || true ;;
        script) victims=$job ;;
        all) victims="$job $(launchers "$folder") $(processes "$folder")" ;;
    esac
    kill -KILL ${victims:-$job} 2>/dev/null || true
    finish
    eventually 10 job_ended "$folder" || complain "$what: processes are left"
    if [ "$(grep -c '"loss"' "$folder/metrics.jsonl" 2>/dev/null)" = "$steps" ]; then return 1; fi
    kills=$((kills + 1))
    ${3:-}
    goes_on "$what${damaged:+, $damaged damaged}"
}

# One kill of a moment by chance, which counts in $kills; none where the run is over before it.
random_kill() {
    local then= rank point delay victims moment
    if [ $((kills % 3)) = 2 ]; then then=damage; fi
    if [ $((kills % 2)) = 0 ]; then
        rank=$((RANDOM % 3))
        point=any:checkpoints/:$((30 + RANDOM % operations))
        if [ "$rank" = 2 ]; then rank=all; fi
        if [ $((RANDOM % 2)) = 0 ]; then point+=:after; fi
        delay=0
        if [ $((RANDOM % 2)) = 0 ]; then delay=$((1 + RANDOM % 5000)); fi
        kill_at "$rank" "$point" "$delay" $then || echo "none: rank $rank at $point +$delay us"
    else
        victims=(rank mpirun script all)
        moment=$(awk -v r=$RANDOM -v s="$length" -v e="$earliest" 'BEGIN { printf "%.4f", (e + (1 - e) * r / 32768) * s }')
        kill_after "${victims[RANDOM % 4]}" "$moment" $then || {
            echo "none: the run was over"
            length=$moment  # the machine has become faster
        }
    fi
}
