"""The schema files of a directory: each version of each table, as it was decoded."""

from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.directory.open_files import Files
from pgcdc_cli.directory.paths import SCHEMAS
from pgcdc_cli.directory.strict_json import dump

FORMAT_VERSION = 1


def schema_path(table: TableSchema) -> str:
    """Name a table's schema file, relative to the directory."""
    return f"{SCHEMAS}/{table.oid}-{table.fingerprint}.json"


class SchemaFiles:
    """Places a file for every table noted, once a run."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._noted: dict[str, TableSchema] = {}
        self._placed: set[str] = set()

    def note(self, table: TableSchema) -> str:
        """Remember a table; returns the path that its schema file will have after `place`."""
        path = schema_path(table)
        if path not in self._placed:
            self._noted[path] = table
        return path

    def place(self) -> None:
        """Put the files of noted tables in place; their folder is noted as changed."""
        for path, table in self._noted.items():
            self._place(path, table)
        self._placed |= self._noted.keys()
        self._noted.clear()

    def _place(self, path: str, table: TableSchema) -> None:
        content = {"format_version": FORMAT_VERSION, "fingerprint": table.fingerprint, **table.to_json()}
        data = dump(content) + b"\n"
        self._files.make_folder(SCHEMAS)
        full = self._files.full(path)
        if self._files.stat(path) is None or self._files.disk.read(full) != data:
            self._files.disk.place(full, data)
