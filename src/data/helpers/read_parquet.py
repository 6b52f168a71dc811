"""Reads Parquet by pyarrow: read_parquet.py text|records PATH COLUMN SKIP.

text: the texts of one column (a path with dots of nested ones is not taken), record batch by record batch: int64 number of
rows, int64[rows + 1] offsets, the bytes. records: the same, each text a row as JSON, see as_json().
The first bytes are a line of JSON: what went well, or why nothing follows. Numbers are little endian.
"""
import array
import json
import math
import sys

sys.path[:] = [path for path in sys.path if path]  # no module of the working folder

try:
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet
except ImportError:
    pyarrow = None

ROWS = 4096


def say(value):
    sys.stdout.buffer.write(json.dumps(value).encode() + b"\n")
    sys.stdout.buffer.flush()


def as_json(value):
    """Without what is null, but for the content of a message, and with numbers that JSON lacks as text."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()
                if item is not None or (key == "content" and value.get("role") is not None)}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write_batch(rows, offsets, data):
    sys.stdout.buffer.write(rows.to_bytes(8, "little", signed=True))
    sys.stdout.buffer.write(offsets)
    sys.stdout.buffer.write(data)


def write_texts(column):
    column = pyarrow.compute.fill_null(column.cast(pyarrow.large_string()), "")
    _, offsets, data = column.buffers()
    rows = len(column)
    if rows == 0:
        return
    view = memoryview(offsets).cast("B").cast("q")[column.offset:column.offset + rows + 1]
    first, last = view[0], view[-1]
    shifted = array.array("q", (x - first for x in view)) if first else view
    write_batch(rows, shifted, memoryview(data)[first:last] if data is not None else b"")


def write_records(batch):
    rows = [json.dumps(as_json(row), ensure_ascii=False, default=str).encode("utf-8", "replace") for row in batch.to_pylist()]
    offsets = array.array("q", [0])
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    write_batch(len(rows), offsets, b"".join(rows))


def batches(file, columns, skip):
    """Batches from row `skip` on; row groups before it are not read."""
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if skip >= rows:
            skip -= rows
            continue
        for batch in file.iter_batches(batch_size=ROWS, row_groups=[group], columns=columns):
            if skip < batch.num_rows:
                yield batch.slice(skip)
            skip = max(0, skip - batch.num_rows)


def main():
    kind, path, column, skip = sys.argv[1:]
    if pyarrow is None:
        return say({"missing": "pyarrow"})
    try:
        file = pyarrow.parquet.ParquetFile(path)
        names = file.schema_arrow.names
        if kind == "text":
            if column not in names:
                return say({"error": f"no column {column!r}; there are {', '.join(names)}"})
            names_of_text = "is_string", "is_large_string", "is_string_view"  # the last is not in every release
            is_text = [getattr(pyarrow.types, name) for name in names_of_text if hasattr(pyarrow.types, name)]
            found = file.schema_arrow.field(column).type
            if pyarrow.types.is_dictionary(found):
                found = found.value_type
            if not any(test(found) for test in is_text):
                return say({"error": f"column {column!r} is {found}, where text is expected"})
    except (pyarrow.ArrowException, OSError) as error:
        return say({"error": str(error)})
    say({"rows": file.metadata.num_rows})
    try:
        for batch in batches(file, [column] if kind == "text" else None, int(skip)):
            write_texts(batch.column(0)) if kind == "text" else write_records(batch)
        sys.stdout.buffer.write((0).to_bytes(8, "little"))
    except (pyarrow.ArrowException, OSError) as error:
        message = str(error).encode("utf-8", "replace")
        sys.stdout.buffer.write((-1).to_bytes(8, "little", signed=True) + len(message).to_bytes(8, "little") + message)
    sys.stdout.buffer.flush()


main()
