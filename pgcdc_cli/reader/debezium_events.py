"""A directory's changes as Debezium's events, as far as its files tell what these need."""

import json
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from pgcdc_cli.changes.slice import Slice
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.directory.checkpoint import Checkpoint, read_checkpoint
from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.directory.file_names import CHECKPOINT, SCHEMAS
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.format import DebeziumFormat
from pgcdc_cli.reader.directory_reader import read_directory
from pgcdc_cli.reader.jsonl_reader import Lines, members
from pgcdc_cli.reader.stored_file import Record, TableFilter, damaged, read_schema, undecodable

_LINES = 1024
"""Lines that are turned into events at once."""


def read_events(directory: Path, encoding: DebeziumFormat, *, partial: bool) -> Iterator[str]:
    """Give each event without its line break; the format's layout must be "stream".

    Raises USAGE where the directory doesn't hold enough, and what `read_directory` raises.
    """
    config = encoding.config
    if config.provide_transaction_metadata:
        raise _refused(
            "provide.transaction.metadata needs the place of each begin, which files don't hold",
            hint="leave the property out, or stream with --format debezium",
        )
    checkpoint = read_checkpoint(Disk(), str(directory / CHECKPOINT))
    encoding.restart(_database(directory, checkpoint, config), None)
    marks = checkpoint is not None and checkpoint.options.get("transactions") == "True"
    records = read_directory(directory, TableFilter(()), partial=partial)
    source = _Source(directory, config, marks=marks)
    while chunk := list(islice(records, _LINES)):
        encoded = encoding.encode(source.slice(chunk))
        for piece in encoded.pieces:
            yield from bytes(encoding.frame([piece.data])).decode().removesuffix("\n").split("\n")


def _database(directory: Path, checkpoint: Checkpoint | None, config: ConnectorConfig) -> str:
    name = config.database_dbname if checkpoint is None else checkpoint.source.database
    if not name:
        raise _refused(
            f'"{directory}" has no {CHECKPOINT}, which tells the database',
            hint="name it with -c database.dbname=NAME",
        )
    return name


def _refused(reason: str, *, hint: str) -> PgcdcError:
    return PgcdcError(ErrorKind.USAGE, f"could not show Debezium's events: {reason}", hint=hint)


class _Source:
    """What lines are of: tables, and transactions if their ends were written (`marks`)."""

    def __init__(self, directory: Path, config: ConnectorConfig, *, marks: bool) -> None:
        self._directory = directory
        self._config = config
        self._marks = marks

    def slice(self, records: Iterable[Record]) -> Slice:
        lines = Lines(self._config.includes_column)
        for record in records:
            self._add(lines, record)
        return lines.slice()

    def _add(self, lines: Lines, record: Record) -> None:
        try:
            line = members(record.line)
            if self._wanted(line):
                lines.add(line, self._table(record, line), exact=record.exact)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"{error!r} in {record.line[:200]}"
            raise undecodable(str(self._directory), reason) from error

    def _wanted(self, line: dict[str, str]) -> bool:
        if "table" in line:
            return self._config.includes_table(json.loads(line["schema"]), json.loads(line["table"]))
        if line["op"] != '"M"':
            return True
        wanted = self._config.includes_message(json.loads(line["prefix"]))
        if self._marks or json.loads(line["transactional"]):
            return wanted
        if wanted:
            raise _refused(
                "the time of a message outside of transactions is that of the last commit, which isn't there",
                hint="stream with --layout stream --transactions, or leave messages out with "
                "-c message.prefix.exclude.list=...",
            )
        # Not even as a place in the stream: without the commits, that would be taken for the last of them.
        return False

    def _table(self, record: Record, line: dict[str, str]) -> TableSchema | None:
        if "table" not in line:
            return None
        if line["op"] == '"R"':
            raise _refused(
                f'"{record.table}" has rows of a snapshot, and which was its last is not in the files',
                hint="stream with --format debezium",
            )
        if record.schema is not None:
            table = _schema_file(self._directory / record.schema)
        else:
            table = _only_version(self._directory, record.table)
        if table.facts is None and any(column.not_null is not None for column in table.columns):
            raise _refused(
                f'the schema file of "{record.table}" tells no defaults and no primary key',
                hint="an earlier version of pgcdc wrote it: stream with --format debezium",
            )
        return table


@cache
def _schema_file(path: Path) -> TableSchema:
    return read_schema(path)


@cache
def _only_version(directory: Path, display: str) -> TableSchema:
    """Find the table of a file that holds all tables, and doesn't tell which version of them a row is of."""
    tables = [_schema_file(path) for path in sorted((directory / SCHEMAS).glob("*.json"))]
    versions = [table for table in tables if table.display == display]
    if not versions:
        raise damaged(str(directory / SCHEMAS), f'no schema file for "{display}"')
    if len(versions) > 1:
        raise _refused(
            f'"{display}" changed, and a file of all tables doesn\'t tell before which row',
            hint="stream with --layout table",
        )
    return versions[0]
