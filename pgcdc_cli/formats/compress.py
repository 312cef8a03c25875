"""Independent frames: files of them can be appended to, and cut off between two."""

from collections.abc import Sequence

import pyarrow as pa

from pgcdc_cli.formats.base import Data
from pgcdc_cli.formats.capabilities import Compression

SUFFIXES: dict[Compression, str] = {"none": "", "gzip": ".gz", "zstd": ".zst"}
_LEVELS = {"gzip": 6, "zstd": 3}


def join_bytes(data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
    """Join buffers; a single one stays as it is."""
    if len(data) == 1 and not isinstance(data[0], pa.RecordBatch):
        return data[0]
    return b"".join(memoryview(part) for part in data if not isinstance(part, pa.RecordBatch))


def compress(data: Sequence[Data], compression: Compression) -> bytes | memoryview | pa.Buffer:
    """Make one frame (a gzip member, a zstd frame) that holds all of `data`."""
    joined = join_bytes(data)
    if compression == "none":
        return joined
    return pa.Codec(compression, _LEVELS[compression]).compress(joined)
