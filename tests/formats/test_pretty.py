import json

import pytest
from batches import UNCHANGED, change, full, key_only, stamp, table
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import events, to_slice

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.slice import Boundaries, MessageChange, Slice, TransactionBoundary, TruncateChange
from pgcdc_cli.changes.table import ReplicaIdentity
from pgcdc_cli.formats.pretty import EarlierChanges, PrettyFormat, render_line, render_message
from pgcdc_cli.formats.terminal import Style, safe, shorten, width_of
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m

ORDERS = table({"id": "int8", "state": "text", "total": "numeric(12,2)", "doc": "jsonb"})


def pretty(part: Slice, *, colour: bool = False, width: int = 60) -> str:
    form = PrettyFormat(colour, width)
    return b"".join(bytes(form.frame([piece.data])) for piece in form.encode(part).pieces).decode()


def shop() -> Slice:
    """A transaction with every kind of change."""
    before = full([["1", "new", "9.50", '{"a": 1.00}']])
    return Slice(
        None,
        (
            change(ORDERS, "I", [1], [["1", "new", "9.50", '{"a": 1.00}']]),
            change(ORDERS, "U", [2], [["1", "paid", "9.50", '{"a": 1.00}']], before),
            change(
                ORDERS, "U", [3], [["2", "", None, UNCHANGED]], key_only([["1", None, None, None]], ORDERS)
            ),
            change(ORDERS, "U", [4], [["1", "new", "9.50", '{"a": 1.00}']], before),
            change(ORDERS, "D", [5], None, key_only([["2", None, None, None]], ORDERS)),
            change(ORDERS, "R", [6], [["3", "NULL", "1.00", "null"]]),
        ),
        (TruncateChange(ORDERS, stamp(7), True, True),),
        (
            MessageChange(stamp(8), True, "audit", "by é".encode()),
            MessageChange(stamp(9), False, "raw", b"\xff"),
        ),
        (Boundaries.of([TransactionBoundary("B", stamp(0)), TransactionBoundary("C", stamp(10))]),),
    )


def test_a_transaction_is_shown_like_this():
    assert pretty(shop(), width=100) == (
        """\
BEGIN 771  0/1A2B400  2026-01-02 03:04:05.678901Z
  INSERT public.orders  id=1 state=new total=9.50 doc={"a": 1.00}  0/1A2B010
  UPDATE public.orders id=1  state=new -> paid  0/1A2B020
  UPDATE public.orders id=2  0/1A2B030
    id     1 -> 2
    state  paid -> ""
    total  9.50 -> NULL
    doc    (unchanged)
  UPDATE public.orders id=1  (no difference)  0/1A2B040
  DELETE public.orders  id=2 state="" total=NULL doc={"a": 1.00}  0/1A2B050
  ROW public.orders  id=3 state="NULL" total=1.00 doc=null  0/1A2B060
  TRUNCATE public.orders CASCADE RESTART IDENTITY  0/1A2B070
  MESSAGE audit  0/1A2B080
    by é
  MESSAGE (not transactional) raw  0/1A2B090
    base64 /w==
COMMIT 771  9 changes, 1,925 bytes of JSON
"""
    )


def test_what_does_not_fit_a_line_is_a_block():
    assert pretty(shop(), width=60).splitlines()[1:7] == [
        "  INSERT public.orders id=1  0/1A2B010",
        "    id     1",
        "    state  new",
        "    total  9.50",
        '    doc    {"a": 1.00}',
        "  UPDATE public.orders id=1  state=new -> paid  0/1A2B020",
    ]


def shown(*changes: dict[str, object]) -> list[str]:
    """Render changes of one table, each with its own LSN unless it has one."""
    earlier = EarlierChanges()
    head = [
        {"schema": "s", "table": "t", "lsn": f"0/{number + 1}", **one} for number, one in enumerate(changes)
    ]
    lines = [render_line(json.dumps(one), Style(width=100), earlier) for one in head]
    return [line.strip() for line in lines]


def row(op: str, number: int, note: object = None, **others: object) -> dict[str, object]:
    new = {} if op == "D" else {"new": {"id": number, "note": note}}
    return {
        "op": op,
        "key": {"id": number},
        **({"old": {"id": number}} if op == "D" else {}),
        **new,
        **others,
    }


def test_an_update_without_its_old_row_shows_what_an_earlier_change_left():
    assert shown(row("R", 1, "a"), row("U", 1, "b c"), row("U", 1, "d"), row("D", 1))[1:] == [
        "UPDATE s.t id=1  note=a -> 'b c'  0/2",
        "UPDATE s.t id=1  note='b c' -> d  0/3",
        "DELETE s.t  id=1 note=d  0/4",
    ]


def test_a_snapshot_s_row_is_known_to_the_first_change_after_it():
    """Nothing need be in the WAL between the two, so they can have the same position."""
    assert shown(row("R", 1, "a", lsn="0/1"), row("U", 1, "b", lsn="0/1"))[1] == (
        "UPDATE s.t id=1  note=a -> b  0/1"
    )


TRUNCATE = {"op": "T", "cascade": False, "restart_identity": False}


@pytest.mark.parametrize(
    ("before", "old"),
    [
        (row("I", 2, "b"), "a"),
        (row("I", 1, "a" * 1001), "?"),
        (row("I", 1, "a", json_null=["new.note"]), "?"),
        (row("D", 1), "?"),
        (TRUNCATE, "?"),
        ({**TRUNCATE, "table": "other"}, "a"),
    ],
)
def test_what_no_change_told_is_not_known(before, old):
    assert shown(row("U", 1, "z")) == ["UPDATE s.t id=1  note=? -> z  0/1"]
    assert shown(row("I", 1, "a"), before, row("U", 1, "z"))[2] == f"UPDATE s.t id=1  note={old} -> z  0/3"


def test_what_comes_again_is_no_earlier_change():
    """After a lost connection, a transaction is sent again from its beginning."""
    assert (
        shown(row("I", 1, "a"), row("U", 1, "b"), row("U", 1, "b", lsn="0/2"))[2]
        == "UPDATE s.t id=1  note=? -> b  0/2"
    )


def test_a_row_is_followed_when_its_key_changes_and_keeps_what_was_not_sent():
    moved = row("U", 2, "b", old={"id": 1})
    unsent = {**row("U", 2), "new": {"id": 2}, "unchanged": ["note"]}
    assert shown(row("I", 1, "a"), moved, unsent, row("U", 2, "c"), row("U", 1, "z"))[1:] == [
        "UPDATE s.t id=2  id=1 -> 2 note=a -> b  0/2",
        "UPDATE s.t id=2  note=(unchanged)  0/3",
        "UPDATE s.t id=2  note=b -> c  0/4",
        "UPDATE s.t id=1  note=? -> z  0/5",
    ]


def test_only_the_newest_rows_are_remembered(monkeypatch):
    monkeypatch.setattr("pgcdc_cli.formats.pretty._MOST_ROWS", 2)
    rows = [row("I", number, "a") for number in (1, 2, 3)]
    assert shown(*rows, row("U", 1, "b"), row("U", 3, "b"))[3:] == [
        "UPDATE s.t id=1  note=? -> b  0/4",
        "UPDATE s.t id=3  note=a -> b  0/5",
    ]


def test_colours_are_added_and_nothing_else():
    coloured = pretty(shop(), colour=True)
    assert "\x1b[31mnew\x1b[0m\x1b[2m -> \x1b[0m\x1b[32mpaid\x1b[0m" in coloured
    for code in ("0", "1", "2", "31", "32", "33", "35"):
        coloured = coloured.replace(f"\x1b[{code}m", "")
    assert coloured == pretty(shop())


def test_long_values_are_cut_to_the_width():
    part = Slice(
        None,
        (change(ORDERS, "U", [0], [["1", "b" * 200, None, None]], full([["1", "a" * 200, None, None]])),),
    )
    line = pretty(part).splitlines()[1]
    assert line == f"    state  {'a' * 21}… -> {'b' * 22}…"
    assert len(line) == 60


def test_a_short_side_leaves_its_room_to_the_other():
    part = Slice(
        None, (change(ORDERS, "U", [0], [["1", "b" * 200, None, None]], full([["1", "a", None, None]])),)
    )
    assert pretty(part).splitlines()[1] == f"    state  a -> {'b' * 43}…"


@settings(deadline=None, max_examples=100)
@given(st.lists(events(), min_size=1, max_size=5))
def test_nothing_of_a_value_or_name_reaches_the_terminal_but_printable_text(stream):
    text = pretty(to_slice(stream, list(range(len(stream)))))
    assert all(char.isprintable() for char in text.replace("\n", ""))


@pytest.mark.parametrize("char", ["\x1b", "\x9b", "\x07", "\u202e", "\u2066", "\x7f", "\u2028", "\U000e0001"])
def test_what_a_terminal_obeys_is_written_out(char):
    assert safe(f"a{char}b") == f"a\\u{ord(char):04x}b" if ord(char) < 0x10000 else f"a\\U{ord(char):08x}b"


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=30), st.integers(8, 20))
def test_shortened_text_never_exceeds_its_width(text, width):
    assert width_of(shorten(text, width)) <= width
    assert shorten(text, width).isprintable()


def test_wide_characters_take_two_columns_of_the_line():
    line = {"op": "I", "schema": "s", "table": "t", "lsn": "0/1", "new": {"名": "日本語", "e": "e\u0301"}}
    in_a_line = '  INSERT s.t  "名"=日本語 e=e\u0301  0/1'
    assert render_line(json.dumps(line), Style(width=34)) == f"{in_a_line}\n"
    assert render_line(json.dumps(line), Style(width=33)).splitlines() == [
        "  INSERT s.t  0/1",
        '    "名"  日本語',
        "    e     e\u0301",
    ]
    assert shorten("日本語" * 3, 8) == "日本語…"


def test_names_are_quoted_as_sql_does():
    names = {"schema": "Odd.Schema", "table": 'My "Table"', "lsn": "0/1", "key": {"Id": 1}}
    line = {"op": "U", **names, "old": {"Id": 1, "a b": "x"}, "new": {"Id": 1, "a b": "y"}}
    assert render_line(json.dumps(line), Style()) == (
        '  UPDATE "Odd.Schema"."My ""Table""" "Id"=1  "a b"=x -> y  0/1\n'
    )


def test_numbers_are_shown_digit_for_digit():
    line = {"op": "I", "schema": "s", "table": "t", "lsn": "0/1", "new": {"big": 0, "json": 0}}
    text = json.dumps(line).replace('"big": 0', '"big": ' + "9" * 5000)
    text = text.replace('"json": 0', '"json": [1e400, 1.10]')
    big, embedded = render_line(text, Style(width=30)).splitlines()[1:]
    assert big == "    big   " + "9" * 19 + "…"
    assert embedded == "    json  [1e400, 1.10]"


def test_json_too_deep_to_read_is_shown_as_it_is():
    deep = "[" * 100_000 + "]" * 100_000
    line = f'{{"op":"I","schema":"s","table":"t","lsn":"0/1","new":{{"v":{deep}}}}}'
    assert render_line(line.encode(), Style(width=40)) == f"  {line[:37]}…\n"


RELATION = m.Relation(
    7,
    "public",
    "orders",
    ReplicaIdentity.DEFAULT,
    (m.RelationColumn("id", 20, -1, True), m.RelationColumn("note", 25, -1, False)),
)
TIME = 1_767_323_045_678_901
AT = "2026-01-02T03:04:05.678901Z"
UNSENT = m.FullTuple((m.Text(b"1"), m.UnchangedToast()))
SOME = m.FullTuple((m.Text(b"1"), m.Null()))
NEW = m.FullTuple((m.Text(b"1"), m.Text(b"x\x1b[2J")))
KEY = m.KeyTuple((m.Text(b"2"), m.Null()))
PREPARED = f"prepare_lsn=0/16 end_lsn=1A/0 prepare_time={AT} xid=9 gid=g"
COMMITTED = f"commit_lsn=0/16 end_lsn=1A/0 commit_time={AT}"
ROLLED_BACK = (
    f"prepare_end_lsn=0/16 rollback_end_lsn=1A/0 prepare_time={AT}"
    " rollback_time=9223372036854775807 us xid=9 gid=g"
)
ONE, TWO = Lsn(0x16), Lsn(0x1A00000000)

LINES = [
    (m.Begin(ONE, TIME, 9), f"Begin final_lsn=0/16 commit_time={AT} xid=9"),
    (m.Commit(ONE, TWO, TIME), f"Commit {COMMITTED}"),
    (Origin(ONE, "east"), "Origin commit_lsn=0/16 name=east"),
    (RELATION, "Relation public.orders (id*, note) replica_identity=default oid=7"),
    (m.Type(99, "public", "mood"), "Type public.mood oid=99"),
    (m.Insert(7, NEW), "Insert public.orders id=1 note=x\\u001b[2J"),
    (m.Insert(8, NEW, 5), "Insert relation 8 #1=1 #2=x\\u001b[2J xid=5"),
    (m.Update(7, None, UNSENT), "Update public.orders id=1 note=(unchanged)"),
    (m.Update(7, KEY, SOME), "Update public.orders key: id=2 new: id=1 note=NULL"),
    (m.Delete(7, KEY), "Delete public.orders key: id=2"),
    (
        m.Delete(7, m.FullTuple((m.Binary(b"\0\1"), m.Null()))),
        "Delete public.orders old: id=\\x0001 note=NULL",
    ),
    (
        m.Truncate((7, 8), True, False),
        "Truncate public.orders relation 8 cascade=true restart_identity=false",
    ),
    (m.LogicalMessage(True, ONE, "p", b"hi"), "Message transactional=true lsn=0/16 prefix=p content=hi"),
    (m.StreamStart(9, True), "Stream Start xid=9 first_segment=true"),
    (m.StreamStop(), "Stream Stop"),
    (m.StreamCommit(9, ONE, TWO, TIME), f"Stream Commit xid=9 {COMMITTED}"),
    (m.StreamAbort(9, 10), "Stream Abort xid=9 subxid=10"),
    (m.StreamAbort(9, 10, ONE, TIME), f"Stream Abort xid=9 subxid=10 abort_lsn=0/16 abort_time={AT}"),
    (m.BeginPrepare(ONE, TWO, TIME, 9, "g"), f"Begin Prepare {PREPARED}"),
    (m.Prepare(ONE, TWO, TIME, 9, "g"), f"Prepare {PREPARED}"),
    (m.CommitPrepared(ONE, TWO, TIME, 9, "g"), f"Commit Prepared {COMMITTED} xid=9 gid=g"),
    (m.RollbackPrepared(ONE, TWO, TIME, 2**63 - 1, 9, "g"), f"Rollback Prepared {ROLLED_BACK}"),
    (m.StreamPrepare(ONE, TWO, TIME, 9, "g"), f"Stream Prepare {PREPARED}"),
]


@pytest.mark.parametrize(("message", "line"), LINES, ids=lambda value: type(value).__name__)
def test_every_message_is_one_line(message, line):
    assert render_message(message, {7: RELATION}, Style(width=200)) == line


def test_no_message_is_left_out():
    assert {type(message) for message, _ in LINES} == set(m.Message.__args__)


def test_a_message_is_cut_to_the_width():
    long = m.Insert(7, m.FullTuple((m.Text(b"1"), m.Text(b"x" * 10_000_000))))
    assert len(render_message(long, {7: RELATION}, Style(width=200))) < 120
    assert len(render_message(long, {7: RELATION}, Style(width=50))) == 50
