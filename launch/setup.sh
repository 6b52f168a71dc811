#!/usr/bin/env bash
# Installs the packages Perigee is built from where they are missing (Debian 12, Ubuntu 24.04; root or sudo).
# launch/setup.sh [--developer] [PACKAGE...]   --developer adds what the tests and the checks need
set -euo pipefail

packages=(g++ cmake ninja-build libopenmpi-dev openmpi-bin libopenblas-openmp-dev libhdf5-dev libyaml-cpp-dev
    nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev zlib1g-dev libzstd-dev libssl-dev libpcre2-dev libonig-dev
    libsentencepiece-dev libutf8proc-dev libcpp-httplib-dev python3-jinja2)
for argument in "$@"; do
    case "$argument" in
        --developer) packages+=(git procps zstd libgtest-dev libgmock-dev libbenchmark-dev clang-format-14
            clang-16 libclang-rt-16-dev libomp-16-dev) ;;
        -*) echo "usage: $0 [--developer] [PACKAGE...]" >&2; exit 2 ;;
        *) packages+=("$argument") ;;
    esac
done

stop() {
    echo "setup: $1" >&2
    exit 1
}

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
    stop "no apt-get here: install the equivalents of these Debian packages: ${packages[*]}"

missing=()
for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=(env DEBIAN_FRONTEND=noninteractive)
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || stop "needs root or sudo to install: ${missing[*]}"
    as_root=(sudo "${as_root[@]}")
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT

echo "setup: installing ${missing[*]}"
"${as_root[@]}" apt-get update >"$log" 2>&1 || { cat "$log" >&2; stop "apt-get update failed"; }
"${as_root[@]}" apt-get install --yes --no-install-recommends "${missing[@]}" >"$log" 2>&1 && exit 0

tail -n 20 "$log" >&2
for package in "${missing[@]}"; do
    "${as_root[@]}" apt-get install --simulate --no-install-recommends "$package" >/dev/null 2>&1 ||
        stop "package $package cannot be installed"
done
stop "installing failed: ${missing[*]}"
