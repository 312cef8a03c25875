"""Faults of run, server or connection at random moments under load: in the end the files match the log.

Each change is there once, in the order of commits, and the changes result in the tables' rows. The kills of
tests/stream/test_stream_kill.py aim at certain moments; here any moment may be hit.
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
    """A function that returns a version's server, which waits only a moment for its reader."""
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
    # After a restart the server has another process than the one that its package would stop.
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
        told = {"early": combination.early, "messages": combination.tells_messages}
        with (
            WarmPython() as python,
            Load(log.uri, seed, patient=True, sessions=3, **told) as load,
            Faulted(log, server, proxy, slot, python, *arguments, dice=random.Random(seed)) as reader,
        ):
            reader.interrupt_all(size)
            load.stop()
            # After so many interruptions it is far behind the load.
            reader.finish(max(600, 120 * size))
        changes = check_output(log, witness, out, combination)
    finally:
        log.drop()
        proxy.close()
    assert not list(tmp_path.rglob("*.spool"))
    tell(f"any moment, {combination}", {"changes": changes, **reader.hits, **reader.longest})
