"""`pgcdc spark-submit`: merges finished segments into tables, by the bundled Spark job."""

import json as json_text
from typing import TYPE_CHECKING, Annotated

import typer

from pgcdc_cli.cli.base import Command, examples
from pgcdc_cli.cli.printing import facts, say, table, talk, write

if TYPE_CHECKING:
    from pgcdc_cli.spark.launch import MergeSummary, TableMerge


def register(app: typer.Typer) -> None:
    """Add `spark-submit`."""
    app.command(
        "spark-submit",
        cls=Command,
        epilog=examples(
            "pgcdc spark-submit --input changes --warehouse lake",
            "pgcdc spark-submit --input changes --warehouse s3a://lake/shop --master yarn",
        ),
    )(spark_submit)


def spark_submit(
    *,
    directory: Annotated[
        str, typer.Option("--input", metavar="DIR", help="Directory that `pgcdc stream -D` writes.")
    ],
    warehouse: Annotated[str, typer.Option(metavar="DIR", help="Directory or URI that holds the tables.")],
    master: Annotated[str, typer.Option(metavar="URL", help="Where Spark runs.")] = "local[*]",
    skip_keyless: Annotated[
        bool, typer.Option("--skip-keyless", help="Warn of tables without a key instead of failing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    extra: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGS]", help="Behind --: anything that spark-submit takes."),
    ] = None,
) -> None:
    """Merge the changes in a directory into Delta tables.

    Every finished segment is merged exactly once, however often the command is run and wherever it was
    interrupted. --verbose shows what Spark says.
    """
    from pgcdc_cli.spark.launch import MergeOptions, submit

    summary = submit(
        MergeOptions(
            input=directory,
            warehouse=warehouse,
            master=master,
            skip_keyless=skip_keyless,
            verbose=talk.verbosity > 0,
            extra=tuple(extra or ()),
        )
    )
    if json:
        write(json_text.dumps(summary.data))
    else:
        _print(summary)
    for warning in summary.warnings:
        say(f"warning: {warning}")
    if summary.failure is not None:
        raise summary.failure


def _print(summary: "MergeSummary") -> None:
    headings = ["table", "inserted", "updated", "deleted", "segment", "LSN", "version", "problem"]
    for line in table(headings, map(_cells, summary.tables), headings[1:-1]):
        write(line)
    write("")
    position = f"segment {summary.segment}, LSN {summary.lsn}"
    for line in facts([("merged up to", position), ("took", f"{summary.seconds:.1f} s")]):
        write(line)


def _cells(merge: "TableMerge") -> list[str]:
    counts = [f"{count:,}" for count in (merge.inserted, merge.updated, merge.deleted)]
    version = "-" if merge.version is None else str(merge.version)
    return [merge.table, *counts, str(merge.segment), str(merge.lsn), version, merge.problem or ""]
