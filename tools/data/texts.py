"""Texts of packages: files of a folder or a tar archive, HTML as plain text, and which files are no text worth reading.
Also the documents of the parts that corpus.py makes of them."""
import gzip
import html.parser
import json
import os
import subprocess
import tarfile
import zlib

MOST_BYTES = 8 << 20  # of a file
LEAST_BYTES = 512
MOST_DIGITS = 0.25  # of a table's characters
MOST_RATIO = 8  # to which tables are deflated at level 1; prose reaches 2.5, code 4


def documents(path):
    """Documents of a JSONL part, plain or zstd, as dictionaries, one at a time."""
    command = ["zstd", "-dc", "--long=27", path] if path.endswith(".zst") else ["cat", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
        try:
            yield from map(json.loads, reader.stdout)
        finally:
            reader.stdout.close()  # ends a reader that has more
    if reader.returncode:
        raise subprocess.CalledProcessError(reader.returncode, command)


def files(path, suffixes):
    """(name, bytes) of every file below a folder or in a tar archive whose name, without .gz, ends with a suffix."""

    def wanted(name):
        return (name[:-3] if name.endswith(".gz") else name).endswith(suffixes)

    def plain(name, data):
        return (name[:-3], gzip.decompress(data)) if name.endswith(".gz") else (name, data)

    if os.path.isdir(path):
        for folder, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(names):
                full = os.path.join(folder, name)
                if wanted(name) and os.path.isfile(full) and os.path.getsize(full) <= MOST_BYTES:
                    with open(full, "rb") as file:
                        yield plain(os.path.relpath(full, path), file.read())
        return
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            if member.isfile() and wanted(member.name) and member.size <= MOST_BYTES:
                yield plain(member.name, archive.extractfile(member).read())


class _Plain(html.parser.HTMLParser):
    SKIPPED = {"script", "style", "head", "nav", "svg"}
    BLOCKS = {"p", "div", "br", "li", "ul", "ol", "dl", "dt", "dd", "tr", "table", "pre", "blockquote", "section", "hr",
              "h1", "h2", "h3", "h4", "h5", "h6"}

    def __init__(self):
        super().__init__()
        self.parts, self.skipped, self.verbatim = [], 0, 0

    def handle_starttag(self, tag, attributes):
        self.skipped += tag in self.SKIPPED
        self.verbatim += tag == "pre"
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag):
        self.skipped -= tag in self.SKIPPED and self.skipped > 0
        self.verbatim -= tag == "pre" and self.verbatim > 0
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data):
        if self.skipped:
            return
        self.parts.append(data if self.verbatim else " ".join(data.split()) + " " if data.split() else " ")


def html_text(text):
    parser = _Plain()
    parser.feed(text)
    parser.close()
    lines = [line.rstrip() for line in "".join(parser.parts).split("\n")]
    kept = [line for i, line in enumerate(lines) if line or (i > 0 and lines[i - 1])]
    return "\n".join(kept).strip() + "\n"


def text_of(name, data):
    """The text of a file; None where it is not UTF-8, too short, or a table."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if name.endswith(".html"):
        text = html_text(text)
    return None if "\0" in text or is_table(text) else text


def is_table(text):
    """Generated tables (registers, fonts, test vectors), and what is too short to say anything."""
    data = text.encode()
    if len(data) < LEAST_BYTES:
        return True
    visible = data.translate(None, b" \t\r\n")
    if len(visible) - len(visible.translate(None, b"0123456789")) > MOST_DIGITS * len(visible):
        return True
    return len(data) > MOST_RATIO * len(zlib.compress(data, 1))
