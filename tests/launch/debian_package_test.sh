#!/usr/bin/env bash
# The package in systems that have nothing else: built in one, installed in another, where `perigee quickstart` trains and
# ends well. Needs root, debootstrap, curl and the archives of Debian and Ubuntu; skipped without.
# PERIGEE_DEB_bookworm=FILE, PERIGEE_DEB_noble=FILE: takes this package instead of building one
# PERIGEE_DEB_KEEP=FOLDER: leaves the packages there; PERIGEE_DEB_SUITES="bookworm noble": these systems alone
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null && command -v curl >/dev/null ||
    { echo "needs root, debootstrap and curl"; exit 77; }
trap 'umount "$scratch"/*/proc 2>/dev/null || true; rm -rf --one-file-system "$scratch"' EXIT
: >"$scratch/log"
proven=0

inside() {  # inside ROOT COMMAND...
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        ${CMAKE_BUILD_PARALLEL_LEVEL:+CMAKE_BUILD_PARALLEL_LEVEL=$CMAKE_BUILD_PARALLEL_LEVEL} \
        chroot "$scratch/$1" "${@:2}" </dev/null >>"$scratch/log" 2>&1
}
make_root() {  # make_root NAME FROM
    cp -a "$scratch/$2" "$scratch/$1"
    mount -t proc proc "$scratch/$1/proc"
}

began=$SECONDS
took() {  # took WHAT: the seconds since the last one
    echo "$1: $((SECONDS - began)) s"
    began=$SECONDS
}

# get_package SUITE: leaves it at $scratch/SUITE.deb
get_package() {
    local suite=$1 package=PERIGEE_DEB_$1
    if [ -z "${!package:-}" ]; then
        make_root "$suite-build" "$suite"
        mkdir "$scratch/$suite-build/perigee"
        (cd "$PERIGEE_SOURCE" && git ls-files -z | tar --null -cT - -f -) | tar -xC "$scratch/$suite-build/perigee"
        inside "$suite-build" /perigee/launch/package.sh || return 1
        cp "$scratch/$suite-build"/perigee/build/package/perigee_*.deb "$scratch/$suite.deb"
    else
        cp "${!package}" "$scratch/$suite.deb"
    fi
    [ -z "${PERIGEE_DEB_KEEP:-}" ] || cp "$scratch/$suite.deb" "$PERIGEE_DEB_KEEP/perigee_$suite.deb"
}

# learned FOLDER STEPS: as many losses, the last less than half the first
learned() {
    awk -v steps="$2" -v losses="$(grep -o '"loss":[0-9.]*' "$1/metrics.jsonl" | cut -d: -f2 | tr '\n' ' ')" \
        'BEGIN { n = split(losses, loss, " "); exit !(n == steps && loss[n] < loss[1] / 2) }'
}

check() {  # check SUITE MIRROR [debootstrap's argument...]
    local suite=$1 mirror=$2 root=$1-user
    curl -sfo /dev/null -m 20 "$mirror/dists/$suite/Release" || { echo "$suite: skipped: $mirror cannot be reached"; return; }
    # Debian 12's debootstrap does not know noble by name; all of Ubuntu's suites since gutsy are made alike.
    local script=/usr/share/debootstrap/scripts/$suite
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/gutsy
    debootstrap --variant=minbase "${@:3}" "$suite" "$scratch/$suite" "$mirror" "$script" >"$scratch/log" 2>&1 ||
        { complain "$suite: debootstrap"; return; }
    took "$suite: debootstrap"
    cp /etc/resolv.conf "$scratch/$suite/etc/"
    # `_apt` may not own files in every sandbox; the archives are only read.
    echo 'APT::Sandbox::User "root";' >"$scratch/$suite/etc/apt/apt.conf.d/99root"
    get_package "$suite" || { complain "$suite: the package is not built"; return; }
    took "$suite: package"
    make_root "$root" "$suite"
    cp "$scratch/$suite.deb" "$scratch/$root/perigee.deb"
    inside "$root" apt-get update || complain "$suite: apt-get update"
    inside "$root" apt install --yes ./perigee.deb || { complain "$suite: it does not install"; return; }
    inside "$root" dpkg -V perigee || complain "$suite: files differ from the package's"
    took "$suite: install"
    : >"$scratch/log"
    inside "$root" perigee quickstart || { complain "$suite: quickstart ends with $?"; return; }
    took "$suite: quickstart"
    grep -q '^MoBA, last layer full' "$scratch/log" || complain "$suite: no held-out loss"
    [ "$(tail -n 1 "$scratch/log")" = runs/quickstart/report.html ] || complain "$suite: its last words: $(tail -n 1 "$scratch/log")"
    [ -s "$scratch/$root/runs/quickstart/report.html" ] || complain "$suite: no report"
    learned "$scratch/$root/runs/quickstart" 320 || complain "$suite: it did not learn"
    inside "$root" perigee quickstart --ranks 2 output_dir=runs/two train.steps=20 schedule.warmup_steps=4 || complain "$suite: two ranks end with $?"
    # What the package only recommends may be missing.
    inside "$root" apt-get remove --yes openmpi-bin || complain "$suite: removing openmpi-bin"
    inside "$root" perigee quickstart output_dir=runs/alone train.steps=20 schedule.warmup_steps=4 || complain "$suite: without mpirun it ends with $?"
    inside "$root" bash -c 'source /usr/share/bash-completion/completions/perigee' || complain "$suite: completion"
    proven=$((proven + 1))
    echo "$suite: $(sed -n 's/^PRETTY_NAME=//p' "$scratch/$root/etc/os-release")," \
        "$(dpkg-deb --show --showformat='${Package} ${Version} ${Architecture}' "$scratch/$suite.deb")," \
        "trained to $(tail -n 1 "$scratch/$root/runs/quickstart/metrics.jsonl")"
}

for suite in ${PERIGEE_DEB_SUITES:-bookworm noble}; do
    case $suite in
        bookworm) check bookworm http://deb.debian.org/debian ;;
        noble) check noble http://archive.ubuntu.com/ubuntu --no-check-gpg --components=main,universe ;;
        *) complain "no suite $suite" ;;
    esac
done
if [ "$proven" = 0 ] && [ "$failures" = 0 ]; then exit 77; fi
verdict
