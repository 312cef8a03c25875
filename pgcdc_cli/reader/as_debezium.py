"""A directory's changes as Debezium's events, if its files hold what events need."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from pathlib import Path

import numpy as np

from pgcdc_cli.changes.slice import MessageChange, Slice
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.directory.checkpoint import Checkpoint, read_checkpoint
from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.directory.file_names import CHECKPOINT, SCHEMAS
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.debezium_format import DebeziumFormat
from pgcdc_cli.reader.arrow_reader import ArrowRow, ArrowRows
from pgcdc_cli.reader.directory_reader import StoredChange, read_directory
from pgcdc_cli.reader.jsonl_reader import JsonLine, LinesAsChanges, split_object
from pgcdc_cli.reader.stored_file import read_schema, undecodable, unreadable

_CHANGES = 1024
"""Changes that are converted to events at once."""


def read_events(directory: Path, format_: DebeziumFormat, *, partial: bool) -> Iterator[str]:
    """Yield each event without its line feed; the format's layout must be "stream".

    Raises PgcdcError: USAGE if the directory doesn't hold enough, and what `read_directory` raises.
    """
    config = format_.config
    if config.provide_transaction_metadata:
        raise _refused(
            "provide.transaction.metadata needs the position of each BEGIN, which files don't have",
            hint="leave the property out, or stream with --format debezium",
        )
    checkpoint = read_checkpoint(Disk(), str(directory / CHECKPOINT))
    format_.restart(_database(directory, checkpoint, config), None)
    has_commits = checkpoint is not None and checkpoint.options.get("transactions") == "True"
    slices = _Slices(directory, config, has_commits=has_commits)
    changes = read_directory(directory, partial=partial)
    while some := list(islice(changes, _CHANGES)):
        encoded = format_.encode(slices.slice(some))
        for piece in encoded.pieces:
            yield from bytes(format_.frame([piece.data])).decode().removesuffix("\n").split("\n")


def _database(directory: Path, checkpoint: Checkpoint | None, config: ConnectorConfig) -> str:
    name = config.database_dbname if checkpoint is None else checkpoint.source.database
    if not name:
        raise _refused(
            f'"{directory}" has no {CHECKPOINT}, which names the database',
            hint="name it with -c database.dbname=NAME",
        )
    return name


def _refused(reason: str, *, hint: str) -> PgcdcError:
    return PgcdcError(ErrorKind.USAGE, f"could not show Debezium's events: {reason}", hint=hint)


class _Slices:
    """Makes slices of stored changes; `has_commits`: commits are stored, too."""

    def __init__(self, directory: Path, config: ConnectorConfig, *, has_commits: bool) -> None:
        self._directory = directory
        self._config = config
        self._has_commits = has_commits

    def slice(self, changes: Iterable[StoredChange]) -> Slice:
        lines = LinesAsChanges(self._config.includes_column)
        rows: dict[ArrowRows, list[tuple[int, int]]] = {}
        for index, change in enumerate(changes):
            if isinstance(change, ArrowRow):
                rows.setdefault(change.rows, []).append((change.number, index))
            else:
                self._add_line(lines, change, index)
        return _joined([lines.slice(), *(self._rows(of_one, chosen) for of_one, chosen in rows.items())])

    def _add_line(self, lines: LinesAsChanges, change: StoredChange, index: int) -> None:
        if not isinstance(change, JsonLine):
            raise _refused(
                f'"{self._directory}" holds neither JSON lines nor Arrow files',
                hint="show it without --format, or stream with --format debezium",
            )
        try:
            line = split_object(change.line)
            if self._wants_line(line):
                lines.add(line, self._table(change, line), index)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"{error!r} in {change.line[:200]}"
            raise undecodable(str(self._directory), reason) from error

    def _wants_line(self, line: dict[str, str]) -> bool:
        if "table" in line:
            return self._config.includes_table(json.loads(line["schema"]), json.loads(line["table"]))
        if line["op"] != '"M"':
            return True
        return self._wants_message(json.loads(line["prefix"]), json.loads(line["transactional"]))

    def _table(self, change: JsonLine, line: dict[str, str]) -> TableSchema | None:
        if "table" not in line:
            return None
        if line["op"] == '"R"':
            raise _snapshot_rows(change.table)
        if change.file.schema is not None:
            table = read_schema(change.file.schema)
        else:
            table = _only_version(self._directory, change.table)
        _check_facts(table)
        return table

    def _rows(self, rows: ArrowRows, chosen: list[tuple[int, int]]) -> Slice:
        table = rows.table
        if table is not None and not self._config.includes_table(table.schema, table.name):
            return Slice(None)
        numbers, index = np.array(chosen, np.int64).T
        found = rows.slice(numbers, index)
        for batch in found.changes:
            if batch.operation == "R":
                raise _snapshot_rows(batch.table.display)
        if table is not None:
            _check_facts(table)
        return replace(found, messages=tuple(filter(self._wants, found.messages)))

    def _wants(self, message: MessageChange) -> bool:
        return self._wants_message(message.prefix, message.transactional)

    def _wants_message(self, prefix: str, transactional: bool) -> bool:
        wanted = self._config.includes_message(prefix)
        if self._has_commits or transactional:
            return wanted
        if wanted:
            raise _refused(
                "the time of a message outside transactions is that of the last commit, which is missing",
                hint="stream with --layout stream --transactions, or leave messages out with "
                "-c message.prefix.exclude.list=...",
            )
        # Its LSN would be taken for the last commit's, since commits are not stored.
        return False


def _snapshot_rows(table: str) -> PgcdcError:
    return _refused(
        f'"{table}" has rows of a snapshot, and the files don\'t say which was its last',
        hint="stream with --format debezium",
    )


def _check_facts(table: TableSchema) -> None:
    if table.facts is None and any(column.not_null is not None for column in table.columns):
        raise _refused(
            f'the schema file of "{table.display}" has neither defaults nor a primary key',
            hint="an earlier version of pgcdc wrote it: stream with --format debezium",
        )


@cache
def _only_version(directory: Path, display: str) -> TableSchema:
    """Find the table of a line in a file of all tables; its lines don't name a version of their table."""
    tables = [read_schema(path) for path in sorted((directory / SCHEMAS).glob("*.json"))]
    versions = [table for table in tables if table.display == display]
    if not versions:
        raise unreadable(str(directory / SCHEMAS), f'no schema file for "{display}"')
    if len(versions) > 1:
        raise _refused(
            f'"{display}" changed, and a file of all tables doesn\'t say before which row',
            hint="stream with --layout table",
        )
    return versions[0]


def _joined(slices: list[Slice]) -> Slice:
    return Slice(
        None,
        tuple(chain.from_iterable(one.changes for one in slices)),
        tuple(chain.from_iterable(one.truncates for one in slices)),
        tuple(chain.from_iterable(one.messages for one in slices)),
        tuple(chain.from_iterable(one.boundaries for one in slices)),
    )
