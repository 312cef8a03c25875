"""Memory: a run keeps what it frees, within limits, and chooses Arrow's allocator, unless the user does."""

import ctypes
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


FREE = """
import ctypes, resource, sys
from pathlib import Path
from pgcdc_cli.stream.memory import keep_freed_memory
keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20
before = resident()
blocks = [ctypes.c_void_p(libc.malloc(16 << 20)) for _ in range(int(sys.argv[1]))]
for block in blocks:
    ctypes.memset(block, 1, 16 << 20)
for block in blocks:
    libc.free(block)
print(resident() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc is told how much to keep")
@pytest.mark.parametrize(("blocks", "low", "high"), [(1, 15, 17), (3, 47, 49), (8, -1, 65)])
def test_freed_memory_is_kept_for_the_next_batch_but_not_much_of_it(blocks, low, high):
    """In MB, of blocks of 16 MB."""
    line = [sys.executable, "-c", FREE, str(blocks)]
    kept = int(subprocess.run(line, capture_output=True, check=True).stdout)
    assert low <= kept <= high


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
