"""The schema files of a directory: each version of each table, as it was decoded."""

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
        data = dump(content) + b"\n"
        full = self._files.full(path)
        if self._files.stat(path) is None or self._files.disk.read(full) != data:
            self._files.disk.replace(full, data)
