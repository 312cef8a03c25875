"""Schema files: tables as they were when rows were decoded."""

import glob
import json
from functools import cache
from pathlib import Path

from pgcdc_cli.reader.record import damaged
from pgcdc_cli.sinks.paths import SCHEMAS
from pgcdc_cli.table import TableSchema


@cache
def find_schema(directory: Path, fingerprint: str) -> TableSchema | None:
    """Read `schemas/OID-FINGERPRINT.json`, if it is there; CHECKPOINT error if it isn't as written."""
    path = next((directory / SCHEMAS).glob(f"*-{glob.escape(fingerprint)}.json"), None)
    if path is None:
        return None
    schema = read_schema(path)
    if schema.fingerprint != fingerprint:
        raise damaged(str(path), "its content doesn't have the fingerprint that its name says")
    return schema


def read_schema(path: Path) -> TableSchema:
    """Read a schema file; CHECKPOINT error if it isn't as written."""
    try:
        return TableSchema.from_json(json.loads(path.read_bytes()))
    except OSError as error:
        raise damaged(str(path), error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(str(path), f"it is no schema file of pgcdc: {error!r}") from error
