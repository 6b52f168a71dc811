#!/usr/bin/env bash
# Builds a Debian package for this system (Debian 12 or Ubuntu 24.04): installs what the build needs, as launch/setup.sh
# does, and prints the package's path last. The package runs on any x86-64 processor, on CPUs only.
# launch/package.sh
set -euo pipefail
[ $# = 0 ] || { echo "usage: $0" >&2; exit 2; }
cd "$(dirname "$0")/.."
launch/setup.sh dpkg-dev file >&2
cmake --preset package >&2
cmake --build --preset package --target perigee >&2
(cd build/package && cpack) >&2
ls -t "$PWD"/build/package/perigee_*.deb | head -n 1
