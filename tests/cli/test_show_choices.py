"""`pgcdc show`: options that choose changes, count them, and follow new ones."""

import json
import signal
import subprocess

import pytest
from processes import PGCDC, stream_command, wait_until
from segments import manifest
from show_tools import show


@pytest.fixture
def changes(stream):
    """The changes of directory `d`, which is written here."""
    stream("-D", "d")
    return [json.loads(line) for line in stream("-f", "-", "--format", "jsonl").splitlines()]


def chosen(pgcdc, *arguments):
    return [json.loads(line) for line in show(pgcdc, "d", "--json", *arguments).splitlines()]


def test_by_operation(pgcdc, changes):
    assert chosen(pgcdc, "--op", "U") == [c for c in changes if c["op"] == "U"] != []
    assert chosen(pgcdc, "--op", "update") == chosen(pgcdc, "--op", "u") == chosen(pgcdc, "--op", "U")
    assert chosen(pgcdc, "--op", "D", "--op", "T") == [c for c in changes if c["op"] in "DT"] != []


@pytest.mark.usefixtures("changes")
def test_by_key_before_and_after_it_changed(pgcdc):
    """The key of row 2 became 20: both keys find that update, and only the old one finds the insert."""
    assert [c["op"] for c in chosen(pgcdc, "--key", "id=2")] == ["I", "U"]
    assert [c["op"] for c in chosen(pgcdc, "--key", "id=20")] == ["U"]
    assert [c["op"] for c in chosen(pgcdc, "--key", "id=1")] == ["I", "D"]
    assert [c["table"] for c in chosen(pgcdc, "--key", "sku=sku4", "--key", "n=5")] == ["items"]
    assert chosen(pgcdc, "--key", "id=1", "--key", "note=another") == []


def test_by_column_that_may_have_changed(pgcdc, changes):
    """For table items the old rows are known: sku never changed, but n did."""
    updates = [c for c in changes if c["op"] == "U"]
    of_items = [c for c in updates if c["table"] == "items"]
    assert chosen(pgcdc, "--op", "U", "--column", "n") == of_items != []
    assert chosen(pgcdc, "--op", "U", "--column", "sku") == []
    assert chosen(pgcdc, "--op", "U", "--column", "total") == [c for c in updates if c["table"] == "orders"]


@pytest.mark.usefixtures("changes")
@pytest.mark.parametrize(("option", "column"), [("--key", "iD"), ("--column", "totl")])
def test_a_column_that_no_change_has(pgcdc, option, column):
    value = "=1" if option == "--key" else ""
    ran = pgcdc("show", "d", "--json", option, column + value)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f'pgcdc: error: could not find "{column}": no change has such a column\n')
    assert show(pgcdc, "d", "--key", "id=777", "--column", "total") == ""


def test_by_commit_in_the_log_and_in_time(pgcdc, changes):
    commits = sorted({(c["commit_lsn"], c["ts"]) for c in changes}, key=lambda commit: commit[1])
    first, last = commits[2], commits[-2]
    expected = [c for c in changes if first[1] <= c["ts"] <= last[1]]
    assert 0 < len(expected) < len(changes)
    assert chosen(pgcdc, "--since", first[0], "--until", last[0]) == expected
    assert chosen(pgcdc, "--since", first[1], "--until", last[1]) == expected
    without_zone = [moment.removesuffix("Z") for moment in (first[1], last[1])]
    assert chosen(pgcdc, "--since", without_zone[0], "--until", without_zone[1]) == expected
    assert chosen(pgcdc, "--since", "1h") == chosen(pgcdc) == changes
    assert chosen(pgcdc, "--until", "1h") == []
    assert chosen(pgcdc, "--at", first[0]) == [c for c in changes if c["commit_lsn"] == first[0]]
    assert chosen(pgcdc, "--at", changes[4]["lsn"]) == [c for c in changes if c["lsn"] == changes[4]["lsn"]]


def test_the_first_and_the_last(pgcdc, changes):
    assert chosen(pgcdc, "--limit", "3") == changes[:3]
    assert chosen(pgcdc, "--tail", "3") == changes[-3:]
    assert chosen(pgcdc, "--tail", "2", "--op", "I") == [c for c in changes if c["op"] == "I"][-2:]


def test_nothing_is_shortened_with_full(pgcdc, changes):
    """Row 50 has a note of 32 kB."""
    of_row_50 = ("d", "--format", "pretty", "--key", "id=50", "--op", "I")
    assert "…" in show(pgcdc, *of_row_50)
    assert next(c for c in changes if c.get("key") == {"id": 50})["new"]["note"] in show(
        pgcdc, *of_row_50, "--full"
    )


def test_counts(pgcdc, changes):
    counted = json.loads(show(pgcdc, "d", "--stat", "--json"))
    assert counted["format_version"] == 1
    for one in counted["changes"]:
        rows = [c for c in changes if f"{c.get('schema')}.{c.get('table')}" == one["table"]]
        rows += [c for c in changes if one["table"] == "_messages" and c["op"] == "M"]
        assert one["changes"] == sum(c["op"] == one["op"] for c in rows)
    assert sum(one["changes"] for one in counted["changes"]) == len(changes)
    commits = [c["commit_lsn"] for c in changes]
    assert counted["transactions"] == len(set(commits))
    largest = counted["largest"][0]
    assert largest["changes"] == max(map(commits.count, commits))
    assert (largest["changes"], len(counted["largest"])) == (commits.count(largest["commit_lsn"]), 5)
    for name, change in (("first", changes[0]), ("last", changes[-1])):
        assert counted[name] == {"lsn": change["commit_lsn"], "ts": change["ts"]}


@pytest.mark.usefixtures("changes")
def test_counts_for_people(pgcdc):
    assert [line.split() for line in show(pgcdc, "d", "--stat", "--table", "*.items").splitlines()][4:8] == [
        [],
        ["TABLE", "INSERTS", "UPDATES", "TRUNCATES"],
        ["public.items", "6", "2", "1"],
        [],
    ]
    assert show(pgcdc, "d", "--stat", "--key", "id=none").split() == ["changes", "0", "transactions", "0"]


def test_a_table_of_which_a_snapshot_had_no_rows_is_there(pgcdc, database18):
    database18.execute("CREATE TABLE few (id int); CREATE TABLE less (id int); INSERT INTO few VALUES (1)")
    assert pgcdc("snapshot", "-d", database18.uri, "--table", "public.*", "-D", "d").status == 0
    counted = json.loads(show(pgcdc, "d", "--stat", "--json"))
    assert counted["changes"] == [
        {"table": "public.few", "op": "R", "changes": 1},
        {"table": "public.less", "op": "R", "changes": 0},
    ]
    assert show(pgcdc, "d", "--table", "public.less") == ""
    assert show(pgcdc, "d", "--stat", "--table", "*.less").split()[4:] == [
        *("TABLE", "SNAPSHOT"),
        *("public.less", "0"),
    ]
    assert pgcdc("show", "d", "--table", "public.nobody").status == 2


def test_a_snapshots_rows_are_in_the_time_span_but_in_no_transaction(pgcdc, database18):
    database18.execute("CREATE TABLE t (id int); INSERT INTO t SELECT generate_series(1, 7)")
    assert pgcdc("snapshot", "-d", database18.uri, "--table", "public.t", "-D", "d").status == 0
    counted = json.loads(show(pgcdc, "d", "--stat", "--json"))
    assert (counted["changes"][0]["changes"], counted["transactions"], counted["largest"]) == (7, 0, [])
    assert counted["first"] == counted["last"]
    assert counted["first"].keys() == {"lsn", "ts"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--op", "X"], '--op: "X" is not one of I, U, D, T, M, R'),
        (["--op", "I,D"], '--op: "I,D" is not one of I, U, D, T, M, R: give each its own --op'),
        (
            ["--since", "noon"],
            (
                '--since: "noon" is neither an LSN, such as 0/1A2B3C8, nor a time in ISO form,'
                " nor how long ago, such as 2h"
            ),
        ),
        (["--since", "99999999h"], '--since: "99999999h" ago is before the year 1'),
        (["--since", "1h", "--until", "2h"], "--until is before --since: no change is between them"),
        (["--since", "0/20", "--until", "0/1F"], "--until is before --since: no change is between them"),
        (["--at", "1"], '--at: "1" is not an LSN, such as 0/1A2B3C8'),
        (["--key", "id"], '--key: "id" is not NAME=VALUE'),
        (["--limit", "1", "--tail", "1"], "--limit and --tail: give one of them"),
        (["--follow", "--stat"], "--stat: with --follow there is no end at which to count"),
        (["--follow"], "--follow: give one directory of pgcdc stream -D"),
        (["--format", "debezium", "--tail", "1"], "--format debezium goes with --partial and --limit alone"),
    ],
)
def test_what_does_not_go_together_is_refused(pgcdc, arguments, reason):
    ran = pgcdc("show", "a.jsonl", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert reason in ran.err


@pytest.mark.parametrize(
    "form",
    [
        ("jsonl",),
        ("debezium", "-c", "topic.prefix=srv", "-c", "snapshot.mode=never"),
        ("wal2json", "--wal2json-option", "include-transaction=false"),
    ],
    ids=["jsonl", "debezium", "wal2json"],
)
def test_what_becomes_durable_is_followed_through_rotations(database18, tmp_path, form):
    """While the stream often finishes a segment, each change is shown once, in order."""
    database18.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    out, shown = tmp_path / "d", tmp_path / "shown"
    line = stream_command(database18.uri, database18.create_slot(), "-D", str(out), publications=["p"])
    streaming = subprocess.Popen([*line, "-F", "0.1", "--rotate-interval", "0.7s", "--format", *form])
    database18.execute("INSERT INTO t VALUES (-1); INSERT INTO t VALUES (0)")
    wait_until(lambda: (out / "checkpoint.json").exists() and manifest(out))
    with shown.open("w") as file:
        follow = [*PGCDC, "show", str(out), "--follow", "--tail", "1", "--json"]
        following = subprocess.Popen(follow, stdout=file)
    try:
        wait_until(lambda: shown.read_text().count("\n") == 1)
        for number in range(1, 60):
            database18.execute(f"INSERT INTO t VALUES ({number})")
        wait_until(lambda: shown.read_text().count("\n") >= 60)
        segments = len(manifest(out))
        database18.execute("INSERT INTO t VALUES (60)")
        wait_until(lambda: len(manifest(out)) > segments and shown.read_text().count("\n") >= 61)
    finally:
        following.send_signal(signal.SIGINT)
        streaming.terminate()
        assert (following.wait(60), streaming.wait(60)) == (130, 0)
    assert [json.loads(change)["new"]["id"] for change in shown.read_text().splitlines()] == list(range(61))
