"""The promise: whatever happens to a table, the merged table is the table."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import scale
from merge_directories import FORMATS, Directory, merge_into, merged_rows
from merge_histories import INT4, TEXT, History, pg_type, random_history, table_schema
from merge_oracle import fold, insert, update
from pyspark.sql import SparkSession

from pgcdc_cli.changes.table import ReplicaIdentity
from pgcdc_cli.spark.pgcdc_merge import merge_table
from pgcdc_cli.spark.pgcdc_merge.fold import fold as fold_rows

SPACES = 20 * scale.factor


@pytest.fixture(scope="module")
def histories() -> list[History]:
    default, full, index = ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL, ReplicaIdentity.INDEX
    return [
        random_history("plain", ("a",), default, spaces=SPACES),
        random_history("pair", ("b", "a"), index, spaces=SPACES),
        random_history("full", ("a", "b"), full, spaces=SPACES),
        random_history("truncated5", ("a", "b"), default, spaces=1, truncates=True),
        random_history("sent", ("a", "b"), default, spaces=SPACES, toasts=False),
        random_history("sent_truncated", ("a", "b"), full, spaces=1, truncates=True, toasts=False),
    ]


def test_oracle_agrees_with_the_history_that_made_the_changes(histories: Sequence[History]) -> None:
    for history in histories:
        assert len(history.changes) > 40
        assert history.truncates == any(change.op == "T" for change in history.changes)
        assert fold(history.changes, history.key) == history.rows


LONG = [pytest.param(encoding, marks=pytest.mark.long) for encoding in ("jsonl", "arrow", "debezium")]


@pytest.mark.parametrize("encoding", ["mixed", *LONG])
def test_merged_tables_are_what_the_oracle_says(
    spark: SparkSession, tmp_path: Path, histories: Sequence[History], encoding: str
) -> None:
    """Four segments: the first two in one run, the others in a second, which finds rows to change."""
    mixed = ["debezium.zst", "jsonl.gz", "arrow+zstd", "debezium"]
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    cut = [history.parts(4) for history in histories]
    for number in range(4):
        directory.encoding = FORMATS[mixed[number] if encoding == "mixed" else encoding]
        directory.segment([(h.table, some[number]) for h, some in zip(histories, cut, strict=True)])
        if number % 2:
            summary = merge_into(spark, directory, tmp_path / "wh")
            assert summary["error"] is None
    listed = {(file["table"], file["unchanged"]) for line in directory.lines for file in line["files"]}
    assert {(h.table.display, h.toasts) for h in histories} <= listed
    for history in histories:
        assert merged_rows(spark, tmp_path / "wh", history.table) == fold(history.changes, history.key)


def test_a_wide_table_of_which_few_values_are_not_sent(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found, also under the row's former key, and the plan is made for their columns only."""
    folded = []
    monkeypatch.setattr(
        merge_table,
        "fold",
        lambda rows, version: folded.append(version.maybe_unsent) or fold_rows(rows, version),
    )
    names = [f"c{number}" for number in range(30)]
    table = table_schema("wide", {"id": pg_type(INT4), **dict.fromkeys(names, pg_type(TEXT))}, ("id",))
    new = dict.fromkeys(names, "new")
    changes = [insert(10, id=str(key), **dict.fromkeys(names, f"old {key}")) for key in range(4)]
    directory.segment([(table, changes)])
    assert merge_into(spark, directory, warehouse)["error"] is None
    more = [
        update(20, {"id": "0"}, unsent="c7", **{**new, "id": "9"}),
        update(30, unsent="c20", **{**new, "id": "9"}),
        update(40, unsent="c20", **{**new, "id": "1"}),
        update(50, **{**new, "id": "2"}),
    ]
    directory.segment([(table, more)])
    assert merge_into(spark, directory, warehouse)["error"] is None
    assert merged_rows(spark, warehouse, table) == fold([*changes, *more], ("id",))
    assert folded == [[], [8, 21]]
