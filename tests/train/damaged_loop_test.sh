#!/usr/bin/env bash
# Every kind of damage to the newest checkpoint, two real ranks: `resume: auto` sets it aside, says so in one line, goes
# on from the newest whole one and ends bit for bit like the unbroken run. One named explicitly stays an error.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
options=(train.steps=6 checkpoint.every=2 checkpoint.async=false)
whole=$scratch/whole folder=$scratch/run last=step_00000006 newest=$scratch/run/checkpoints/step_00000006

run 2 "$whole" perigee "${options[@]}" && [ "$code" = 0 ] || complain "unbroken run"
run 2 "$scratch/other" perigee "${options[@]}" data.mock.task=far_recall && [ "$code" = 0 ] || complain "other run"

flip() { python3 -c 'import sys; f = open(sys.argv[1], "r+b"); f.seek(int(sys.argv[2])); b = f.read(1)[0]; f.seek(-1, 1); f.write(bytes([b ^ 1]))' "$@"; }
damage() {
    case $1 in
        truncated) truncate -s 1000 "$newest/rank_0001.h5" ;;
        longer) echo >>"$newest/rank_0001.h5" ;;
        emptied) : >"$newest/rank_0000.h5" ;;
        flipped) flip "$newest/rank_0001.h5" 5000 ;;
        missing) rm "$newest/rank_0001.h5" ;;
        a_folder) rm "$newest/rank_0001.h5" && mkdir "$newest/rank_0001.h5" ;;
        of_another_step) cp "$folder/checkpoints/step_00000004/rank_0000.h5" "$newest/rank_0000.h5" ;;
        swapped) mv "$newest/rank_0000.h5" "$newest/x" && mv "$newest/rank_0001.h5" "$newest/rank_0000.h5" && mv "$newest/x" "$newest/rank_0001.h5" ;;
        manifest_gone) rm "$newest/manifest.json" ;;
        manifest_flipped) flip "$newest/manifest.json" 400 ;;
        manifest_truncated) truncate -s 100 "$newest/manifest.json" ;;
        manifest_foreign) echo '{"format": "else"}' >"$newest/manifest.json" ;;
        manifest_of_another_step) cp "$folder/checkpoints/step_00000004/manifest.json" "$newest/manifest.json" ;;
        manifest_of_another_run) cp "$scratch/other/checkpoints/$last/manifest.json" "$newest/manifest.json" ;;
        step_renamed) rm -r "$newest" && cp -r "$folder/checkpoints/step_00000004" "$newest" ;;
        of_another_run) rm -r "$newest" && cp -r "$scratch/other/checkpoints/$last" "$newest" ;;
        empty_folder) rm -r "$newest" && mkdir "$newest" ;;
        a_file) rm -r "$newest" && echo x >"$newest" ;;
    esac
}

for kind in truncated longer emptied flipped missing a_folder of_another_step swapped manifest_gone manifest_flipped \
    manifest_truncated manifest_foreign manifest_of_another_step manifest_of_another_run step_renamed of_another_run empty_folder \
    a_file; do
    rm -rf "$folder" && cp -r "$whole" "$folder"
    damage "$kind"
    run 2 "$folder" perigee "${options[@]}" checkpoint.resume="$newest"
    [ "$code" = 4 ] || [[ "$kind" =~ ^(step_renamed|of_another_run)$ ]] || complain "$kind, named explicitly: exit $code"
    [ -e "$newest" ] || complain "$kind, named explicitly: renamed"
    rm -rf "$folder" && cp -r "$whole" "$folder"
    damage "$kind"
    run 2 "$folder" perigee "${options[@]}"
    [ "$code" = 0 ] || complain "$kind: exit $code"
    grep -q 'resumed at step 4 from' "$scratch/log" || complain "$kind: resumed elsewhere"
    [ "$(grep -c "warning: checkpoint $last is damaged and now lies in .*/$last.damaged: ." "$scratch/log")" = 1 ] ||
        complain "$kind: not one line"
    [ -e "$newest.damaged" ] || complain "$kind: not set aside"
    diff <(numbers "$whole") <(numbers "$folder") >"$scratch/diff" || complain "$kind: losses differ"
    diff <(weights "$whole" $last) <(weights "$folder" $last) >"$scratch/diff" || complain "$kind: weights differ"
done

rm -rf "$folder" && cp -r "$whole" "$folder"
mkdir "$folder/checkpoints/step_99999999"
run 2 "$folder" perigee "${options[@]}" train.steps=8
[ "$code" = 0 ] && grep -q 'resumed at step 6 from' "$scratch/log" || complain "a stray folder blocks"
truncate -s 100 "$folder"/checkpoints/step_0000000?/manifest.json
for again in first second; do
    run 2 "$folder" perigee "${options[@]}"
    [ "$code" = 4 ] && grep -q 'begin anew' "$scratch/log" || complain "all damaged, $again start: exit $code"
done
verdict
