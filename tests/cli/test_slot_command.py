"""`pgcdc slot` against real servers."""

import json
import os
import re
import signal
import subprocess
import uuid
from dataclasses import replace

import psycopg
import pytest
from processes import PGCDC, wait_until
from servers import Database

from pgcdc_cli.catalog import Catalog, Slot
from pgcdc_cli.cli.printing import human_bytes
from pgcdc_cli.cli.slot_view import slot_content, slot_lines, slot_table
from pgcdc_cli.lsn import Lsn


@pytest.fixture
def name():
    return f"s_{uuid.uuid4().hex[:12]}"


def exists(database, name):
    [(count,)] = database.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", (name,))
    return count == 1


def test_create_prints_name_and_consistent_point(database, pgcdc, name):
    ran = pgcdc("slot", "create", name, "-d", database.uri)
    assert (ran.status, ran.out, ran.err) == (0, f"{name} {database.confirmed(name)}\n", "")


def test_create_json_can_be_parsed(database, pgcdc, name):
    ran = pgcdc("slot", "create", name, "-d", database.uri, "--json")
    assert json.loads(ran.out) == {"slot": name, "consistent_point": str(database.confirmed(name))}


def test_connection_options_are_enough_without_a_uri(database, pgcdc, name):
    ran = pgcdc(
        "slot", "create", name, "-h", database.server.socket_directory, "-U", "postgres", "-d", database.name
    )
    assert ran.status == 0
    assert exists(database, name)


def test_libpq_variables_and_a_service_file_are_heeded(database, pgcdc, name, tmp_path):
    service = f"[shop]\nhost={database.server.socket_directory}\nuser=postgres\ndbname={database.name}\n"
    (tmp_path / "services").write_text(service)
    env = {"PGSERVICEFILE": str(tmp_path / "services"), "PGSERVICE": "shop"}
    assert pgcdc("slot", "create", name, env=env).status == 0
    assert exists(database, name)


def test_an_existing_slot_is_an_error_unless_it_will_do(database, pgcdc, refused, name):
    database.create_slot(name)
    refused(
        "slot",
        "create",
        name,
        "-d",
        database.uri,
        status=5,
        error=f'could not create slot "{name}": replication slot "{name}" already exists',
        hint="if it will do: --if-not-exists; else choose another name, or drop it first: pgcdc slot drop"
        f" {name}",
    )
    ran = pgcdc("slot", "create", name, "-d", database.uri, "--if-not-exists")
    assert (ran.status, ran.out) == (0, f"{name} {database.confirmed(name)}\n")
    assert ran.err == f'pgcdc: slot "{name}" already exists\n'


def test_an_existing_slot_of_another_plugin_will_not_do(database, refused, name):
    database.create_slot(name)
    refused(
        *("slot", "create", name, "-d", database.uri, "--if-not-exists", "-P", "test_decoding"),
        status=5,
        error=f'could not create slot "{name}": one exists whose plugin is pgoutput',
        hint=f"choose another name, or drop it with: pgcdc slot drop {name}",
    )


def test_an_existing_slot_that_can_not_be_read_here_will_not_do(database, refused, name):
    """Another database's, a physical one, and one that goes with its session."""
    elsewhere = Database(database.server)
    create = ("slot", "create", name, "--if-not-exists", "-d", database.uri)
    hint = f"choose another name, or drop it with: pgcdc slot drop {name}"
    elsewhere.create_slot(name)
    reason = f'one exists in database "{elsewhere.name}"'
    refused(*create, status=5, error=f'could not create slot "{name}": {reason}', hint=hint)
    elsewhere.drop()
    database.execute("SELECT pg_create_physical_replication_slot(%s)", (name,))
    reason = "it exists, and is a physical slot"
    refused(*create, status=5, error=f'could not create slot "{name}": {reason}', hint=hint)
    database.drop_slot(name)
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', true)", (name,))
    reason = "it exists, and is a temporary slot of another session"
    refused(*create, status=5, error=f'could not create slot "{name}": {reason}', hint=hint)
    database.drop_slot(name)


def test_an_existing_slot_that_lacks_what_is_asked_for_is_told(database18, pgcdc, name):
    """Without failover, a promotion would lose it."""
    create = ("slot", "create", name, "--if-not-exists", "-d", database18.uri)
    assert pgcdc(*create).err == ""
    ran = pgcdc(*create, "--failover", "--two-phase")
    assert (ran.status, ran.out) == (0, f"{name} {database18.confirmed(name)}\n")
    _, *warnings = ran.err.splitlines()
    assert warnings == [
        f'pgcdc: warning: slot "{name}" has no failover: pgcdc slot alter {name} --failover changes that',
        f'pgcdc: warning: slot "{name}" is not two-phase: pgcdc stream --two-phase changes that',
    ]
    assert pgcdc("slot", "alter", name, "-d", database18.uri, "--failover", "--two-phase").status == 0
    assert len(pgcdc(*create, "--failover", "--two-phase").err.splitlines()) == 1


@pytest.mark.parametrize("options", [["--two-phase"], ["-t", "-P", "pgoutput"]])
def test_a_two_phase_slot_says_so(database, pgcdc, name, options):
    assert pgcdc("slot", "create", name, "-d", database.uri, *options).status == 0
    assert json.loads(pgcdc("slot", "show", name, "-d", database.uri, "--json").out)["two_phase"] is True


def test_failover_needs_postgresql_17(database, pgcdc, name):
    ran = pgcdc("slot", "create", name, "-d", database.uri, "--failover")
    if database.server.version >= 17:
        assert ran.status == 0
        assert json.loads(pgcdc("slot", "show", name, "-d", database.uri, "--json").out)["failover"] is True
    else:
        assert ran.status == 2
        assert "failover slots need PostgreSQL 17" in ran.err
        assert not exists(database, name)


@pytest.mark.parametrize("options", [(), ("--wait",)])
def test_drop(database, pgcdc, name, options):
    database.create_slot(name)
    ran = pgcdc("slot", "drop", name, "-d", database.uri, *options)
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    assert not exists(database, name)


def test_drop_takes_a_walsender_and_no_other_connection(database, pgcdc, role, name):
    database.create_slot(name)
    database.execute(f"ALTER ROLE {role} REPLICATION CONNECTION LIMIT 0")
    ran = pgcdc("slot", "drop", name, "-d", database.server.uri(database.name, user=role))
    assert (ran.status, ran.err, exists(database, name)) == (0, "", False)


def at_terminal(*arguments, answer, **others):
    """Run pgcdc on a terminal, where somebody answers; return its exit status and what the terminal shows."""
    controller, terminal = os.openpty()
    os.write(controller, answer)
    line = [*PGCDC, *arguments]
    streams = {"stdin": terminal, "stderr": terminal, **others}
    ran = subprocess.run(line, **streams, timeout=120, check=False)
    os.write(terminal, b"END")
    os.close(terminal)
    shown = b""
    while not shown.endswith(b"END"):
        shown += os.read(controller, 4096)
    os.close(controller)
    return ran.returncode, shown.decode()


def test_drop_asks_on_a_terminal(database, name):
    database.create_slot(name)
    line = ("slot", "drop", name, "-d", database.uri)
    status, shown = at_terminal(*line, answer=b"n\n")
    assert status == 2
    assert f'Drop slot "{name}" and the changes that are still to be read from it? [y/N] ' in shown
    assert "hint: nothing was changed" in shown
    assert exists(database, name)
    assert at_terminal(*line, answer=b"y\n")[0] == 0
    assert not exists(database, name)


def test_drop_asks_nothing_about_a_slot_that_is_in_use_unless_it_waits(database, name):
    database.execute("CREATE PUBLICATION p")
    database.create_slot(name)
    reader = start_reading(database, name)
    line = ("slot", "drop", name, "-d", database.uri)
    status, shown = at_terminal(*line, "--if-exists", answer=b"y\n")
    assert (status, "[y/N]" in shown) == (5, False)
    status, shown = at_terminal(*line, "--wait", answer=b"n\n")
    assert (status, "[y/N]" in shown) == (2, True)
    reader.close()


def test_peek_shows_no_progress_on_a_terminal(database, name):
    database.execute("CREATE PUBLICATION p")
    database.create_slot(name)
    line = ("slot", "peek", name, "-d", database.uri)
    assert at_terminal(*line, answer=b"", stdout=subprocess.DEVNULL) == (0, "END")


@pytest.mark.parametrize(
    ("words", "others"),
    [(["--yes"], {}), ([], {"stderr": subprocess.DEVNULL}), ([], {"stdin": subprocess.DEVNULL})],
)
def test_drop_asks_nobody_who_said_yes_or_would_not_see_the_question_or_answer(database, name, words, others):
    database.create_slot(name)
    status, shown = at_terminal("slot", "drop", name, "-d", database.uri, *words, answer=b"", **others)
    assert (status, shown) == (0, "END")
    assert not exists(database, name)


def test_a_missing_slot_is_an_error_unless_that_will_do(database, pgcdc, refused, name):
    refused(
        "slot",
        "drop",
        name,
        "-d",
        database.uri,
        status=5,
        error=f'could not find slot "{name}": it does not exist',
        hint="see which exist with: pgcdc slot list",
    )
    ran = pgcdc("slot", "drop", name, "-d", database.uri, "--if-exists")
    assert (ran.status, ran.out, ran.err) == (0, "", f'pgcdc: slot "{name}" does not exist\n')
    assert pgcdc("-q", "slot", "drop", name, "-d", database.uri, "--if-exists").err == ""


@pytest.mark.parametrize(("command", "more"), [("drop", ()), ("copy", ("another",))])
def test_a_name_that_is_too_long_is_not_cut_off_to_that_of_another_slot(
    database, refused, name, command, more
):
    """As the server does: it would drop or copy a slot that nobody named."""
    longest = database.create_slot(name.ljust(63, "_"))
    refused(
        *("slot", command, f"{longest}_", *more, "-d", database.uri),
        status=5,
        error=f'could not find slot "{longest}_": it does not exist',
        hint=f'did you mean "{longest}"; or see which exist with: pgcdc slot list',
    )
    assert exists(database, longest)
    assert not exists(database, "another")


def reader_of(database, name):
    query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
    [(pid,)] = database.execute(query, (name,))
    return pid


def start_reading(database, name):
    reader = psycopg.connect(f"{database.uri}&replication=database", autocommit=True)
    command = f"START_REPLICATION SLOT {name} LOGICAL 0/0 (proto_version '1', publication_names 'p')"
    assert reader.pgconn.exec_(command.encode()).status == psycopg.pq.ExecStatus.COPY_BOTH
    return reader


def test_a_slot_in_use_is_not_dropped_under_its_reader(database, refused, pgcdc, name):
    database.execute("CREATE PUBLICATION p")
    database.create_slot(name)
    reader = start_reading(database, name)
    pid = reader_of(database, name)
    refused(
        "slot",
        "drop",
        name,
        "-d",
        database.uri,
        status=5,
        error=f'could not drop slot "{name}": replication slot "{name}" is active for PID {pid}',
        hint=f"stop what is reading it (see pgcdc slot show {name}), or add --wait",
    )
    shown = pgcdc("slot", "show", name, "-d", database.uri)
    assert f"read by        process {pid}\n" in shown.out
    reader.close()
    assert pgcdc("slot", "drop", name, "-d", database.uri, "--wait").status == 0
    assert not exists(database, name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_slot_stays_if_the_wait_for_its_reader_is_ended(database, name, number):
    database.execute("CREATE PUBLICATION p")
    database.create_slot(name)
    reader = start_reading(database, name)
    pid = reader_of(database, name)
    line = [*PGCDC, "slot", "drop", name, "-d", database.uri, "--wait"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as dropping:
        said = dropping.stderr.readline()
        assert said == f'pgcdc: slot "{name}" is active for PID {pid}: waiting for its end\n'
        wait_until(lambda: waits_for_slot(database))
        dropping.send_signal(number)
        assert (dropping.wait(30), dropping.stderr.read()) == (130, "")
    wait_until(lambda: not waits_for_slot(database))
    reader.close()
    wait_until(lambda: reader_of(database, name) is None)
    assert exists(database, name)


def waits_for_slot(database):
    """Whether a session waits until a slot is no longer in use."""
    query = "SELECT FROM pg_stat_activity WHERE wait_event = 'ReplicationSlotDrop' AND datname = %s"
    return database.execute(query, (database.name,)).fetchone() is not None


def test_list_and_show_agree_with_the_server(database, pgcdc, name):
    database.create_slot(name)
    listed = [
        json.loads(line) for line in pgcdc("slot", "list", "-d", database.uri, "--json").out.splitlines()
    ]
    [slot] = [slot for slot in listed if slot["name"] == name]
    assert slot["plugin"] == "pgoutput"
    assert slot["database"] == database.name
    assert slot["active_pid"] is None
    assert slot["confirmed_flush_lsn"] == str(database.confirmed(name))
    assert slot["retained_bytes"] >= slot["lag_bytes"] >= 0
    assert slot["wal_status"] == "reserved"
    assert slot["invalidation_reason"] is None
    assert json.loads(pgcdc("slot", "show", name, "-d", database.uri, "--json").out).keys() == slot.keys()


def test_the_table_is_aligned_and_says_the_same(database, pgcdc, name):
    database.create_slot(name)
    head, *rows = pgcdc("slot", "list", "-d", database.uri).out.splitlines()
    [row] = [row for row in rows if row.startswith(name)]
    for heading, value in [
        ("PLUGIN", "pgoutput"),
        ("DATABASE", database.name),
        ("PID", "-"),
        ("WAL", "reserved"),
    ]:
        at = head.index(heading)
        assert row[at:].split()[0] == value
    assert str(database.confirmed(name)) in row


def test_show_is_readable(database, pgcdc, name):
    database.create_slot(name)
    lines = dict(
        line.split("  ", 1) for line in pgcdc("slot", "show", name, "-d", database.uri).out.splitlines()
    )
    assert lines["name"].strip() == name
    assert lines["read by"].strip() == "nobody"
    assert Lsn.parse(lines["confirmed LSN"].strip()) > 0


def test_show_of_no_slot(database, refused):
    others = "see which exist with: pgcdc slot list"
    error = 'could not find slot "nothing_like_another": it does not exist'
    line = ("slot", "show", "nothing_like_another", "-d", database.uri)
    refused(*line, status=5, error=error, hint=others)
    database.create_slot("nothing_like_anothr")
    refused(*line, status=5, error=error, hint=f'did you mean "nothing_like_anothr"; or {others}')


def test_a_copy_that_can_not_be_made_names_both_slots(database, refused, name):
    database.create_slot(name)
    line = ("slot", "copy", name, name, "-d", database.uri)
    error = f'could not copy slot "{name}" to "{name}": replication slot "{name}" already exists'
    refused(*line, status=5, error=error, hint="choose another name: pgcdc slot list shows those that exist")


def test_no_right_to_replicate(database, pgcdc, role, name):
    ran = pgcdc("slot", "create", name, "-d", database.server.uri(database.name, user=role))
    assert ran.status == 4
    error, hint = ran.err.splitlines()
    assert error.startswith("pgcdc: error: could not connect to the server: ")
    needs = "the role needs REPLICATION, and SELECT on what it reads"
    assert hint == f"hint: {needs}: see pgcdc doctor --role {role}"
    assert not exists(database, name)


def test_no_right_to_connect_names_the_grant(database, pgcdc, role):
    database.execute(f"REVOKE CONNECT ON DATABASE {database.name} FROM PUBLIC")
    ran = pgcdc("slot", "list", "-d", database.server.uri(database.name, user=role))
    assert ran.status == 4
    hint = ran.err.splitlines()[1].removeprefix("hint: ")
    assert hint == f'GRANT CONNECT ON DATABASE "{database.name}" TO "{role}"'
    database.execute(hint)
    assert pgcdc("slot", "list", "-d", database.server.uri(database.name, user=role)).status == 0
    database.execute(f"REVOKE CONNECT ON DATABASE {database.name} FROM {role}")


@pytest.mark.parametrize("plugin", ["no_such_plugin", 'te"st', "/etc/passwd", "plpgsql"])
@pytest.mark.parametrize("more", [(), ("--if-not-exists",)])
def test_a_plugin_that_the_server_does_not_have(database, pgcdc, name, plugin, more):
    ran = pgcdc("slot", "create", name, "-d", database.uri, "--plugin", plugin, *more)
    assert (ran.status, exists(database, name)) == (2, False)
    assert ran.err.splitlines()[1].startswith("hint: check the plugin's name, or install it on the server; ")


@pytest.mark.parametrize("name", ["a-b", 'a"b', "a" * 64])
@pytest.mark.parametrize("how", [("create",), ("copy", "old")])
def test_a_name_that_no_slot_may_have(database, refused, how, name):
    """The server would truncate one that is too long."""
    refused(
        *("slot", *how, name, "-d", database.uri),
        status=2,
        error=f'could not create slot "{name}": that is not a valid name for a slot',
        hint="a slot's name has lower case letters, digits and underscores, 63 at most",
    )


def test_no_such_role(database, pgcdc):
    ran = pgcdc("slot", "list", "-d", database.server.uri(database.name, user="nobody_at_all"))
    assert ran.status == 4
    error, hint = ran.err.splitlines()
    assert error.startswith("pgcdc: error: could not connect to the server: ")
    assert 'role "nobody_at_all" does not exist' in error
    assert hint == "hint: check user, password (PGPASSWORD, ~/.pgpass or -W) and pg_hba.conf"


def test_no_such_database(database, pgcdc):
    ran = pgcdc("slot", "list", "-d", database.server.uri("nowhere_at_all"))
    assert (ran.status, len(ran.err.splitlines())) == (2, 2)
    assert 'database "nowhere_at_all" does not exist' in ran.err


def test_no_server(refused, tmp_path):
    socket = f"{tmp_path}/.s.PGSQL.5432"
    refused(
        "slot",
        "list",
        "-h",
        tmp_path,
        "-U",
        "me",
        status=3,
        error=f'could not connect to the server: connection to server on socket "{socket}" failed:'
        " No such file or directory",
        hint="check that the server is running and reachable, and -h, -p and -d",
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 kB"),
        (128 << 20, "128.0 MB"),
        (3 << 50, "3072.0 TB"),
    ],
)
def test_sizes_are_in_postgresqls_units(count, text):
    assert human_bytes(count) == text


BUSY = Slot(
    name="s",
    plugin="pgoutput",
    database="shop",
    temporary=True,
    active_pid=7,
    two_phase=True,
    failover=False,
    synced=True,
    restart_lsn=Lsn(1),
    confirmed_flush_lsn=Lsn(2),
    wal_status="unreserved",
    invalidation_reason="idle_timeout",
    conflicting=False,
    retained_bytes=3 << 10,
    lag_bytes=2 << 10,
    safe_wal_bytes=1 << 10,
)
UNUSED = Slot("p", None, None, False, *[None] * 12)
"""A physical slot that nobody has used, of a server that knows little of it."""


def test_the_table_has_each_fact_under_its_heading():
    head, unused, busy = slot_table([UNUSED, BUSY])
    headings = "NAME PLUGIN DATABASE PID RESTART CONFIRMED RETAINED LAG SAFE WAL LOST"
    assert re.split("  +", head) == headings.split()
    assert re.split("  +", unused) == ["p", *["-"] * 10]
    facts = "s|pgoutput|shop|7|0/1|0/2|3.0 kB|2.0 kB|1.0 kB|unreserved|idle_timeout"
    assert re.split("  +", busy) == facts.split("|")
    # Sizes are aligned at the right, the rest at the left.
    assert busy.index("0/2") == head.index("CONFIRMED") == unused.index("-", head.index("CONFIRMED"))
    assert busy.index("3.0 kB") + len("3.0 kB") == head.index("RETAINED") + len("RETAINED")


def test_show_has_each_fact_by_its_name():
    names = (
        "name|plugin|database|read by|restart LSN|confirmed LSN|retained|lag|safe|WAL status|invalidated"
        "|temporary|two-phase|failover|synced"
    )
    busy = "s|pgoutput|shop|process 7|0/1|0/2|3.0 kB|2.0 kB|1.0 kB|unreserved|idle_timeout|yes|yes|no|yes"
    unused = "p|- (physical)|-|nobody|-|-|-|-|-|-|no|no|-|-|-"
    for slot, facts in ((BUSY, busy), (UNUSED, unused)):
        assert slot_lines(slot) == list(zip(names.split("|"), facts.split("|"), strict=True))
    json_facts = slot_content(BUSY)
    assert (json_facts["restart_lsn"], json_facts["confirmed_flush_lsn"]) == ("0/1", "0/2")
    assert slot_content(UNUSED)["restart_lsn"] is None


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (200, "NAME PLUGIN DATABASE PID RESTART CONFIRMED RETAINED LAG SAFE WAL LOST"),
        (90, "NAME PLUGIN DATABASE PID CONFIRMED RETAINED LAG SAFE WAL LOST"),
        (70, "NAME DATABASE PID CONFIRMED RETAINED LAG SAFE WAL"),
        (50, "NAME PID RETAINED LAG SAFE WAL"),
        (10, "NAME RETAINED WAL"),
    ],
)
def test_a_narrow_terminal_is_spared_columns(database18, name, monkeypatch, width, headings):
    database18.create_slot(name)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with Catalog(database18.uri) as catalog:
        slot = catalog.slot(name)
    sizes = dict.fromkeys(("retained_bytes", "lag_bytes", "safe_wal_bytes"), 1 << 20)
    short = replace(slot, name="s", database="shop", **sizes)
    head, row = slot_table([short])
    assert " ".join(head.split()) == headings
    assert row.startswith("s ")
