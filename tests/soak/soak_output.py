"""The changes in pgcdc's files, in the order of history, for the comparison with the log."""

import base64
import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from soak_oracle import Change, Row

from pgcdc_cli.lsn import Lsn


def read_lines(path: Path) -> list[Change]:
    """Read a file of JSON lines."""
    return in_order(list(_from_file(path, "")))


def read_directory(path: Path) -> list[Change]:
    """Read a folder per table, of JSON lines or Arrow files."""
    tables = [
        in_order([change for file in files for change in _from_file(file, table)])
        for table, files in _tables(path).items()
    ]
    return sorted((change for changes in tables for change in changes), key=lambda change: change[:2])


def in_order(changes: list[Change]) -> list[Change]:
    """Check that the changes of one stream are in the order of history, each once."""
    places = [change[:2] for change in changes]
    for one, other in pairwise(places):
        assert one < other, f"{one} comes before {other}"
    return changes


def _tables(path: Path) -> dict[str | None, list[Path]]:
    """Tables, each with its finished files in order."""
    tables: dict[str | None, list[Path]] = {}
    for segment in (path / "manifest.jsonl").read_text().splitlines():
        for file in json.loads(segment)["files"]:
            tables.setdefault(file["table"], []).append(path / file["path"])
    return tables


def _from_file(path: Path, table: str) -> Iterator[Change]:
    if path.suffix == ".arrow":
        with pa.ipc.open_file(path) as reader:
            for row in reader.read_all().to_pylist():
                yield _from_arrow(row, table)
    else:
        with path.open() as lines:
            yield from (_from_line(json.loads(line)) for line in lines)


def _from_line(line: Row) -> Change:
    stamps = _position(line["commit_lsn"]), line["seq"], _position(line["lsn"]), line["xid"], line["op"]
    if line["op"] == "M":
        return Change(*stamps, None, detail={name: line[name] for name in ("prefix", "content")})
    details = {name: line[name] for name in ("cascade", "restart_identity") if name in line}
    return Change(
        *stamps,
        table=f"{line['schema']}.{line['table']}",
        new=line.get("new"),
        old=line.get("old"),
        unchanged=tuple(line.get("unchanged", ())),
        detail=details or None,
    )


def _position(text: str) -> int:
    return int(Lsn.parse(text))


def _from_arrow(row: Row, table: str) -> Change:
    stamps = (row[name] for name in ("_commit_lsn", "_seq", "_lsn", "_xid", "_op"))
    if row["_op"] == "M":
        return Change(*stamps, None, detail={"prefix": row["prefix"], "content": row["content"].decode()})
    assert not row["_unfit"]
    unchanged = tuple(row["_unchanged"] or ())
    columns = {name: _plain(value) for name, value in row.items() if name[0] != "_" and name not in unchanged}
    if row["_op"] not in "IU":
        assert not any(value is not None for value in columns.values())
    options = (
        {name: name in row["_truncate"] for name in ("cascade", "restart_identity")}
        if row["_op"] == "T"
        else None
    )
    old = row["_old"] and {name: _plain(value) for name, value in row["_old"].items()}
    new = columns if row["_op"] in "IU" else None
    return Change(*stamps, table, new, old, unchanged, options)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Decimal) else value


def as_arrow_tells(change: Change) -> Change:
    """A change as in Arrow files: if an old row is only a key, its other columns are null."""
    return change if change.old is None else change._replace(old=_padded(change.old, change))


def _padded(row: Row, change: Change) -> Row:
    return dict.fromkeys(change.columns) | row


PREFIX = "srv"
UNAVAILABLE = "__debezium_unavailable_value"
DEBEZIUM = {
    "topic.prefix": PREFIX,
    "snapshot.mode": "never",
    "skipped.operations": "none",
    "decimal.handling.mode": "string",
    "value.converter.replace.null.with.default": "false",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
}


class Event(NamedTuple):
    """A change as a Debezium event represents it."""

    op: str
    topic: str
    lsn: int
    xid: int
    before: Row | None
    after: Row | None


def read_events(path: Path) -> list[Event]:
    """Read a file of Debezium's records; a tombstone follows each delete that has a key."""
    with path.open() as lines:
        records = [json.loads(line) for line in lines]
    for one, other in pairwise(records):
        if other["value"] is None:
            assert (one["value"]["op"], one["key"]) == ("d", other["key"])
    return [_event(record["topic"], record["value"]) for record in records if record["value"] is not None]


def _event(topic: str, value: Row) -> Event:
    source, after = value["source"], value.get("after")
    if value["op"] == "m":
        sent = value["message"]
        after = {"prefix": sent["prefix"], "content": base64.b64decode(sent["content"]).decode()}
    return Event(value["op"], topic, source["lsn"], source["txId"], value.get("before"), after)


def as_debezium_tells(changes: Iterable[Change], keys: dict[str, str]) -> Iterator[Event]:
    """The connector's events of these changes; a changed key makes a delete and a create."""
    for change in changes:
        topic = f"{PREFIX}.{change.table or 'message'}"
        event = Event("cudtm"["IUDTM".index(change.op)], topic, change.lsn, change.xid, None, None)
        before = change.old and _padded(change.old, change)
        if change.op in "IU":
            event = event._replace(after=change.new | _long_values(change))
        if change.op == "M":
            event = event._replace(after=change.detail)
        if change.op == "U" and _moves(change, keys):
            yield event._replace(op="d", before=before, after=None)
            yield event._replace(op="c")
        else:
            yield event._replace(before=before)


def _long_values(change: Change) -> Row:
    """Unchanged values are taken from the old row, if that was sent completely."""
    return {name: (change.old or {}).get(name, UNAVAILABLE) for name in change.unchanged}


def _moves(change: Change, keys: dict[str, str]) -> bool:
    key = keys.get(change.table)
    return bool(key and change.old and change.old[key] != change.new[key])
