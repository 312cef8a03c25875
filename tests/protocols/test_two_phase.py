"""Prepared transactions: nothing shows between PREPARE TRANSACTION and their end, and nothing is lost."""

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from logs import PROTOCOL_1, Log, Running, log_of
from processes import PGCDC
from segments import contents
from warm_process import run_warm
from workloads import ROW_COUNT, TABLES, Stage, message, rows

from pgcdc_cli.replication.connection import ReplicationConnection

TWO_PHASE = ("--two-phase", "--transactions")
ODD_GIDS = ("it''s \"quoted\"", "grün 🌱", "a/b\\c\n\td", "%s {} $1 ../..", "g" * 199)


@pytest.fixture
def log(server) -> Iterator[Log]:
    with log_of(server, TABLES) as log:
        yield log


class Prepared:
    """A slot that sends prepared transactions, one that doesn't, and the directory of the first one."""

    def __init__(self, log: Log, folder: Path) -> None:
        self.log = log
        log.run("CREATE TABLE private.prepared (xid bigint)")
        self.slot, self._plain = log.create_slot(two_phase=True), log.create_slot()
        self.out = folder / "out"
        self._folder = folder

    @property
    def arguments(self) -> tuple[str, ...]:
        return "-D", str(self.out), "--layout", "stream", *TWO_PHASE

    def read(self, *arguments: str) -> list[dict]:
        """Stream up to now; return the lines in the directory."""
        self.log.read(self.slot, *self.arguments, "--endpos", self.log.end(), *arguments)
        return self.found()

    def found(self) -> list[dict]:
        return [json.loads(line) for line in contents(self.out).get(None, [])]

    def plain(self) -> list[dict]:
        """The lines of a reader that knows nothing of prepared transactions."""
        arguments = (*PROTOCOL_1, "--transactions", "--endpos", self.log.end())
        return [json.loads(line) for line in self.log.read(self._plain, *arguments).splitlines()]

    def spools(self) -> list[Path]:
        return list(self.out.rglob("*.spool"))

    def same_but_for_gids(self) -> None:
        """The output is as without two-phase, except for a gid exactly where there was a PREPARE."""
        found = self.found()
        xids = {xid for (xid,) in self.log.run("SELECT xid FROM private.prepared")}
        assert {line["xid"] for line in found if "gid" in line} <= xids
        assert not {line.get("xid") for line in found if "gid" not in line} & xids
        bare = [{name: value for name, value in line.items() if name != "gid"} for line in found]
        assert bare == self.plain()


@pytest.fixture
def prepared(log, tmp_path) -> Prepared:
    return Prepared(log, tmp_path)


@pytest.fixture
def prepared18(server18, tmp_path) -> Iterator[Prepared]:
    """For tests in which the server's version makes no difference."""
    with log_of(server18, TABLES) as log:
        yield Prepared(log, tmp_path)


def prepare(do: Stage, number: int, gid: str, *statements: str) -> None:
    do(number, "BEGIN", *statements)
    do(number, "INSERT INTO private.prepared SELECT pg_current_xact_id()::text::bigint")
    do(number, f"PREPARE TRANSACTION '{gid}'")


def operations(lines: list[dict]) -> str:
    return "".join(line["op"] for line in lines)


def test_changes_appear_at_commit_prepared(prepared):
    with Stage(prepared.log.uri) as do:
        prepare(do, 0, "one", rows("accounts", 1, 2), "DELETE FROM accounts WHERE id = 1")
        do(1, rows("parts", 1, 1))
        assert operations(prepared.read()) == "BIC"
        do(1, "COMMIT PREPARED 'one'", rows("parts", 2, 1))
    found = prepared.read()
    assert operations(found) == "BICBIIDCBIC"
    assert [line.get("gid") for line in found] == [None] * 3 + ["one"] * 5 + [None] * 3
    prepared.same_but_for_gids()
    assert not prepared.spools()


def test_nothing_of_what_is_rolled_back_appears(prepared):
    with Stage(prepared.log.uri) as do:
        prepare(do, 0, "small", rows("accounts", 1, 2))
        prepare(do, 0, "large", rows("parts", 1))
        do(1, rows("audit", 1, 1))
        assert operations(prepared.read()) == "BIC"
        assert len(prepared.spools()) == 2
        do(0, "ROLLBACK PREPARED 'large'", "ROLLBACK PREPARED 'small'", rows("audit", 2, 1))
    assert operations(prepared.read()) == "BICBIC"
    assert not prepared.spools()


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_no_spool_outlives_its_transaction(prepared18, end):
    """It is removed at once: the next checkpoint may be a long time away."""
    with Stage(prepared18.log.uri) as do:
        do(0, rows("accounts", 1, 1))
        for number in range(30):
            prepare(do, 0, f"gid {number}", rows("parts", 1000 * number, 100))
            do(0, f"{end} PREPARED 'gid {number}'")
    prepared18.read("--spool-limit", "15kB", "-F", "60", "-s", "60")
    assert not prepared18.spools()
    prepared18.same_but_for_gids()


@pytest.mark.parametrize("form", [("--binary", ""), ("", "--binary")], ids=["binary first", "text first"])
def test_values_are_read_in_the_form_in_which_they_came(prepared18, form):
    """The server sends them once, at the prepare, and the next run may ask for the other format."""
    before, after = (filter(None, [option]) for option in form)
    with Stage(prepared18.log.uri) as do:
        prepare(do, 0, "one", rows("accounts", 1, 2))
        assert prepared18.read(*before) == []
        do(0, "COMMIT PREPARED 'one'", rows("accounts", 10, 2))
    assert operations(prepared18.read(*after)) == "BIICBIIC"
    prepared18.same_but_for_gids()


def test_streamed_and_prepared(prepared):
    """Large transactions are sent before their PREPARE, and a part of them is rolled back."""
    with Running(prepared.log, prepared.slot, *prepared.arguments) as reader, Stage(prepared.log.uri) as do:
        reader.started()
        do(0, "BEGIN", rows("accounts", 1), "SAVEPOINT a", rows("parts", 1))
        do.catch_up()
        do(0, "ROLLBACK TO a", rows("shapes", 1))
        do(0, "INSERT INTO private.prepared SELECT pg_current_xact_id()::text::bigint")
        do(0, "PREPARE TRANSACTION 'large'")
        do(1, rows("parts", 1, 1))
        do.catch_up()
        do(1, "COMMIT PREPARED 'large'")
        assert reader.ends(prepared.log.end()) == (0, b"")
    assert prepared.log.streamed(prepared.slot) == 1
    assert operations(prepared.found()) == "BIC" + "B" + "I" * 2 * ROW_COUNT + "C"
    prepared.same_but_for_gids()


def test_several_at_once_end_in_another_order(prepared18):
    with Stage(prepared18.log.uri) as do:
        for number, table in enumerate(("accounts", "accounts", "parts", "accounts")):
            prepare(do, number, f"gid {number}", rows(table, 1000 * number, 3))
        prepared18.read()
        do(0, "COMMIT PREPARED 'gid 3'", rows("audit", 1, 1), "COMMIT PREPARED 'gid 0'")
        prepared18.read()
        do(0, "ROLLBACK PREPARED 'gid 2'", "COMMIT PREPARED 'gid 1'")
    assert [line.get("gid") for line in prepared18.read() if line["op"] == "C"] == [
        "gid 3",
        None,
        "gid 0",
        "gid 1",
    ]
    prepared18.same_but_for_gids()


def test_names_of_any_kind(prepared18):
    with Stage(prepared18.log.uri) as do:
        for number, gid in enumerate(ODD_GIDS):
            prepare(do, 0, gid, rows("accounts", number, 1))
        assert prepared18.read() == []
        for gid in reversed(ODD_GIDS):
            do(0, f"COMMIT PREPARED '{gid}'")
    expected = [gid.replace("''", "'") for gid in reversed(ODD_GIDS)]
    assert [line["gid"] for line in prepared18.read() if line["op"] == "I"] == expected
    prepared18.same_but_for_gids()


def test_one_without_a_published_change(prepared18):
    with Stage(prepared18.log.uri) as do:
        prepare(do, 0, "empty", rows("private.secrets", 1, 3))
        prepared18.read()
        do(0, "COMMIT PREPARED 'empty'", rows("accounts", 1, 1))
    assert operations(prepared18.read()) == "BIC"


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_one_that_only_locked_rows(prepared18, end):
    """PostgreSQL 18.4 sends its Prepare without a Begin Prepare."""
    with Stage(prepared18.log.uri) as do:
        do(0, rows("accounts", 1, 1))
        prepare = "BEGIN", "SELECT FROM accounts FOR UPDATE", "PREPARE TRANSACTION 'locked'"
        do(0, *prepare, rows("parts", 1, 1))
        assert operations(prepared18.read()) == "BICBIC"
        do(0, f"{end} PREPARED 'locked'", *prepare, f"{end} PREPARED 'locked'", rows("parts", 2, 1))
    assert operations(prepared18.read()) == "BICBICBIC"
    assert not prepared18.spools()


def test_definitions_in_a_prepared_transaction(prepared18):
    with Stage(prepared18.log.uri) as do:
        do(0, rows("shapes", 1, 1))
        columns = "ALTER TABLE shapes ADD COLUMN more int DEFAULT 1"
        prepare(do, 0, "altered", columns, rows("shapes", 10, 2).replace("8)", "8), 7"))
        prepare(do, 1, "made", "CREATE TABLE made (id int PRIMARY KEY)", "INSERT INTO made VALUES (1)")
        assert operations(prepared18.read()) == "BIC"
        do(0, "COMMIT PREPARED 'made'", "COMMIT PREPARED 'altered'", rows("accounts", 1, 1))
    found = prepared18.read()
    assert operations(found) == "BICBICBIICBIC"
    assert found[4]["key"] == {"id": 1}
    prepared18.same_but_for_gids()


def test_messages_in_a_prepared_transaction(prepared18):
    with Stage(prepared18.log.uri) as do:
        prepare(do, 0, "gid", message("inside", transactional=True), message("aside", transactional=False))
        assert [line["content"] for line in prepared18.read("--messages")] == ["aside"]
        do(0, "COMMIT PREPARED 'gid'")
    found = prepared18.read("--messages")
    assert operations(found) == "MBMC"
    assert (found[2]["content"], found[2]["gid"]) == ("inside", "gid")


def test_a_slot_that_is_two_phase_without_being_asked(prepared18):
    with Stage(prepared18.log.uri) as do:
        prepare(do, 0, "gid", rows("accounts", 1, 1))
        arguments = ("-f", str(prepared18.out))
        prepared18.log.read(prepared18.slot, *arguments, "--endpos", prepared18.log.end())
        assert prepared18.out.read_bytes() == b""
        do(0, "COMMIT PREPARED 'gid'")
        prepared18.log.read(prepared18.slot, *arguments, "--endpos", prepared18.log.end())
    [line] = prepared18.out.read_bytes().splitlines()
    assert json.loads(line)["gid"] == "gid"
    assert [path for path in prepared18.out.parent.rglob("*.spool") if path.is_file()] == []


def test_two_phase_that_is_turned_on_later(log, tmp_path):
    """Transactions prepared earlier are sent whole at their end, from before the checkpoint."""
    log.run("CREATE TABLE private.prepared (xid bigint)")
    slot = log.create_slot()
    arguments = ("-f", str(tmp_path / "out"), "--transactions")
    with Stage(log.uri) as do:
        prepare(do, 0, "early", rows("accounts", 1, 2))
        prepare(do, 0, "early, undone", rows("accounts", 10, 2))
        do(1, rows("parts", 1, 1))
        log.read(slot, *arguments, *PROTOCOL_1, "--endpos", log.end())
        prepare(do, 0, "late", rows("accounts", 20, 2))
        turned_on = log.stream(slot, *arguments, "--two-phase", "--endpos", log.end())
        assert turned_on.returncode == 0
        warning = f'pgcdc: warning: slot "{slot}" becomes two-phase, and stays so without --two-phase\n'
        assert turned_on.stderr.decode() == warning
        do(0, "COMMIT PREPARED 'late'", "ROLLBACK PREPARED 'early, undone'", "COMMIT PREPARED 'early'")
        log.read(slot, *arguments, "--two-phase", "--endpos", log.end())
    found = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert operations(found) == "BICBIICBIIC"
    assert [line.get("gid") for line in found if line["op"] == "C"] == [None, "late", "early"]


def test_two_phase_that_a_command_turns_on(prepared18):
    """What was prepared before comes whole, too."""
    prepared18.slot = slot = prepared18.log.create_slot()
    arguments = ("-D", str(prepared18.out), "--layout", "stream", "--transactions")
    with Stage(prepared18.log.uri) as do:
        prepare(do, 0, "early", rows("accounts", 1, 2))
        do(0, rows("parts", 1, 1))
        prepared18.log.read(slot, *arguments, "--endpos", prepared18.log.end())
        with ReplicationConnection(prepared18.log.uri) as connection:
            connection.alter_slot(slot, two_phase=True)
        prepare(do, 0, "late", rows("accounts", 10, 2))
        do(0, "COMMIT PREPARED 'late'", "COMMIT PREPARED 'early'")
        prepared18.log.read(slot, *arguments, "--endpos", prepared18.log.end())
    assert [line.get("gid") for line in prepared18.found() if line["op"] == "C"] == [None, "late", "early"]
    prepared18.same_but_for_gids()


def test_changes_at_prepare_for_those_who_want_them(prepared18):
    at_prepare = ("--two-phase-at", "prepare")
    with Stage(prepared18.log.uri) as do:
        prepare(do, 0, "one", rows("accounts", 1, 2))
        prepare(do, 0, "two", rows("parts", 1))
        assert operations(prepared18.read(*at_prepare)) == "BIIP" + "B" + "I" * ROW_COUNT + "P"
        do(0, "COMMIT PREPARED 'two'", rows("audit", 1, 1), "ROLLBACK PREPARED 'one'")
    found = prepared18.read(*at_prepare)
    assert operations(found) == "BIIP" + "B" + "I" * ROW_COUNT + "P" + "K" + "BIC" + "r"
    gids = [line.get("gid") for line in found if line["op"] not in "BI"]
    assert gids == ["one", "two", "two", None, "one"]
    assert not prepared18.spools()
    shown = run_warm([*PGCDC, "show", str(prepared18.out)])
    assert [json.loads(line) for line in shown.stdout.splitlines()] == found


def test_commit_of_what_nobody_kept(prepared18, tmp_path):
    """Another directory has the changes: this is a gap, which can be accepted."""
    with Stage(prepared18.log.uri) as do:
        prepare(do, 0, "gid", rows("accounts", 1, 1))
        prepared18.read()
        prepared18.out = tmp_path / "other"
        do(0, rows("parts", 1, 1), "COMMIT PREPARED 'gid'", rows("parts", 2, 1))
    run = prepared18.log.stream(prepared18.slot, *prepared18.arguments, "--endpos", prepared18.log.end())
    assert run.returncode == 6
    assert run.stderr.startswith(b'pgcdc: error: could not write prepared transaction "gid": ')
    run = prepared18.log.stream(
        prepared18.slot, *prepared18.arguments, "--endpos", prepared18.log.end(), "--accept-gap"
    )
    assert run.returncode == 0
    assert b'"gid"' in run.stderr
    assert operations(prepared18.found()) == "BICBIC"


def test_ends_in_a_gap_that_is_accepted(prepared18):
    """What ended in the gap is kept until the stream has passed the end of it; the rest still comes."""
    with Stage(prepared18.log.uri) as do:
        for number, gid in enumerate(("committed", "undone", "behind", "later")):
            prepare(do, 0, gid, rows("accounts", 10 * number, 2))
        prepared18.read()
        do(0, "COMMIT PREPARED 'committed'", "ROLLBACK PREPARED 'undone'")
        do(0, f"SELECT pg_replication_slot_advance('{prepared18.slot}', pg_current_wal_insert_lsn())")
        do(0, "COMMIT PREPARED 'behind'")
        arguments = (prepared18.slot, *prepared18.arguments, "--endpos", "now")
        run = prepared18.log.stream(*arguments, "--accept-gap")
        assert (run.returncode, len(prepared18.spools())) == (0, 1)
        for gid in ("committed", "undone"):
            assert f'the end of prepared transaction "{gid}" did not come' in run.stderr.decode()
        do(0, "COMMIT PREPARED 'later'")
    found = prepared18.read()
    assert [line["gid"] for line in found if line["op"] == "C"] == ["behind", "later"]
    assert not prepared18.spools()


def test_a_run_that_ends_before_the_end_of_what_is_prepared_keeps_it(prepared18):
    """That it has ended by then on the server makes no difference: its end is still to come."""
    log = prepared18.log
    with Stage(log.uri) as do:
        prepare(do, 0, "kept", rows("accounts", 0, 2))
        prepared18.read()
        before = log.end()
        do(0, "COMMIT PREPARED 'kept'")
    run = log.stream(prepared18.slot, *prepared18.arguments, "--endpos", before)
    assert (run.returncode, run.stderr) == (0, b"")
    prepared18.read()
    prepared18.same_but_for_gids()


WIDE = (
    "INSERT INTO shapes SELECT g, g, (SELECT string_agg(md5(random()::text || g || h), '')"
    " FROM generate_series(1, 30) h) FROM generate_series({}, {}) g"
)
LITTLE_MEMORY = {"PGOPTIONS": "-c logical_decoding_work_mem=2MB"}
"""So little that the server streams two transactions of these rows, and so much that it keeps one."""


def test_two_phase_that_is_turned_off(prepared18):
    """What is prepared comes again, at its commit, and may be streamed."""
    log = prepared18.log
    with Stage(log.uri) as do:
        prepare(do, 0, "kept", WIDE.format(1, 1000))
        prepare(do, 0, "dropped", WIDE.format(10_001, 10_800))
        assert prepared18.read() == []
        with ReplicationConnection(log.uri) as connection:
            connection.alter_slot(prepared18.slot, two_phase=False)
        do(1, "BEGIN", WIDE.format(20_001, 20_700), "COMMIT")
        do(0, "ROLLBACK PREPARED 'dropped'", "COMMIT PREPARED 'kept'", rows("parts", 1, 1))
        arguments = ("-D", str(prepared18.out), "--layout", "stream", "--transactions", "--endpos", log.end())
        run = log.stream(prepared18.slot, *arguments, environment=LITTLE_MEMORY)
    warning = f'slot "{prepared18.slot}" is no longer two-phase: what is prepared comes again, at its commit'
    assert (run.returncode, run.stderr.decode()) == (0, f"pgcdc: warning: {warning}\n")
    assert log.streamed(prepared18.slot) > 0
    assert prepared18.found() == prepared18.plain()
    assert not prepared18.spools()


def test_prepared_ones_that_are_streamed_after_a_restart(prepared):
    """To free memory, the server streams a transaction that it reads again, though it sent it at its PREPARE.

    Its blocks begin at the LSN of the Begin Prepare, and no Stream Prepare follows.
    """
    log, streamed = prepared.log, prepared.log.streamed
    with Stage(log.uri) as do:
        with Running(log, prepared.slot, *prepared.arguments, environment=LITTLE_MEMORY) as reader:
            reader.started()
            prepare(do, 0, "kept", WIDE.format(1, 1000))
            prepare(do, 0, "dropped", WIDE.format(10_001, 10_800))
            reader.confirms(log.end())
            reader.kill()
        assert (streamed(prepared.slot), len(prepared.spools())) == (0, 2)
        with Running(log, prepared.slot, *prepared.arguments, environment=LITTLE_MEMORY) as reader:
            reader.started()
            do(1, "BEGIN", WIDE.format(20_001, 20_700), "COMMIT")
            do(0, "ROLLBACK PREPARED 'dropped'", "COMMIT PREPARED 'kept'", rows("parts", 1, 1))
            assert reader.ends(log.end()) == (0, b"")
    assert streamed(prepared.slot) > 0
    assert [line.get("gid") for line in prepared.found() if line["op"] == "C"] == [None, "kept", None]
    prepared.same_but_for_gids()
    assert not prepared.spools()


def test_a_spool_that_is_gone_or_changed(prepared18, tmp_path):
    """It was confirmed to the server as durable, so nobody else has it."""
    with Stage(prepared18.log.uri) as do:
        prepare(do, 0, "gid", rows("accounts", 1, 5))
        prepared18.read()
        shutil.copytree(prepared18.out, tmp_path / "intact")
        [spool] = prepared18.spools()
        data = bytearray(spool.read_bytes())
        data[-1] ^= 1
        for harm in (lambda: spool.write_bytes(data), lambda: spool.write_bytes(data[:-1]), spool.unlink):
            harm()
            run = prepared18.log.stream(prepared18.slot, *prepared18.arguments, "--endpos", "now")
            assert run.returncode == 10
            assert run.stderr.startswith(b"pgcdc: error: could not ")
        shutil.copytree(tmp_path / "intact", prepared18.out, dirs_exist_ok=True)
        do(0, "COMMIT PREPARED 'gid'")
    assert operations(prepared18.read()) == "BIIIIIC"


Interrupt = Callable[[Log, Running], None]


def killed(_log: Log, reader: Running) -> None:
    reader.kill_only()


def disconnected(log: Log, _reader: Running) -> None:
    log.run("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")


def server_crashed(log: Log, _reader: Running) -> None:
    log.server.pg_ctl("restart", "-m", "immediate")


@pytest.mark.parametrize("interrupt", [killed, disconnected, server_crashed])
def test_interrupted_between_prepare_and_its_end(prepared, interrupt):
    """All before an interruption is durable; some tables were described before their transactions."""
    with Interrupted(prepared, interrupt) as run:
        with Stage(prepared.log.uri) as do:
            do(0, "BEGIN", rows("shapes", 1))
            do.catch_up()
            do(0, "COMMIT")
            prepare(do, 0, "after a streamed one", rows("shapes", 1000, 2))
            prepare(do, 0, "small", rows("accounts", 1, 3))
            prepare(do, 0, "after a small one", rows("accounts", 10, 2))
            prepare(do, 0, "large", rows("accounts", 1000))
            prepare(do, 0, "undone", rows("parts", 1000))
        run.interrupt(durable=True)
        with Stage(prepared.log.uri) as do:
            do(0, "COMMIT PREPARED 'large'", "ROLLBACK PREPARED 'undone'", rows("audit", 1, 1))
        run.interrupt(durable=True)
        with Stage(prepared.log.uri) as do:
            do(0, "COMMIT PREPARED 'after a streamed one'", "COMMIT PREPARED 'after a small one'")
            do(0, rows("accounts", 5000, 1), "COMMIT PREPARED 'small'")
        run.end()
    prepared.same_but_for_gids()
    assert not prepared.spools()


class Interrupted:
    """A run that goes on, or is started again, after each interruption."""

    def __init__(self, prepared: Prepared, how: Interrupt) -> None:
        self._prepared = prepared
        self._how = how
        self._reader = self._start()
        self._reader.started()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._reader.__exit__()

    def _start(self) -> Running:
        return Running(self._prepared.log, self._prepared.slot, *self._prepared.arguments)

    def interrupt(self, *, durable: bool) -> None:
        if durable:
            self._reader.confirms(self._prepared.log.end())
        self._how(self._prepared.log, self._reader)
        if self._reader.process.poll() is not None:
            self._reader = self._start()

    def end(self) -> None:
        assert self._reader.ends(self._prepared.log.end())[0] == 0


@pytest.mark.timeout(300)
def test_killed_at_any_moment(server18, tmp_path, pytestconfig):
    """Large and small transactions are prepared and ended all the time."""
    kills = max(pytestconfig.getoption("--kills") // 10, 2)
    dice = random.Random(kills)
    with log_of(server18, TABLES) as log:
        prepared = Prepared(log, tmp_path)
        with Interrupted(prepared, killed) as run, Stage(log.uri) as do:
            open_gids: list[str] = []
            for _ in range(kills):
                until = time.monotonic() + dice.uniform(0.5, 1.5)
                while time.monotonic() < until:
                    _prepare_or_end(do, open_gids, dice)
                run.interrupt(durable=False)
            for gid in open_gids:
                do(0, f"COMMIT PREPARED '{gid}'")
            run.end()
        prepared.same_but_for_gids()
        assert not prepared.spools()


def _prepare_or_end(do: Stage, open_gids: list[str], dice: random.Random) -> None:
    if len(open_gids) < 6 and dice.random() < 0.55:
        low = dice.randrange(1 << 30)
        gid = f"gid {low}"
        prepare(do, 0, gid, rows("parts", low, dice.choice([1, 3, ROW_COUNT])))
        open_gids.append(gid)
    elif open_gids:
        gid = open_gids.pop(dice.randrange(len(open_gids)))
        do(0, f"{dice.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])} PREPARED '{gid}'")
    do(0, rows("audit", 1, 1))
    do(0, "SELECT pg_sleep(0.005)")
