#!/usr/bin/env bash
# The package in systems that have nothing else: built in one, installed in another, where `perigee quickstart` trains and
# ends well. Needs root, debootstrap and the archives of Debian and Ubuntu; skipped without.
# PERIGEE_DEB_bookworm=FILE, PERIGEE_DEB_noble=FILE: takes this package instead of building one
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || { echo "needs root and debootstrap"; exit 77; }
trap 'umount "$scratch"/*/proc 2>/dev/null || true; rm -rf --one-file-system "$scratch"' EXIT
: >"$scratch/log"

inside() {  # inside ROOT COMMAND...
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        ${CMAKE_BUILD_PARALLEL_LEVEL:+CMAKE_BUILD_PARALLEL_LEVEL=$CMAKE_BUILD_PARALLEL_LEVEL} \
        chroot "$scratch/$1" "${@:2}" >>"$scratch/log" 2>&1
}
make_root() {  # make_root NAME FROM
    cp -a "$scratch/$2" "$scratch/$1"
    mount -t proc proc "$scratch/$1/proc"
}

check() {  # check SUITE MIRROR [debootstrap's argument...]
    local suite=$1 mirror=$2 package=PERIGEE_DEB_$1
    curl -sfo /dev/null -m 20 "$mirror/dists/$suite/Release" || { echo "$suite: $mirror cannot be reached"; return; }
    # Debian 12's debootstrap does not know noble by name; all of Ubuntu's suites since gutsy are made alike.
    local script=/usr/share/debootstrap/scripts/$suite
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/gutsy
    debootstrap --variant=minbase "${@:3}" "$suite" "$scratch/$suite" "$mirror" "$script" >"$scratch/log" 2>&1 ||
        { complain "$suite: debootstrap"; return; }
    cp /etc/resolv.conf "$scratch/$suite/etc/"
    # `_apt` may not own files in every sandbox; the archives are only read.
    echo 'APT::Sandbox::User "root";' >"$scratch/$suite/etc/apt/apt.conf.d/99root"
    if [ -z "${!package:-}" ]; then
        make_root "$suite-build" "$suite"
        mkdir "$scratch/$suite-build/perigee"
        (cd "$PERIGEE_SOURCE" && git ls-files -z | tar --null -cT - -f -) | tar -xC "$scratch/$suite-build/perigee"
        inside "$suite-build" /perigee/launch/package.sh || { complain "$suite: the package is not built"; return; }
        cp "$scratch/$suite-build"/perigee/build/package/perigee_*.deb "$scratch/$suite.deb"
    else
        cp "${!package}" "$scratch/$suite.deb"
    fi
    make_root "$suite-user" "$suite"
    cp "$scratch/$suite.deb" "$scratch/$suite-user/perigee.deb"
    inside "$suite-user" apt-get update || complain "$suite: apt-get update"
    inside "$suite-user" apt-get install --yes --no-install-recommends /perigee.deb || complain "$suite: it does not install"
    : >"$scratch/log"
    inside "$suite-user" perigee quickstart || complain "$suite: quickstart ends with $?"
    grep -q '^MoBA, last layer full' "$scratch/log" || complain "$suite: no held-out loss"
    [ "$(tail -n 1 "$scratch/log")" = runs/quickstart/report.html ] || complain "$suite: its last words: $(tail -n 1 "$scratch/log")"
    [ -s "$scratch/$suite-user/runs/quickstart/report.html" ] || complain "$suite: no report"
    awk -v losses="$(grep -o '"loss":[0-9.]*' "$scratch/$suite-user/runs/quickstart/metrics.jsonl" | cut -d: -f2 | tr '\n' ' ')" \
        'BEGIN { n = split(losses, loss, " "); exit !(n == 320 && loss[n] < loss[1] / 2) }' || complain "$suite: it did not learn"
    inside "$suite-user" bash -c 'source /usr/share/bash-completion/completions/perigee' || complain "$suite: completion"
    echo "$suite: $(basename "$(ls "$scratch/$suite.deb")") trained to $(tail -n 1 "$scratch/$suite-user/runs/quickstart/metrics.jsonl")"
}

check bookworm http://deb.debian.org/debian
check noble http://archive.ubuntu.com/ubuntu --no-check-gpg --components=main,universe
verdict
