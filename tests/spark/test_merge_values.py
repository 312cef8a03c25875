"""Options for values: infinity as text, exact decimals, variants, NULL for what was never sent."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from merge_directories import FORMATS, Directory, merge_into, read_table
from merge_histories import INT4, JSONB, NUMERIC, TEXT, numeric, pg_type, table_schema
from merge_oracle import Change, delete, insert, update
from pyspark.sql import SparkSession

from pgcdc_cli.changes.table import TableSchema

DATE, TIMESTAMP, TIMESTAMPTZ, DATES, NUMERICS, JSON, TEXTS = 1082, 1114, 1184, 1182, 1231, 114, 1009
ENCODINGS = ("jsonl", "arrow", "debezium")
ID = {"id": pg_type(INT4)}


def rows_in(
    spark: SparkSession, warehouse: Path, table: TableSchema, lake: str = "delta", mode: str = "merge"
) -> list[tuple[str | None, ...]]:
    """Read a table's rows as text, sorted; variants as JSON."""
    frame = read_table(spark, warehouse, table, lake, mode)
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema}
    names = [column.name for column in table.columns]
    shown = (f"to_json({n})" if kinds[n] == "variant" else f"CAST({n} AS STRING)" for n in names)
    return sorted((tuple(row) for row in frame.selectExpr(*shown).collect()), key=str)


def types_of(spark: SparkSession, warehouse: Path, table: TableSchema, lake: str = "delta") -> list[str]:
    return [field.dataType.simpleString() for field in read_table(spark, warehouse, table, lake).schema]


def problems(summary: dict[str, Any]) -> dict[str, str]:
    return {table["table"].removeprefix("public."): table["problem"] for table in summary["tables"]}


def hints(summary: dict[str, Any]) -> dict[str, str]:
    return {table["table"].removeprefix("public."): table["hint"] for table in summary["tables"]}


def assert_merged(summary: dict[str, Any]) -> None:
    assert (summary["error"], count(summary, "unfit"), count(summary, "missing")) == (None, 0, 0)


def count(summary: dict[str, Any], what: str) -> int:
    return sum(table[what] for table in summary["tables"])


DAYS = ["infinity", "-infinity", "0044-03-15 BC", "12345-01-01", "0001-12-31 BC", "2026-03-29", "1582-10-10"]


def stamps(zone: str) -> list[str]:
    """Make timestamps on these days, some with fractions of a second."""
    clocks = [" 12:30:00.5", " 00:00:00", " 23:59:59.999999", " 01:02:03.04"]
    found = []
    for number, day in enumerate(DAYS):
        date, _, era = day.partition(" ")
        clock = "" if "infinity" in day else clocks[number % 4] + zone
        found.append(f"{date}{clock}{' BC' if era else ''}")
    return found


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_infinity_as_text_loses_nothing(
    spark: SparkSession, tmp_path: Path, directory: Directory, lake: str
) -> None:
    """As PostgreSQL prints it, from each format, also in the columns of a key that changes."""
    columns = {"at": pg_type(TIMESTAMPTZ), "ts": pg_type(TIMESTAMP), "day": pg_type(DATE)}
    table = table_schema("t", {"source": pg_type(TEXT), **columns}, ("source", "at", "day"))
    keyless = table_schema("keyless", {**columns, "days": pg_type(DATES)}, None)
    rows = [
        {"at": at, "ts": ts, "day": day} for at, ts, day in zip(stamps("+00"), stamps(""), DAYS, strict=True)
    ]
    for number, name in enumerate(ENCODINGS):
        directory.encoding = FORMATS[name]
        changes = [insert(100 * number + n, source=name, **row) for n, row in enumerate(rows)]
        more = [(keyless, [insert(10, **rows[3], days="{infinity,NULL}")])] if name == "arrow" else []
        directory.segment([(table, changes), *more])
    assert_merged(merge_into(spark, directory, tmp_path / "wh", format=lake, infinity="string"))
    wanted, moved = [], {**rows[1], "day": "infinity"}
    for number, name in enumerate(ENCODINGS):
        directory.encoding = FORMATS[name]
        was, gone = ({"source": name, "at": row["at"], "day": row["day"]} for row in rows[1:3])
        changed = {"source": name, **rows[0], "ts": "-infinity"}
        later = [
            update(400 + number, **changed),
            update(500 + number, was, source=name, **moved),
            delete(600 + number, **gone),
        ]
        directory.segment([(table, later)])
        wanted += [changed, *({"source": name, **row} for row in (moved, *rows[3:]))]
    assert_merged(merge_into(spark, directory, tmp_path / "wh", format=lake, infinity="string"))
    assert types_of(spark, tmp_path / "wh", table, lake) == ["string"] * 4
    shown = [tuple(row.values()) for row in wanted]
    assert rows_in(spark, tmp_path / "wh", table, lake) == sorted(shown, key=str)
    logged = rows_in(spark, tmp_path / "wh", keyless, lake, "changelog")
    assert logged == [(*rows[3].values(), "[infinity, null]")]


AMOUNTS = {"n": pg_type(NUMERIC), "wide": numeric(39, 2)}
UNFIT = {
    "nan": ({"n": "NaN"}, '"n" of the row (id) = (7) is NaN: decimal(20,6)'),
    "scale": ({"n": "0.0000001"}, '"n" of the row (id) = (7) is 0.0000001: decimal(20,6)'),
    "large": ({"wide": "9" * 37 + ".99"}, f'"wide" of the row (id) = (7) is {"9" * 37}.99: decimal(20,6)'),
}


def amounts(start: int) -> list[Change]:
    """Make changes that leave three rows, all of which fit."""
    ids = [str(start + n) for n in range(5)]
    return [
        insert(start + 1, id=ids[1], n="1.5", wide="-0.01"),
        insert(start + 2, id=ids[2], n="-12345678901234.900000000", wide=None),
        insert(start + 3, id=ids[3], n="NaN", wide="1.00"),
        insert(start + 4, id=ids[4], n="Infinity", wide="1.00"),
        update(start + 5, id=ids[3], n="3", wide="1.00"),
        delete(start + 6, id=ids[4]),
    ]


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_decimals_are_exact_or_an_error(
    spark: SparkSession, tmp_path: Path, directory: Directory, lake: str
) -> None:
    """Only values that are to be written count; and a table follows a wider `--decimal`."""
    table, *unfit = (table_schema(name, {**ID, **AMOUNTS}, ("id",)) for name in ("t", *UNFIT))
    keyed = table_schema("keyed", {"n": pg_type(NUMERIC), "note": pg_type(TEXT)}, ("n",))
    lists = table_schema("lists", {**ID, "many": pg_type(NUMERICS)}, ("id",))
    keyless = table_schema("keyless", {"n": pg_type(NUMERIC), "many": pg_type(NUMERICS)}, None)
    for number, name in enumerate(ENCODINGS):
        directory.encoding = FORMATS[name]
        directory.segment([(table, amounts(number * 10))])
    directory.encoding = FORMATS["jsonl"]
    directory.segment(
        [
            *(
                (one, [insert(10, **{"id": "7", "n": None, **row})])
                for one, (row, _) in zip(unfit, UNFIT.values(), strict=True)
            ),
            (keyed, [insert(10, n="1.0", note="a"), insert(11, n="2.50", note="b")]),
            (lists, [insert(10, id="1", many="{1.50,NULL}"), insert(11, id="2", many="{}")]),
            (keyless, [insert(10, n="1.5"), insert(11, n="1", many="{1,NaN,NULL}")]),
        ]
    )
    first = merge_into(spark, directory, tmp_path / "wh", format=lake, decimal="20,6")
    stopped = {name: problem for name, problem in problems(first).items() if problem}
    assert set(stopped) == {*UNFIT, "keyless"}
    for name, (_, message) in UNFIT.items():
        start = f'could not merge "public.{name}": column {message}'
        assert stopped[name] == f"{start} doesn't hold that exactly"
        assert "give a wider --decimal" in hints(first)[name]
    assert '"many" of a row is 1,NaN,NULL: array<decimal(20,6)>' in stopped["keyless"]
    assert rows_in(spark, tmp_path / "wh", lists, lake) == [("1", "[1.500000, null]"), ("2", "[]")]

    moves = [
        update(50, {"n": "1.0"}, n="1.00", note="A"),
        delete(51, n="2.50"),
        insert(52, n="2.5", note="B"),
    ]
    directory.segment([(table, [update(50, id="11", unsent="n", wide="2.00")]), (keyed, moves)])
    wider, digits = ("30,8", 8) if lake == "delta" else ("30,6", 6)
    second = merge_into(spark, directory, tmp_path / "wh", format=lake, decimal=wider)
    zeros = "0" * digits
    assert (problems(second)["t"], problems(second)["keyed"]) == (None, None)
    assert types_of(spark, tmp_path / "wh", table, lake) == ["int", f"decimal({wider})", f"decimal({wider})"]
    wanted = [
        row
        for tens in ("", "1", "2")
        for row in (
            (f"{tens}1", f"1.5{zeros[1:]}", f"2.{zeros}" if tens == "1" else f"-0.01{zeros[2:]}"),
            (f"{tens}2", f"-12345678901234.9{zeros[1:]}", None),
            (f"{tens}3", f"3.{zeros}", f"1.{zeros}"),
        )
    ]
    assert rows_in(spark, tmp_path / "wh", table, lake) == sorted(wanted, key=str)
    assert rows_in(spark, tmp_path / "wh", keyed, lake) == [(f"1.{zeros}", "A"), (f"2.5{zeros[1:]}", "B")]


DOCUMENTS = ['{"b": 1.10, "a": [null, "x"]}', "null", '"null"', '"5"', "5", "[]", None]
PARSED = ['{"a":[null,"x"],"b":1.1}', "null", '"null"', '"5"', "5", "[]", None]
NO_VARIANT = {"twice": '{"a": 1, "b": {"a": 1, "a": 2}}', "digits": "[" + "1" * 39 + "]", "huge": "1e400"}


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_variants_hold_json_as_it_is(
    spark: SparkSession, tmp_path: Path, directory: Directory, lake: str
) -> None:
    """From each format; JSON's null stays distinct from NULL; a document that would change is an error."""
    table = table_schema("t", {**ID, "tags": pg_type(TEXTS), "doc": pg_type(JSONB)}, ("id",))
    unfit = {name: table_schema(name, {**ID, "doc": pg_type(JSON)}, ("id",)) for name in NO_VARIANT}
    before = table_schema("added", ID, ("id",))
    added = table_schema("added", {**ID, "doc": pg_type(JSON)}, ("id",))
    keyed = table_schema("keyed", {"doc": pg_type(JSONB), "more": pg_type(JSONB)}, ("doc",))
    keyless = table_schema("keyless", {"doc": pg_type(JSON)}, None)
    for tens, name in enumerate(ENCODINGS):
        directory.encoding = FORMATS[name]
        rows = [(tens * 10 + n, doc) for n, doc in enumerate(DOCUMENTS)]
        directory.segment([(table, [insert(10 + n, id=str(n), tags="{a}", doc=doc) for n, doc in rows])])
    directory.encoding = FORMATS["jsonl"]
    directory.segment(
        [
            *((unfit[name], [insert(10, id="1", doc=doc)]) for name, doc in NO_VARIANT.items()),
            (before, [insert(10, id="1")]),
            (keyed, [insert(10, doc='{"a": 1}', more=f'{{"{"1" * 39}": 1e5}}')]),
            (keyless, [insert(10 + n, doc=doc) for n, doc in enumerate(DOCUMENTS)]),
        ]
    )
    first = merge_into(spark, directory, tmp_path / "wh", format=lake, variant=True)
    stopped = {name: problem for name, problem in problems(first).items() if problem}
    assert set(stopped) == set(NO_VARIANT)
    for name, doc in NO_VARIANT.items():
        assert (
            f'column "doc" of the row (id) = (1) is {doc}: a variant has no duplicate keys' in stopped[name]
        )
    moved = update(60, {"id": "10"}, id="30", unsent="doc", tags="{b}")
    later = [update(50, id="1", unsent="doc", tags=None), moved, update(70, id="2", tags="{a}", doc="[1]")]
    directory.segment(
        [
            (table, later),
            (added, [insert(20, id="2", doc='{"a": 1}')]),
            (keyed, [update(20, doc='{"a": 1}', more="null")]),
        ]
    )
    second = merge_into(spark, directory, tmp_path / "wh", format=lake, variant=True)
    assert [problems(second)[name] for name in ("t", "added", "keyed")] == [None] * 3
    kept = {str(tens * 10 + n): ("[a]", doc) for tens in range(3) for n, doc in enumerate(PARSED)}
    kept |= {"1": (None, PARSED[1]), "2": ("[a]", "[1]"), "30": ("[b]", kept.pop("10")[1])}
    assert types_of(spark, tmp_path / "wh", table, lake) == ["int", "array<string>", "variant"]
    assert {id_: rest for id_, *rest in rows_in(spark, tmp_path / "wh", table, lake)} == {
        id_: list(rest) for id_, rest in kept.items()
    }
    logged = rows_in(spark, tmp_path / "wh", keyless, lake, "changelog")
    assert logged == sorted(((doc,) for doc in PARSED), key=str)
    assert rows_in(spark, tmp_path / "wh", added, lake) == [("1", None), ("2", '{"a":1}')]
    assert rows_in(spark, tmp_path / "wh", keyed, lake) == [('{"a": 1}', "null")]


def test_types_are_chosen_for_a_tables_whole_life(
    spark: SparkSession, tmp_path: Path, directory: Directory
) -> None:
    """Other options are refused, and the hint names those that the table was made with."""
    columns = {"day": pg_type(DATE), "n": pg_type(NUMERIC), "doc": pg_type(JSON)}
    tables = {name: table_schema(name, {**ID, name: kind}, ("id",)) for name, kind in columns.items()}
    directory.segment([(table, [insert(10, id="1")]) for table in tables.values()])
    chosen: dict[str, Any] = {"infinity": "string", "decimal": "20,6", "variant": True}
    merge_into(spark, directory, tmp_path / "chosen", **chosen)
    merge_into(spark, directory, tmp_path / "plain")
    directory.segment([(table, [insert(20, id="2")]) for table in tables.values()])
    asked: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
        "plain": (
            "plain",
            chosen,
            {"day": "leave out --infinity", "n": "leave out --decimal", "doc": "leave out --variant"},
        ),
        "chosen": (
            "chosen",
            {},
            {"day": "add --infinity string", "n": "add --decimal 20,6", "doc": "add --variant"},
        ),
        "narrower": ("chosen", {**chosen, "decimal": "20,5"}, {"n": "add --decimal 20,6"}),
    }
    for warehouse, options, remedies in asked.values():
        summary = merge_into(spark, directory, tmp_path / warehouse, dry_run=True, **options)
        wrong = {name: hint for name, hint in hints(summary).items() if hint}
        assert {
            name: hint.partition(",  or")[0].partition(", or")[0] for name, hint in wrong.items()
        } == remedies
    assert problems(summary)["n"] == (
        'could not merge "public.n": its column "n" is decimal(20,6) in the table, and decimal(20,5)'
        f' with these options, see "{directory.lines[1]["files"][1]["schema"]}"'
    )


def test_what_nothing_has_can_be_null(spark: SparkSession, tmp_path: Path, directory: Directory) -> None:
    """Each is counted: of an insert, of a row whose key changed, of a row that the table doesn't have."""
    old = table_schema("t", {**ID, "was": pg_type(TEXT), "note": pg_type(TEXT)}, ("id",))
    new = table_schema("t", {**ID, "doc": pg_type(TEXT), "note": pg_type(TEXT)}, ("id",))
    without = Change("I", 50, 0, {"id": "5", "doc": None, "note": "e"}, unchanged=frozenset({"doc"}))
    directory.segment([(old, [insert(10 + n, id=str(n), was="x", note=str(n)) for n in range(4)])])
    first = merge_into(spark, directory, tmp_path / "wh", missing_toast="null")
    assert_merged(first)
    directory.segment(
        [
            (
                new,
                [
                    update(20, id="0", unsent="doc", note="a"),
                    update(30, {"id": "1"}, id="8", unsent="doc", note="b"),
                    update(40, {"id": "7"}, id="9", unsent="doc", note="c"),
                    without,
                    delete(60, id="2"),
                    replace(without, commit_lsn=70, new={"id": "2", "doc": None, "note": "f"}),
                    update(80, id="3", doc="sent", note="d"),
                    update(90, id="3", unsent="doc", note="g"),
                ],
            )
        ]
    )
    stopped = merge_into(spark, directory, tmp_path / "wh")
    assert "was not sent (unchanged TOAST)" in problems(stopped)["t"]
    assert "--missing-toast null" in hints(stopped)["t"]
    second = merge_into(spark, directory, tmp_path / "wh", missing_toast="null")
    assert (second["error"], count(second, "missing"), count(second, "unfit")) == (None, 5, 0)
    assert rows_in(spark, tmp_path / "wh", new) == [
        ("0", None, "a"),
        ("2", None, "f"),
        ("3", "sent", "g"),
        ("5", None, "e"),
        ("8", None, "b"),
        ("9", None, "c"),
    ]


CHOSEN: dict[str, Any] = {"infinity": "string", "decimal": "20,6", "variant": True}


def test_deleted_rows_keep_such_values(spark: SparkSession, directory: Directory, warehouse: Path) -> None:
    columns = {"day": pg_type(DATE), "n": pg_type(NUMERIC), "doc": pg_type(JSONB)}
    table = table_schema("t", {**ID, **columns}, ("id",))
    rows = {id_: {"day": "infinity", "n": "1.5", "doc": f'{{"a":{id_}}}'} for id_ in "123"}
    directory.segment([(table, [insert(10 + n, id=id_, **row) for n, (id_, row) in enumerate(rows.items())])])
    assert_merged(merge_into(spark, directory, warehouse, soft_delete=True, **CHOSEN))
    changed = update(20, id="2", unsent="doc", day="-infinity", n="2")
    moved = update(30, {"id": "3"}, id="4", unsent="doc", day=None, n="3.000001")
    directory.segment([(table, [changed, moved, delete(40, id="1"), delete(50, id="4")])])
    assert_merged(merge_into(spark, directory, warehouse, soft_delete=True, **CHOSEN))
    assert rows_in(spark, warehouse, table) == [
        ("1", "infinity", "1.500000", '{"a":1}'),
        ("2", "-infinity", "2.000000", '{"a":2}'),
        ("3", "infinity", "1.500000", '{"a":3}'),
        ("4", None, "3.000001", '{"a":3}'),
    ]
    left = read_table(spark, warehouse, table).where("NOT _pgcdc_deleted").collect()
    assert [row["id"] for row in left] == [2]


def test_such_values_are_kept_where_the_key_changes(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """From a key of one column to one of two: a number, and a date as text."""
    columns = {**ID, "day": pg_type(DATE), "n": pg_type(NUMERIC), "doc": pg_type(JSONB)}
    before, after = (table_schema("t", columns, key) for key in (("id",), ("n", "day")))
    one, two = ({"id": id_, "day": "infinity", "n": f"{id_}.50", "doc": f'{{"a":{id_}}}'} for id_ in "12")
    directory.segment([(before, [insert(10, **one), insert(20, **two)])])
    assert_merged(merge_into(spark, directory, warehouse, **CHOSEN))
    moved = update(40, {"day": "infinity", "n": "2.5"}, "doc", id="2", day="-infinity", n="2.500")
    again = [update(30, None, "doc", id="3", day="infinity", n="1.5"), moved]
    directory.segment([(before, [update(25, id="2", unsent="doc", day="infinity", n="2.5")]), (after, again)])
    assert_merged(merge_into(spark, directory, warehouse, **CHOSEN))
    assert rows_in(spark, warehouse, after) == [
        ("2", "-infinity", "2.500000", '{"a":2}'),
        ("3", "infinity", "1.500000", '{"a":1}'),
    ]


@pytest.mark.parametrize("encoding", ["jsonl", "debezium"])
def test_values_have_no_limits_but_postgresqls(spark: SparkSession, tmp_path: Path, encoding: str) -> None:
    """Spark limits JSON by default to strings of 20 million characters, 1000 digits and 1000 levels."""
    types = {
        "doc": TEXTS if encoding == "debezium" else TEXT,
        "digits": JSONB,
        "levels": JSONB,
        "scalar": JSONB,
    }
    columns = {"id": pg_type(INT4), **{name: pg_type(oid) for name, oid in types.items()}}
    table = table_schema("t", columns, ("id",))
    long = "x" * 21_000_000
    values = {
        "doc": f"{{{long}}}" if encoding == "debezium" else long,
        "digits": f'{{"n": {"1" * 1500}}}',
        "levels": "[" * 1200 + "]" * 1200,
        "scalar": '"1"',
    }
    directory = Directory(tmp_path / "in", FORMATS[encoding])
    directory.segment([(table, [insert(10, id="1", **values)])])
    summary = merge_into(spark, directory, tmp_path / "wh")
    assert summary["error"] is None, summary["error"]
    (row,) = read_table(spark, tmp_path / "wh", table).collect()
    assert row.asDict() == {"id": 1, **values, "doc": [long] if encoding == "debezium" else long}
