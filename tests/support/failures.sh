# Sourced after jobs.sh by tests whose ranks hang or die: what a job says, and whether the next start takes over. The run of
# these options is in $folder, the unbroken one in $whole.
folder=$scratch/run whole=$scratch/whole
options=()

said() { grep -q "$1" "$scratch/log"; }
one_line() {  # one_line WHAT PATTERN: exactly one such line in the log
    local count
    count=$(grep -cE "$2" "$scratch/log") || true
    [ "$count" = 1 ] || complain "$1: $count lines like '$2'"
}
report_says() { [ -s "$1" ] && grep -q "$2" "$1"; }
resumes() {  # resumes WHAT: the next start takes over at once
    run 2 "$folder" perigee "${options[@]}"
    [ "$code" = 0 ] || complain "$1: the next start ended with $code"
    diff <(numbers "$whole") <(numbers "$folder") >/dev/null || complain "$1: losses differ afterwards"
    if ls "$folder"/failure_rank_* >/dev/null 2>&1; then complain "$1: an old failure file stayed"; fi
}
died() {
    echo "^perigee: communication error: rank $1 \(process [0-9]+ on host .*\) died in section [a-z_]+ at step [0-9]+.*$2\$"
}
