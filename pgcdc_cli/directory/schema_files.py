"""The schema files of a directory: each has one version of a table, as it was decoded."""

import json
from typing import Any

from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.directory.disk import OpenFiles, fsync_each
from pgcdc_cli.directory.file_names import SCHEMAS, schema_path
from pgcdc_cli.directory.json_fields import dump

_FORMAT_VERSION = 1


class SchemaFiles:
    """Writes the schema files of noted tables, each once in a run."""

    def __init__(self, files: OpenFiles) -> None:
        self._files = files
        self._noted: dict[str, TableSchema] = {}
        self._written: set[str] = set()

    def note(self, table: TableSchema) -> str:
        """Note a table to be written, and return the path of its schema file."""
        path = schema_path(table.oid, table.fingerprint)
        if path not in self._written:
            self._noted[path] = table
        return path

    def write(self) -> None:
        """Write and fsync the files of noted tables; their folder is noted as changed."""
        if self._noted:
            self._files.make_folder(SCHEMAS)
        fsync_each(lambda noted: self._write(*noted), list(self._noted.items()))
        self._written |= self._noted.keys()
        self._noted.clear()

    def _write(self, path: str, table: TableSchema) -> None:
        content = {
            "format_version": _FORMAT_VERSION,
            "fingerprint": table.fingerprint,
            **table.to_json(),
        }
        full, before = self._files.full(path), None
        if self._files.stat(path) is not None:
            before = self._files.disk.read(full)
            _remember(content, before)
        data = dump(content) + b"\n"
        if data != before:
            self._files.disk.replace(full, data)


def _remember(content: dict[str, Any], before: bytes) -> None:
    """Keep defaults of columns that the server has forgotten since, after VACUUM FULL or DROP DEFAULT.

    The merge needs them for rows that are older than the column.
    """
    try:
        known = json.loads(before)["facts"]["columns"]
        columns = (content.get("facts") or {}).get("columns", {})
        for name in known.keys() & columns.keys():
            if known[name]["position"] == columns[name]["position"]:
                for fact in ("default", "missing", "type_default"):
                    if columns[name][fact] is None:
                        columns[name][fact] = known[name].get(fact)
    except (ValueError, KeyError, TypeError, AttributeError):
        # The earlier file is damaged, of an earlier version, or without facts.
        return
