#!/usr/bin/env bash
# What a shell completes: commands, options and their values, subcommands, keys of a configuration and their values.
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
perigee=$PERIGEE_BIN/perigee

"$perigee" completion bash >"$scratch/bash" 2>"$scratch/log" || complain "no script for bash"
cat >"$scratch/ask" <<'SH'
source "$1"
COMP_LINE=$2 COMP_POINT=${#2}
_perigee
printf '%s\n' "${COMPREPLY[@]}"
SH
mkdir "$scratch/here"
touch "$scratch/here/optimum.yaml"
completes() {  # completes LINE EXPECTED...: exactly these, in any order
    local line=$1
    (cd "$scratch/here" && bash "$scratch/ask" "$scratch/bash" "$line") >"$scratch/log" 2>&1
    diff <(printf '%s\n' "${@:2}" | sort) <(sort "$scratch/log") >"$scratch/printed" || complain "bash: $line"
}
completes "perigee to" tokenize
completes "perigee check" check checkpoint
completes "perigee checkpoint " inspect verify diff --help
completes "perigee completion z" zsh
completes "perigee view --weights i" init
completes "perigee generate a.yaml --m" --mock-data --max-tokens
completes "perigee train opti" optimum.yaml "$("$PERIGEE_BIN/config_reference" |
    sed -n '/^## optimizer$/,/^## /s/^| `\([a-z0-9_]*\)` .*/optimizer.\1=/p')"
completes "perigee train a.yaml attention.kind=" full moba
completes "perigee train a.yaml attention.kind=m" moba
completes "perigee eval a.yaml data.train.0.pa" data.train.0.path=
completes "perigee plot opti" optimum.yaml
completes "perigee train a.yaml model.init_from=opt" optimum.yaml

# Every row of docs/config.md that has a value is a key, and every command that --help lists is completed.
[ "$(grep -o "compgen -W '[a-z][^']*=\?' -- \"\$word\"); do" "$scratch/bash" | wc -w)" -gt 100 ] || complain "few keys"
commands=($("$perigee" --help | sed -n 's/^  \([a-z]*\) .*/\1/p'))
[ ${#commands[@]} -ge 16 ] || complain "few commands: ${commands[*]}"
for command in "${commands[@]}"; do
    completes "perigee $command" $command $([ "$command" != check ] || echo checkpoint)
done

"$perigee" completion zsh >"$scratch/zsh" 2>"$scratch/log" || complain "no script for zsh"
for shell in fish 1; do
    says=$("$perigee" completion "$shell" 2>&1) && complain "$shell is no shell that is known"
    [[ $says == *"not in {bash,zsh}"* ]] || complain "does not name the shells: $says"
done
command -v zsh >/dev/null || verdict
zsh -f -n "$scratch/zsh" 2>"$scratch/log" || complain "zsh: the script is not valid"
# compadd is asked what it was given, as only a terminal shows what zsh completes.
cat >"$scratch/ask.zsh" <<'SH'
compdef() { : }
source $1
compadd() { while [[ $1 == -* ]]; do [[ $1 == -S ]] && shift; [[ $1 == -- ]] && { shift; break }; shift; done; print -l -- ${(M)@:#$PREFIX*} }
compset() { PREFIX=${PREFIX#*=} }
_files() { : }
_describe() { print -l -- ${${(P)4}%%:*} }
words=(${(z)2} "${3-}") CURRENT=$#words PREFIX=${3-}
_perigee
SH
offers() {  # offers "WORDS BEFORE" WORD EXPECTED...
    zsh -f "$scratch/ask.zsh" "$scratch/zsh" "$1" "$2" >"$scratch/log" 2>&1
    diff <(printf '%s\n' "${@:3}" | sort) <(sort "$scratch/log") >"$scratch/printed" || complain "zsh: $1 $2"
}
offers perigee "" "${commands[@]}"
offers "perigee checkpoint" ver verify
offers "perigee view --weights" i init
offers "perigee generate a.yaml" --max --max-tokens
offers "perigee train a.yaml" attention.kind= full moba
offers "perigee train a.yaml" data.train.0.pa data.train.0.path
verdict
