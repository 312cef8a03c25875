"""The table formats by their names on the command line."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from . import delta, iceberg
from .delta import DeltaLake
from .iceberg import IcebergLake
from .lake import CONTROL, Lake
from .merge_errors import MergeError
from .segments import Files, join


@dataclass(frozen=True)
class TableFormat:
    """What a format needs of Spark, and how to tell that a warehouse is of it (`trace`: a folder in it)."""

    title: str
    package: str
    module: ModuleType
    trace: str

    @property
    def extensions(self) -> Mapping[str, str]:
        """Settings that are needed from the beginning of the first session."""
        return dict(self.module.EXTENSIONS)


FORMATS = {
    "delta": TableFormat("Delta", "io.delta:delta-spark_4.1_2.13:4.4.0", delta, "_delta_log"),
    "iceberg": TableFormat(
        "Iceberg", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", iceberg, "control"
    ),
}


def open_lake(name: str, files: Files, warehouse: str, catalog: str | None) -> Lake:
    """Make the lake of a format; a MergeError if the warehouse is another's."""
    for other, found in FORMATS.items():
        if other != name and files.exists(join(warehouse, CONTROL, found.trace)):
            raise MergeError(
                f'could not merge into "{warehouse}": its tables are {found.title}\'s',
                f"add --format {other}, or merge into a new warehouse",
            )
    return IcebergLake(warehouse, catalog) if name == "iceberg" else DeltaLake(warehouse, catalog)
