#!/usr/bin/env python3
"""Renders the tables of docs/benchmarks.md from the runs in docs/benchmarks/DATE-MACHINE.json.

    tools/bench/report.py            # writes them into the page
    tools/bench/report.py --check    # exit code 1 where the page shows something else

A file is {"machine": ..., "tables": {NAME: {"command": ..., "columns": [...], "rows": [[...], ...]}}}. A cell is a number,
or text where a figure has a unit or a range. The page says where a table goes:

    <!-- table NAME -->
    <!-- end -->
"""

import argparse
import json
import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGE = DOCS / "benchmarks.md"
PLACE = re.compile(r"<!-- table (\S+) -->\n.*?<!-- end -->", re.DOTALL)


def tables():
    found = {}
    for file in sorted((DOCS / "benchmarks").glob("*.json")):
        for name, table in json.loads(file.read_text())["tables"].items():
            if name in found:
                sys.exit(f"report: table {name} is in {found[name][0]} and in {file.name}")
            found[name] = (file.name, table)
    return found


def cell(value):
    return value if isinstance(value, str) else f"{value:,}"


def line(cells):
    return "| " + " | ".join(cells) + " |"


def markdown(file, table):
    lines = [line(table["columns"]), "|" + "---|" * len(table["columns"])]
    for row in table["rows"]:
        if len(row) != len(table["columns"]):
            sys.exit(f"report: {file}: {row} has {len(row)} cells, not {len(table['columns'])}")
        lines.append(line(map(cell, row)))
    command = f"`{table['command']}`, " if table.get("command") else ""
    lines += ["", f"{command}[{file}](benchmarks/{file})"]
    return "\n".join(lines)


def render(page, found):
    used = set()

    def place(match):
        name = match[1]
        if name not in found:
            sys.exit(f"report: no file has table {name}")
        used.add(name)
        return f"<!-- table {name} -->\n{markdown(*found[name])}\n<!-- end -->"

    result = PLACE.sub(place, page)
    if unused := found.keys() - used:
        sys.exit(f"report: the page has no place for {', '.join(sorted(unused))}")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args()
    page = PAGE.read_text()
    rendered = render(page, tables())
    if not options.check:
        PAGE.write_text(rendered)
    elif page != rendered:
        sys.exit("report: docs/benchmarks.md does not show the runs in docs/benchmarks; run tools/bench/report.py")


if __name__ == "__main__":
    main()
