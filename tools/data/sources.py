"""What corpus.py takes from which package, and what it holds out.

An area is a folder of a package, named by its path there. Held-out areas and whole held-out domains are never trained
on; they are named here, so that every corpus made of these packages holds out the same texts.
"""
import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Source:
    package: str
    domain: str  # "code", "manual" or "prose"
    root: str  # below the unpacked package; a tar archive, or a folder
    suffixes: tuple
    areas: str = ""  # pattern that an area's path must begin with; empty: all
    held_out: str = ""  # pattern of the areas that are held out
    own_area: bool = False  # every file is an area of its own: chapters of a book


# Areas of the kernel that people write by hand; drivers are mostly tables of registers.
KERNEL = r"(block|certs|crypto|fs|init|io_uring|ipc|kernel|lib|mm|net|security|sound|virt|drivers/(base|block|char|" \
    r"clk|cpufreq|dma|gpu/drm/(i915|ttm|scheduler)|hid|i2c|input|md|mmc|mtd|net|nvme|pci|scsi|spi|tty|usb|vhost))(/|$)"

SOURCES = (
    Source("linux-source-6.1", "code", "usr/src/linux-source-6.1.tar.xz", (".h", ".c"), KERNEL,
           r"(fs/(xfs|btrfs)|mm|net/(sctp|sched)|drivers/(nvme|usb/host)|sound/core|crypto)(/|$)"),
    Source("linux-doc-6.1", "manual", "usr/share/doc/linux-doc-6.1/Documentation", (".rst", ".txt"), "",
           r"(filesystems|networking|vm|mm|crypto|sound)(/|$)"),
    Source("python3.11-doc", "manual", "usr/share/doc/python3.11/html/_sources", (".txt",), "", r"(howto|extending)(/|$)"),
    Source("git-doc", "manual", "usr/share/doc/git", (".txt",)),
    Source("postgresql-doc-15", "manual", "usr/share/doc/postgresql-doc-15/html", (".html",)),
    Source("debian-policy", "manual", "usr/share/doc/debian-policy", (".txt",), "", r"."),
    Source("developers-reference", "manual", "usr/share/developers-reference", (".html",)),
    Source("anarchism", "prose", "usr/share/doc/anarchism/html", (".html",), "", r"(secB|secH|append1)", own_area=True),
)

# Domains that nobody trains on.
OTHERS = (
    Source("gcc-12-source", "code", "usr/src/gcc-12/gcc-12.2.0-dfsg.tar.xz", (".h", ".cc", ".c"),
           r"(gcc|libcpp|libstdc\+\+-v3/include)(/|$)"),
    Source("bible-kjv-text", "prose", "", ("bible.txt",)),
)


def matches(pattern, area):
    return bool(pattern) and re.match(pattern, area) is not None
