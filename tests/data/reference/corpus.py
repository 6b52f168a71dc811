"""At least 20 MB of mixed text from Debian packages and from Unicode's ranges: a list of documents, as bytes.

English and HTML (git-doc), Chinese (manpages-zh), Arabic (words of hunspell-ar), code (Python's library), emoji and all
assigned characters, white space and digits, special tokens' names, and broken UTF-8. The same for the same packages.
"""

import gzip
import pathlib
import random
import subprocess
import sysconfig
import unicodedata

PACKAGES = ["git-doc", "manpages-zh", "hunspell-ar"]
NAMES = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<think>", "<mask>", " <mask>\n", "WORD", "a WORD ",
         "cafe\u0301", "caf\u00e9", "<|im_", "<|endoftext", "<s>", "</s>", "<unk>", "<0x0A>", "\u2581"]


def fetch(folder: pathlib.Path) -> pathlib.Path:
    root = folder / "packages"
    if not root.exists():
        unpacked = folder / "packages.tmp"
        subprocess.run(["rm", "-rf", unpacked], check=True)
        unpacked.mkdir(parents=True)
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=unpacked, check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        for package in unpacked.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, unpacked], check=True)
        unpacked.rename(root)
    return root


def files(folder, pattern, limit):
    taken = 0
    for path in sorted(pathlib.Path(folder).rglob(pattern)):
        if not path.is_file() or path.is_symlink() or taken >= limit:
            continue
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        taken += len(data)
        yield from (data[i:i + 100_000] for i in range(0, len(data), 100_000))  # may cut a character: broken UTF-8


def assigned():
    return [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]


def synthetic(random, words, characters):
    """Documents without end: what real text has too little of."""
    emoji = [chr(c) for a, b in ((0x1F300, 0x1F650), (0x1F680, 0x1F700), (0x1F900, 0x1FA00), (0x2600, 0x27C0))
             for c in range(a, b)] + ["\u200d", "\ufe0f", "\U0001f3fd", "\U0001f1e6", "\U0001f1fa"]
    marks = ["\u0301", "\u0308", "\u0323", "\u0327", "\u0651", "\u064e", "\u0e31", "\u1100", "\u1161", "\u11a8", "\u0344"]
    spaces = [" ", "  ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u3000", "\u2003", "\u180e", "\u200b", "\u0085", "\u2028", "\x0b"]
    contractions = ["'s", "'S", "'LL", "'re", "'Ve", "'\u017f", "'d", "'m", "'t", "\u2019s"]
    kinds = [
        lambda: random.choice(words),
        lambda: " " + random.choice(words),
        lambda: "".join(random.choices(emoji, k=random.randint(1, 4))),
        lambda: random.choice(spaces) * random.randint(1, 2 ** random.randint(0, 6)),
        lambda: "".join(random.choices("0123456789\u0663\u0e53\u2167\u00bd", k=random.randint(1, 9))),
        lambda: random.choice("aeounACZ\u00c5\u0915") + "".join(random.choices(marks, k=random.randint(1, 3))),
        lambda: random.choice("It we don they") + random.choice(contractions),
        lambda: "".join(random.choices(characters, k=random.randint(1, 5))),
        lambda: "".join(random.choices("!?.,;:-_()[]{}<>/\\|@#$%^&*+=~`'\"", k=random.randint(1, 6))),
        lambda: random.choice(NAMES),
        lambda: random.choice("ax=-\u4e2d") * random.randint(1, 2 ** random.randint(0, 11)),
    ]
    while True:
        yield "".join(random.choice(kinds)() for _ in range(random.randint(1, 3000))).encode()


def broken(random, document):
    damaged = bytearray(document)
    for _ in range(max(1, len(damaged) // 50)):
        at = random.randrange(len(damaged))
        action = random.randrange(3)
        if action == 0:
            damaged[at] = random.randrange(256)
        elif action == 1:
            del damaged[at:at + random.randint(1, 3)]
            damaged = damaged or bytearray(b"x")
        else:
            damaged[at:at] = random.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"])
    # Damage makes characters of Unicode 15 and later, which the reference's tables know and PCRE2 10.42's do not.
    text = damaged.decode(errors="surrogateescape")
    return "".join(c for c in text if unicodedata.category(c) != "Cn").encode(errors="surrogateescape")


def take(documents, megabytes):
    size, taken = 0, []
    for document in documents:
        if size >= megabytes * 1e6:
            break
        size += len(document)
        taken.append(document)
    return taken


def build(folder: pathlib.Path, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    root = fetch(folder)
    arabic = [line.split("/")[0] for line in (root / "usr/share/hunspell/ar.dic").read_text(errors="replace").split("\n")[1:]]
    characters = assigned()
    english = list(files(root / "usr/share/doc/git-doc", "*.txt", 3e6)) + list(files(root / "usr/share/doc/git-doc", "*.html", 2e6))
    chinese = list(files(root / "usr/share/man/zh_CN", "*.gz", 4e6))
    code = list(files(sysconfig.get_paths()["stdlib"], "*.py", 4e6))
    sentences = [" ".join(rng.choices(arabic, k=400)).encode() for _ in range(900)]
    words = " ".join(english[0].decode(errors="replace").split()).split() + arabic[:20000]
    # Every character between letters, alone, twice and before a digit.
    sweep = ["".join(f" x{c}y {c}{c}1 {c}" for c in characters[i:i + 500]).encode() for i in range(0, len(characters), 500)]
    mixed = take(synthetic(rng, words, characters), 5)
    documents = english + chinese + code + sentences + sweep + mixed
    documents += [broken(rng, document) for document in take(rng.sample(documents, len(documents)), 2)]
    documents += [b"", b" ", b"\n", b"\xff", b"a", "\u00e9".encode(), b" " * 5000, b"\xe2\x82"]
    rng.shuffle(documents)
    return documents
