"""Files through Hadoop's file systems, whatever storage they are on."""

import re
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pyspark.sql import SparkSession

from .java_classes import java_class

_BUFFER = 1 << 20
_GLOB = re.compile(r"([\\{}\[\]*?^])")


class HadoopFiles:
    """Hadoop's file systems; paths are absolute, with a scheme, not percent-encoded (`file:/tmp/a b`)."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        # PySpark has no public access to Hadoop's file systems.
        self._configuration: Any = spark._jsc.hadoopConfiguration()  # noqa: SLF001

    def _class(self, name: str) -> Any:  # noqa: ANN401 - Java's
        return java_class(self._spark, name)

    def _open(self, path: str) -> tuple[Any, Any]:
        hadoop_path = self._class("org.apache.hadoop.fs.Path")(path)
        return hadoop_path.getFileSystem(self._configuration), hadoop_path

    def qualify(self, path: str) -> str:
        """Make a path absolute, on the default file system if it names none."""
        system, hadoop_path = self._open(path)
        return str(system.makeQualified(hadoop_path).toString()).rstrip("/")

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        system, hadoop_path = self._open(path)
        return bool(system.exists(hadoop_path))

    def size(self, path: str) -> int | None:
        """Return the size in bytes; None if there is no such file."""
        local = _local(path)
        if local is not None:
            return local.stat().st_size if local.is_file() else None
        system, hadoop_path = self._open(path)
        if not system.exists(hadoop_path):
            return None
        status = system.getFileStatus(hadoop_path)
        return None if status.isDirectory() else int(status.getLen())

    def read(self, path: str) -> bytes | None:
        """Read a small file; None if there is no such file."""
        if self.size(path) is None:
            return None
        system, hadoop_path = self._open(path)
        stream = system.open(hadoop_path)
        try:
            return bytes(self._class("org.apache.commons.io.IOUtils").toByteArray(stream))
        finally:
            stream.close()

    def write(self, path: str, data: bytes) -> None:
        """Write a small file: readers find the old content or the new one.

        Hadoop's rename replaces no file, so elsewhere than on the local disk they may find none for a moment.
        """
        local = _local(path)
        if local is not None:
            local.with_name(f"{local.name}.tmp").write_bytes(data)
            local.with_name(f"{local.name}.tmp").replace(local)
            return
        system, hadoop_path = self._open(path)
        temporary = self._class("org.apache.hadoop.fs.Path")(f"{path}.tmp")
        stream = system.create(temporary, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        system.delete(hadoop_path, False)
        if not system.rename(temporary, hadoop_path):
            raise OSError(f'could not rename "{path}.tmp"')

    def crc32(self, path: str) -> int:
        """Compute a file's CRC-32, inside the JVM unless the file is local."""
        local = _local(path)
        if local is not None:
            return _crc32(local)
        system, hadoop_path = self._open(path)
        checksum = self._class("java.util.zip.CRC32")()
        stream = self._class("java.util.zip.CheckedInputStream")(system.open(hadoop_path), checksum)
        nowhere = self._class("java.io.OutputStream").nullOutputStream()
        self._class("org.apache.hadoop.io.IOUtils").copyBytes(stream, nowhere, _BUFFER, True)
        return int(checksum.getValue())


def _local(path: str) -> Path | None:
    """Return the path of a local file, which Python reads a hundred times faster than through the JVM."""
    return Path(path.removeprefix("file:")) if path.startswith("file:/") else None


def _crc32(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while data := file.read(_BUFFER):
            checksum = zlib.crc32(data, checksum)
    return checksum


def join(directory: str, *names: str) -> str:
    """Append relative names to a path."""
    return "/".join([directory, *(str(PurePosixPath(name)) for name in names)])


def escaped(paths: Sequence[str]) -> list[str]:
    """Escape characters that Spark, unlike the file system, takes for a pattern."""
    return [_GLOB.sub(r"\\\1", path) for path in paths]
