"""How rate and memory change as rows, tables or columns grow, compared with pg_recvlogical on the same log.

    python tests/benchmarks/growth.py [--rows 10000,1000000] [--tables 1,1000] [--columns 1,1600]

With `--rows` the rows of one transaction grow. With `--tables` and `--columns` the number of values stays the
same (`--values`), divided among more tables, or among fewer rows of more columns. Everything is measured as
by stream.py, over TCP; `--json FILE` keeps it.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from stream import (
    PEERS,
    Pairing,
    compare,
    listen,
    machine,
    replace,
    running,
    table_line,
    uri,
    write_log,
)
from stream_workloads import WORKLOADS, Workload

AXES = ("rows", "tables", "columns")
SIZES = {
    "rows": "10000,100000,1000000,10000000",
    "tables": "1,10,100,1000,10000",
    "columns": "1,10,100,400,1600",
}
ROWS_A_TRANSACTION = 1000
MAKE_TABLES = """DO $$ BEGIN FOR i IN 0 .. {last} LOOP
    EXECUTE format('CREATE TABLE bench_%s (id bigint PRIMARY KEY, b text)', i);
    IF i % 1000 = 999 THEN COMMIT; END IF; END LOOP; END $$"""
IN_TURN = """DO $$ BEGIN FOR g IN {{}} .. {{}} LOOP
    EXECUTE format('INSERT INTO bench_%s VALUES ($1, $2)', g % {tables}) USING g, 'row ' || g;
    END LOOP; END $$"""


def tables(number: int) -> Workload:
    """Insert into so many tables in turn."""
    make, insert = MAKE_TABLES.format(last=number - 1), IN_TURN.format(tables=number)
    return Workload(f"{number} tables in turn", make, insert, ROWS_A_TRANSACTION)


def columns(number: int) -> Workload:
    """Insert rows of so many columns in one transaction; as int, the most columns of a table fit a page."""
    names = [f"c{place}" for place in range(1, number)]
    declared = "".join(f", {name} int" for name in names)
    values = "".join(f", (g + {place}) % 10000" for place in range(1, number))
    insert = f"INSERT INTO bench SELECT g{values} FROM generate_series({{}}, {{}}) g"
    return Workload(f"{number} columns", f"CREATE TABLE bench (id int PRIMARY KEY{declared})", insert, 0)


def points(options: argparse.Namespace) -> Iterator[tuple[str, int, Workload, int]]:
    """Yield axis, size, workload, and the number of its rows."""
    for axis in AXES:
        for size in map(int, filter(None, getattr(options, axis).split(","))):
            if axis == "rows":
                yield axis, size, WORKLOADS["one"], size
            elif axis == "tables":
                yield axis, size, tables(size), options.values // 2
            else:
                yield axis, size, columns(size), options.values // size


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for axis in AXES:
        parser.add_argument(f"--{axis}", default=SIZES[axis], help=f"sizes ({SIZES[axis]}); none: empty")
    parser.add_argument("--values", type=int, default=4_000_000, help="in all, where tables or columns grow")
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--formats", default="jsonl")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--directory", type=Path, help="where servers and output go (a temporary directory)")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    results = []
    with tempfile.TemporaryDirectory(prefix="pgcdc-growth-", dir=options.directory) as directory:
        work = Path(directory, "output")
        work.mkdir()
        with running(PEERS["pgoutput"], Path(directory, "data")) as server:
            facts = machine(server)
            uris = partial(uri, server, port=listen(server))
            print(table_line(("along", "size", "format", "wall ratio", "CPU ratio", "rows/s", "RSS MB")))
            for axis, size, workload, rows in points(options):
                name = f"{axis}_{size}"
                log = write_log(uris, name, workload, rows)
                log = replace(log, connection="tcp", uri=uris(name, "tcp"))
                for format_ in options.formats.split(","):
                    pairing = Pairing(format_, PEERS["pgoutput"], server.bin / "pg_recvlogical", work)
                    result = {"axis": axis, "size": size, **compare(pairing, log, options.pairs)}
                    results.append(result)
                    figures = [f"{result[key]:.2f}" for key in ("wall_ratio", "cpu_ratio")]
                    figures += [f"{result['rows_a_second']:,.0f}", f"{result['peak_rss']:.0f}"]
                    print(table_line([axis, f"{size:,}", format_, *figures]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "growth": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
