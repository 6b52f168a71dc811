#!/usr/bin/env python3
"""Long and short documents from unpacked packages, as JSONL parts compressed with zstd.

    tools/data/packages.sh ~/perigee_data
    python3 tools/data/corpus.py ~/perigee_data/unpacked -o ~/perigee_data/corpus

A folder of sources, or of a manual, is one long document: headers first, then the other files by size, so that what is
defined is used far away. Folders with less text, and a share of the others, give short documents, one a file. Held-out
areas and domains (sources.py) come first and go to files of their own: held_out_long, held_out_short, and other_* for
domains of which nothing is trained on. A file half of whose lines have been seen before is dropped, so that nothing
held out is trained on in another folder. Needs Python 3.9 and zstd.
"""
import argparse
import collections
import hashlib
import json
import os
import subprocess
import sys

import sources
import texts

LONG = 128 << 10  # bytes of a long document, at least
LONGEST = 8 << 20
SHORT_SHARE = 0.15  # of the folders that would be long
LEAST_LINE = 24  # characters of a line that tells copies
Document = collections.namedtuple("Document", "name domain text")


def chance(*key):
    """A number in [0, 1) that depends on the key alone."""
    return int.from_bytes(hashlib.sha256("\0".join(key).encode()).digest()[:6], "big") / 2**48


class Seen:
    """Lines of the files so far."""

    def __init__(self):
        self.lines = set()

    def is_copy(self, text):
        keys = {hash(line) for line in map(str.strip, text.split("\n")) if len(line) >= LEAST_LINE}
        copied = len(keys & self.lines)
        if keys and 2 * copied >= len(keys):
            return True
        self.lines |= keys
        return False


def areas_of(source, folder):
    """{area: [(name, text)]} of a package."""
    areas = collections.defaultdict(list)
    path = os.path.join(folder, source.package, source.root)
    if not os.path.exists(path):
        sys.exit(f"corpus.py: there is no {path}: packages.sh downloads it")
    for name, data in texts.files(path, source.suffixes):
        if path.endswith((".xz", ".gz")):
            name = name.split("/", 1)[-1]  # below the archive's own folder
        area = name if source.own_area else os.path.dirname(name)
        if source.areas and not sources.matches(source.areas, area):
            continue
        text = texts.text_of(name, data)
        if text is not None:
            areas[area].append((name, text))
    return areas


def documents_of(source, area, files, seen):
    """The documents of an area; long ones first."""
    order = sorted(files, key=lambda file: (not file[0].endswith(".h"), len(file[1]), file[0]))
    kept = [(name, text) for name, text in order if not seen.is_copy(text)]
    size = sum(len(text) for _, text in kept)
    named = f"{source.package}:{area}"
    if size < LONG or (not source.own_area and chance("short", named) < SHORT_SHARE):
        return [Document(f"{source.package}:{name}", source.domain, text) for name, text in kept]
    whole = "\n".join(text for _, text in kept)
    return [Document(named, source.domain, whole[at:at + LONGEST]) for at in range(0, len(whole), LONGEST)
            if len(whole) - at >= LONG]


def split(folder, packages):
    """Documents by part: held_out_long, held_out_short, train_long, train_short."""
    seen, parts, later = Seen(), collections.defaultdict(list), []

    def add(part, source, area, files):
        for document in documents_of(source, area, files, seen):
            parts[f"{part}_{'long' if len(document.text) >= LONG else 'short'}"].append(document)

    for source in sources.SOURCES:
        if packages and source.package not in packages:
            continue
        for area, files in sorted(areas_of(source, folder).items()):
            if sources.matches(source.held_out, area):
                add("held_out", source, area, files)
            else:
                later.append((source, area, files))
    for source, area, files in later:
        add("train", source, area, files)
    return parts


def others(folder, packages):
    """{domain: its documents, one a folder or file} of what nobody trains on."""
    parts = {}
    for source in sources.OTHERS:
        if packages and source.package not in packages:
            continue
        found = []
        for area, files in sorted(areas_of(source, folder).items()):
            found += documents_of(source, area, files, Seen())
        parts["other_" + source.package.split("-")[0]] = [d for d in found if len(d.text) >= LONG]
    return parts


def within(documents, most):
    """Documents in an order of chance, up to so many bytes of each domain: {domain: bytes}, where one is named."""
    left = dict(most)
    for document in sorted(documents, key=lambda d: chance("order", d.name, str(len(d.text)))):
        if document.domain in left:
            if left[document.domain] < len(document.text):
                continue
            left[document.domain] -= len(document.text)
        yield document


def write(documents, prefix, part_bytes, level, most_part):
    """PREFIX_000.jsonl.zst and so on, each from at most part_bytes of text; the sizes of the parts."""
    parts, writer, size = [], None, 0
    for document in documents:
        if writer is None or size + len(document.text) > part_bytes and size > 0:
            finish(writer, parts, most_part)
            parts.append(f"{prefix}_{len(parts):03}.jsonl.zst")
            writer = subprocess.Popen(["zstd", "-q", "-f", "-T0", f"-{level}", "--long=27", "-o", parts[-1]],
                                      stdin=subprocess.PIPE)
            size = 0
        writer.stdin.write((json.dumps(document._asdict(), ensure_ascii=False) + "\n").encode())
        size += len(document.text)
    finish(writer, parts, most_part)
    return parts


def finish(writer, parts, most_part):
    if writer is None:
        return
    writer.stdin.close()
    if writer.wait() != 0:
        sys.exit(f"corpus.py: zstd failed on {parts[-1]}")
    if os.path.getsize(parts[-1]) > most_part:
        sys.exit(f"corpus.py: {parts[-1]} has {os.path.getsize(parts[-1])} bytes, more than {most_part}: "
                 "choose a smaller --part-mib")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("unpacked", help="folder of packages.sh")
    parser.add_argument("-o", "--output", required=True, help="folder of the parts")
    parser.add_argument("--packages", nargs="+", default=[], help="only these; default: all that are known")
    parser.add_argument("--code-mib", type=float, default=90, help="source code of a training part, at most")
    parser.add_argument("--held-out-mib", type=float, default=36, help="text of a held-out part and domain, at most")
    parser.add_argument("--part-mib", type=float, default=200, help="text in one file")
    parser.add_argument("--level", type=int, default=19, help="of zstd")
    args = parser.parse_args()
    os.makedirs(args.output, exist_ok=True)
    parts = split(args.unpacked, args.packages)
    parts.update(others(args.unpacked, args.packages))
    for name in sorted(parts):
        most = args.code_mib if name.startswith("train") else args.held_out_mib / 3
        domains = ("code",) if name.startswith("train") else ("code", "manual", "prose")
        chosen = list(within(parts[name], {domain: most * 2**20 for domain in domains}))
        if not chosen:
            continue
        written = write(chosen, os.path.join(args.output, name), args.part_mib * 2**20, args.level, 55 << 20)
        sizes = collections.Counter()
        for document in chosen:
            sizes[document.domain] += len(document.text.encode())
        print(f"{name}: {len(chosen)} documents, " +
              ", ".join(f"{domain} {size / 2**20:.1f} MiB" for domain, size in sorted(sizes.items())) +
              f"; compressed {sum(map(os.path.getsize, written)) / 2**20:.1f} MiB in {len(written)} parts")


if __name__ == "__main__":
    main()
