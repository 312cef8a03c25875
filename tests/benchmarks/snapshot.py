"""How fast pgcdc reads a table before the stream, compared with `psql -c 'COPY ... TO STDOUT' >/dev/null`.

    python tests/benchmarks/snapshot.py [--rows 2000000] [--pairs 5] [--formats jsonl] [--workers 1,2]

Both read the same table of one server, in turn. The time is that of the whole life of each process, with its
start, the creation of the slot, and the fsyncs. With the table of five columns, whose types all of them know,
others are measured in the same way: `pg_dump -Fd -j 2`, and if they are installed ADBC's driver
(`adbc-driver-postgresql`) and `connectorx`, each of which writes an Arrow file.
"""

import argparse
import json
import statistics
import sys
import tempfile
import urllib.parse
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import psycopg
from stream import NO_SCHEMAS, SETTINGS, Usage, measure, rows_in, table_line
from stream_workloads import WORKLOADS

from pgcdc_cli.demo.embedded_server import EmbeddedServer

sys.path.append(str(Path(__file__).parents[1]))  # run as a script: the tools of all tests
from processes import stream_command

TABLES = {"narrow": WORKLOADS["one"], "types": WORKLOADS["types"]}

FORMATS = {
    "jsonl": ["--format", "jsonl"],
    "jsonl-zstd": ["--format", "jsonl", "--compression", "zstd"],
    "arrow": ["--format", "arrow"],
    "debezium": ["--format", "debezium", "-c", "topic.prefix=pg", *NO_SCHEMAS],
}
ADBC = """
import sys, pyarrow, adbc_driver_postgresql.dbapi
with adbc_driver_postgresql.dbapi.connect(sys.argv[1]) as connection, connection.cursor() as cursor:
    cursor.execute("SELECT * FROM bench")
    rows = cursor.fetch_record_batch()
    with pyarrow.OSFile(sys.argv[2], "wb") as file, pyarrow.ipc.new_file(file, rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)
"""
CONNECTORX = """
import sys, pyarrow, connectorx
table = connectorx.read_sql(sys.argv[1], "SELECT * FROM bench", return_type="arrow")
with pyarrow.OSFile(sys.argv[2], "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
    writer.write_table(table)
"""
HEAD = ("table", "format", "workers", "rows", "psql s", "pgcdc s", "wall", "cpu", "peak MB")


def fill(uri: str, table: str, rows: int) -> int:
    """Create the table again; return the number of its rows."""
    workload = TABLES[table]
    count = int(rows * workload.share)
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS bench")
        connection.execute(workload.table)
        connection.execute(workload.change.format(1, count))
        connection.execute("DROP PUBLICATION IF EXISTS pub")
        connection.execute("CREATE PUBLICATION pub FOR TABLE bench")
        connection.execute("VACUUM (ANALYZE, FREEZE) bench")
    return count


def theirs(server: EmbeddedServer, work: Path) -> Usage:
    psql = [str(server.bin / "psql"), "-X", "-d", server.uri(), "-o", "/dev/null"]
    return measure([*psql, "-c", "COPY bench TO STDOUT"], work / "log")


def ours(server: EmbeddedServer, form: str, workers: str, rows: int, work: Path) -> Usage:
    with tempfile.TemporaryDirectory(dir=work) as folder:
        out = Path(folder) / "out"
        how = ["--snapshot", "only", "--snapshot-workers", workers, "-D", out, *FORMATS[form]]
        command = stream_command(server.uri(), "bench", *how)
        used = measure(command, work / "log")
        assert rows_in(out) >= rows  # Debezium's losses are rows, too.
    with psycopg.connect(server.uri(), autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot('bench')")
    return used


def other(command: list[str], work: Path) -> Usage:
    with tempfile.TemporaryDirectory(dir=work) as folder:
        return measure([*command, str(Path(folder) / "out")], work / "log")


def others(server: EmbeddedServer) -> dict[str, list[str]]:
    """Other programs that read a table, if they are installed: command lines without the path to write to."""
    dump = [str(server.bin / "pg_dump"), "-d", server.uri(), "-t", "bench", "-a", "-Fd", "-j", "2", "-f"]
    found = {"pg_dump": dump}
    if find_spec("adbc_driver_postgresql"):
        found["adbc"] = [sys.executable, "-c", ADBC, server.uri()]
    if find_spec("connectorx"):
        host = urllib.parse.quote(str(server.socket_directory), safe="")
        found["connectorx"] = [sys.executable, "-c", CONNECTORX, f"postgresql://postgres@{host}/postgres"]
    return found


def compare(
    server: EmbeddedServer, names: tuple[str, str, str], rows: int, count: int, run: Callable[[Path], Usage]
) -> dict:
    table, form, workers = names
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        pairs = [(theirs(server, work), run(work)) for _ in range(count)]
    psql, pgcdc = (min((pair[i] for pair in pairs), key=lambda used: used.wall) for i in (0, 1))
    return {
        "table": table,
        "format": form,
        "workers": workers,
        "rows": rows,
        "wall_ratio": statistics.median(ours.wall / theirs.wall for theirs, ours in pairs),
        "cpu_ratio": statistics.median(ours.cpu / theirs.cpu for theirs, ours in pairs),
        "psql": asdict(psql),
        "pgcdc": asdict(pgcdc),
    }


def line(result: dict) -> str:
    psql, pgcdc = result["psql"], result["pgcdc"]
    numbers = [f"{psql['wall']:.2f}", f"{pgcdc['wall']:.2f}", f"{result['wall_ratio']:.2f}x"]
    numbers += [f"{result['cpu_ratio']:.2f}x", f"{pgcdc['peak_rss']:.0f}"]
    return table_line([result["table"], result["format"], result["workers"], f"{result['rows']:,}", *numbers])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedServer(Path(folder) / "server", settings=SETTINGS)
        try:
            print(table_line(HEAD))
            print(table_line(["---"] * len(HEAD)))
            for table in options.tables.split(","):
                rows = fill(server.uri(), table, options.rows)
                runs = {
                    (table, form, workers): partial(ours, server, form, workers, rows)
                    for form, workers in product(options.formats.split(","), options.workers.split(","))
                }
                if table == "narrow":
                    found = others(server)
                    runs |= {(table, name, "-"): partial(other, found[name]) for name in found}
                for names, run in runs.items():
                    results.append(compare(server, names, rows, options.pairs, run))
                    print(line(results[-1]), flush=True)
        finally:
            server.stop()
    if options.json:
        options.json.write_text(json.dumps({"results": results}, indent=1))


if __name__ == "__main__":
    main()
