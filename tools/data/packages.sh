#!/usr/bin/env bash
# Texts for the studies: downloads packages of Debian 12 into a folder and unpacks them there. Safe to run again.
#   tools/data/packages.sh ~/perigee_data [package...]
# Without names: what corpus.py knows. About 450 MB to download, 800 MB unpacked; nothing is installed.
set -euo pipefail
folder=${1:?usage: packages.sh FOLDER [package...]}
shift
if [ $# = 0 ]; then
    set -- anarchism bible-kjv bible-kjv-text debian-policy developers-reference gcc-12-source git-doc linux-doc-6.1 \
        linux-source-6.1 postgresql-doc-15 python3.11-doc
fi
mkdir -p "$folder/packages" "$folder/unpacked"
cd "$folder/packages"
for package in "$@"; do
    to=$folder/unpacked/$package
    [ -d "$to" ] && continue
    compgen -G "${package}_*.deb" >/dev/null || apt-get download "$package" || {
        echo "packages.sh: apt-get could not download $package; is it in the lists (apt-get update)?" >&2
        exit 1
    }
    rm -rf "$to.tmp"
    dpkg-deb -x "$(ls "${package}"_*.deb | tail -1)" "$to.tmp"
    mv "$to.tmp" "$to"
done
text=$folder/unpacked/bible-kjv-text  # in a format of its own, which its reader prints
if [ -d "$text" ] && [ ! -e "$text/bible.txt" ]; then
    "$folder/unpacked/bible-kjv/usr/bin/bible" -p "$text/usr/lib" gen1:1-rev22:21 </dev/null >"$text/bible.txt.tmp"
    mv "$text/bible.txt.tmp" "$text/bible.txt"
fi
ls "$folder/unpacked"
