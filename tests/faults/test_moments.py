"""At random moments under load, whatever happens to run, server or wire: in the end the files are the log's.

Each change is there once, in the order of the commits, and the log folds to the tables. What the kills of
tests/stream/test_stream_kill.py hit is aimed at; here it is anything.
"""

import random

import pytest
from faults_reader import SENDER_TIMEOUT, Faulted, WiredLog
from proxy import Proxy
from soak_comparison import FORMATS, Combination, check_output
from soak_load import TABLES, Load
from warm_process import WarmPython

COMBINATIONS = [
    Combination(18, "default", False, "directory", False),
    Combination(16, "3 on", True, "debezium", False),
    pytest.param(Combination(18, "1 off", False, "lines", False), marks=pytest.mark.long),
    pytest.param(Combination(16, "4 parallel", False, "arrow", False), marks=pytest.mark.long),
]


@pytest.fixture(scope="module")
def server_of(own_server):
    """Give the server of a version that waits a moment for its reader, and is stopped now and then."""
    settings = {
        "logical_decoding_work_mem": "64kB",
        "max_prepared_transactions": "30",
        "wal_sender_timeout": f"{SENDER_TIMEOUT}s",
    }
    started = {}

    def give(version):
        if version not in started:
            started[version] = own_server(version, settings)
        return started[version]

    yield give
    # A server that was started again is another one than its package would stop.
    for server in started.values():
        server.pg_ctl("stop", "-m", "immediate")


@pytest.mark.timeout(0)  # as long as its size asks for
@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_any_moment(combination, server_of, tmp_path, size, seed, tell):
    server, out = server_of(combination.version), tmp_path / "out"
    proxy = Proxy(server)
    log = WiredLog(server, TABLES, proxy)
    try:
        slot = log.create_slot(two_phase=combination.two_phase)
        witness = log.copy_slot(slot)
        option, *others = FORMATS[combination.form]
        arguments = (option, str(out), *others, *combination.arguments)
        told = {"early": combination.early, "messages": combination.messages_written}
        with (
            WarmPython(tmp_path / "errors") as python,
            Load(log.uri, seed, patient=True, sessions=3, **told) as load,
            Faulted(log, server, proxy, slot, python, *arguments, dice=random.Random(seed)) as reader,
        ):
            reader.interrupt_all(size)
            load.stop()
            # Interrupted so often, it falls far behind the load.
            reader.finish(max(600, 120 * size))
        changes = check_output(log, witness, out, combination)
    finally:
        log.drop()
        proxy.close()
    assert not list(tmp_path.rglob("*.spool"))
    tell(f"any moment, {combination}", {"changes": changes, **reader.hits, **reader.longest})
