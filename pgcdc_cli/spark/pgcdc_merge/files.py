"""Files on any file system that Hadoop knows, through Spark's own JVM."""

import re
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pyspark.sql import SparkSession

_BUFFER = 1 << 20
_GLOB = re.compile(r"([\\{}\[\]*?^])")


class Files:
    """Paths are strings: absolute, with a scheme, and not percent-encoded (`file:/tmp/a b`)."""

    def __init__(self, spark: SparkSession) -> None:
        # PySpark has no public way to Hadoop's file systems.
        self._jvm: Any = spark._jvm  # noqa: SLF001
        self._configuration: Any = spark._jsc.hadoopConfiguration()  # noqa: SLF001

    def _open(self, path: str) -> tuple[Any, Any]:
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        return place.getFileSystem(self._configuration), place

    def qualify(self, path: str) -> str:
        """Make a path absolute, on the default file system if it names none."""
        system, place = self._open(path)
        return str(system.makeQualified(place).toString()).rstrip("/")

    def exists(self, path: str) -> bool:
        """Say whether there is such a file or directory."""
        system, place = self._open(path)
        return bool(system.exists(place))

    def size(self, path: str) -> int | None:
        """Size in bytes; None if there is no such file."""
        local = _local(path)
        if local is not None:
            return local.stat().st_size if local.is_file() else None
        system, place = self._open(path)
        if not system.exists(place):
            return None
        status = system.getFileStatus(place)
        return None if status.isDirectory() else int(status.getLen())

    def read(self, path: str) -> bytes | None:
        """Read a small file; None if there is no such file."""
        if self.size(path) is None:
            return None
        system, place = self._open(path)
        stream = system.open(place)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, path: str, data: bytes) -> None:
        """Write a small file so that it is there whole or not at all."""
        local = _local(path)
        if local is not None:
            local.with_name(f"{local.name}.tmp").write_bytes(data)
            local.with_name(f"{local.name}.tmp").replace(local)
            return
        system, place = self._open(path)
        temporary = self._jvm.org.apache.hadoop.fs.Path(f"{path}.tmp")
        stream = system.create(temporary, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        system.delete(place, False)
        if not system.rename(temporary, place):
            raise OSError(f'could not rename "{path}.tmp"')

    def crc32(self, path: str) -> int:
        """Read a file through, in the JVM where it isn't local, and return its checksum."""
        local = _local(path)
        if local is not None:
            return _crc32(local)
        system, place = self._open(path)
        checksum = self._jvm.java.util.zip.CRC32()
        stream = self._jvm.java.util.zip.CheckedInputStream(system.open(place), checksum)
        nowhere = self._jvm.java.io.OutputStream.nullOutputStream()
        self._jvm.org.apache.hadoop.io.IOUtils.copyBytes(stream, nowhere, _BUFFER, True)
        return int(checksum.getValue())


def _local(path: str) -> Path | None:
    """Name a file of this machine, which Python reads a hundred times faster than through the JVM."""
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
    """Escape what Spark, unlike the file system, takes for a pattern."""
    return [_GLOB.sub(r"\\\1", path) for path in paths]


def folder_name(name: str) -> str:
    """Name a table's or schema's folder so that no two share one, on any file system and in any locale.

    All but `a-z 0-9 - _` stands percent-encoded, a leading underscore (hidden files; `_pgcdc`) too.
    """
    encoded = "".join(
        character if character in _PLAIN else "".join(f"%{byte:02X}" for byte in character.encode())
        for character in name
    )
    return "%5F" + encoded[1:] if encoded.startswith("_") else encoded


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
