"""Memory: a run chooses Arrow's allocator, unless the user does."""

import os
import subprocess
import sys

import pytest

SHOW = """
import pyarrow as pa
from pgcdc_cli.stream.memory import keep_freed_memory
keep_freed_memory()
print(pa.default_memory_pool().backend_name, len(pa.array(range(9)).cast(pa.string())))
"""


def allocator(chosen: str) -> str:
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": chosen}
    shown = subprocess.run([sys.executable, "-c", SHOW], env=environment, capture_output=True, check=True)
    name, count = shown.stdout.decode().split()
    assert count == "9"
    return name


@pytest.mark.skipif(sys.platform != "linux", reason="pyarrow has jemalloc on Linux only")
def test_a_run_uses_jemalloc():
    assert allocator("") == "jemalloc"


def test_a_user_chooses_another_allocator():
    assert allocator("system") == "system"
