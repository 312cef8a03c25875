"""The schema files of a directory: each version of each table, as it was decoded."""

import json
from typing import Any

from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.directory.disk import OpenFiles, fsync_each
from pgcdc_cli.directory.file_names import SCHEMAS, schema_path
from pgcdc_cli.directory.json_fields import dump

FORMAT_VERSION = 1


class SchemaFiles:
    """Writes a file for every table noted, once a run."""

    def __init__(self, files: OpenFiles) -> None:
        self._files = files
        self._noted: dict[str, TableSchema] = {}
        self._written: set[str] = set()

    def note(self, table: TableSchema) -> str:
        """Remember a table; returns the path that its schema file will have after `write`."""
        path = schema_path(table.oid, table.fingerprint)
        if path not in self._written:
            self._noted[path] = table
        return path

    def write(self) -> None:
        """Write the files of noted tables; their folder is noted as changed."""
        if self._noted:
            self._files.make_folder(SCHEMAS)
        fsync_each(lambda noted: self._write(*noted), list(self._noted.items()))
        self._written |= self._noted.keys()
        self._noted.clear()

    def _write(self, path: str, table: TableSchema) -> None:
        content = {"format_version": FORMAT_VERSION, "fingerprint": table.fingerprint, **table.to_json()}
        full, before = self._files.full(path), None
        if self._files.stat(path) is not None:
            before = self._files.disk.read(full)
            _remember(content, before)
        data = dump(content) + b"\n"
        if data != before:
            self._files.disk.replace(full, data)


def _remember(content: dict[str, Any], before: bytes) -> None:
    """Keep what a column's first rows have, which the server forgets: VACUUM FULL, DROP DEFAULT."""
    try:
        known = json.loads(before)["facts"]["columns"]
        columns = (content.get("facts") or {}).get("columns", {})
        for name in known.keys() & columns.keys():
            if known[name]["position"] == columns[name]["position"]:
                for fact in ("default", "missing", "type_default"):
                    if columns[name][fact] is None:
                        columns[name][fact] = known[name].get(fact)
    except (ValueError, KeyError, TypeError, AttributeError):
        # It is damaged, of an earlier version, or had no facts.
        return
