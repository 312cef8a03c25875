"""`pgcdc spark-submit`: merge finished segments into tables with the bundled Spark job."""

import json as json_text
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pgcdc_cli.cli.command_tree import Command, examples, refuse_unmatched, usage_error
from pgcdc_cli.cli.printing import counted, facts, human_bytes, log_times, say, table, talk, warn, write
from pgcdc_cli.cli.units import checked, duration, hours, lsn, positive_duration
from pgcdc_cli.ending_signals import early_ending
from pgcdc_cli.lsn import Lsn

if TYPE_CHECKING:
    from pgcdc_cli.cli.command_tree import ClickContext
    from pgcdc_cli.spark.launch import SparkOptions
    from pgcdc_cli.spark.output import MergeSummary, TableMerge
    from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions

TABLES = "Tables"
WORK = "Work"
EACH_SECOND = "1s"


def digits(text: str) -> None:
    """Raise a usage error unless this is a precision and a scale."""
    from pgcdc_cli.spark.pgcdc_merge.options import parse_decimal

    try:
        parse_decimal(text)
    except ValueError as error:
        raise usage_error(str(error)) from error


class _Following(Command):
    """The command, whose `--follow` takes an optional interval."""

    def parse_args(self, ctx: "ClickContext", args: list[str]) -> list[str]:
        given = args[: args.index("--")] if "--" in args else args
        at = given.index("--follow") + 1 if "--follow" in given else 0
        if at and (at == len(given) or given[at].startswith("-")):
            args = [*args[: at - 1], f"--follow={EACH_SECOND}", *args[at:]]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add `spark-submit`."""
    app.command(
        "spark-submit",
        cls=_Following,
        epilog=examples(
            "pgcdc spark-submit --input changes --warehouse lake",
            "pgcdc spark-submit --input changes --warehouse lake --mode both --if-new",
            "pgcdc spark-submit --input changes --warehouse lake --follow",
            "pgcdc spark-submit --input changes --warehouse s3a://lake/shop --master yarn",
        ),
    )(spark_submit)


def spark_submit(  # noqa: PLR0913 - a command's options
    *,
    directory: Annotated[
        str, typer.Option("--input", metavar="DIR", help="Directory that `pgcdc stream -D` writes.")
    ],
    warehouse: Annotated[str, typer.Option(metavar="DIR", help="Directory or URI that holds the tables.")],
    master: Annotated[str, typer.Option(metavar="URL", help="Where Spark runs.")] = "local[*]",
    table_format: Annotated[
        Literal["delta", "iceberg"],
        typer.Option("--format", help="Format of the tables.", rich_help_panel=TABLES),
    ] = "delta",
    catalog: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Register the tables in this Spark catalog.", rich_help_panel=TABLES
        ),
    ] = None,
    mode: Annotated[
        Literal["merge", "changelog", "both"],
        typer.Option(help="Current rows, a log of all changes, or both.", rich_help_panel=TABLES),
    ] = "merge",
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="PATTERN",
            help="Only matching tables: schema.table, with * and ?.",
            rich_help_panel=TABLES,
        ),
    ] = None,
    metadata: Annotated[
        bool,
        typer.Option(
            "--metadata", help="Add columns _pgcdc_lsn and _pgcdc_commit_ts.", rich_help_panel=TABLES
        ),
    ] = False,
    soft_delete: Annotated[
        bool,
        typer.Option(
            "--soft-delete", help="Keep deleted rows, marked in _pgcdc_deleted.", rich_help_panel=TABLES
        ),
    ] = False,
    infinity: Annotated[
        Literal["null", "string"],
        typer.Option(
            help="Store infinite dates as NULL, or all dates and timestamps as text.", rich_help_panel=TABLES
        ),
    ] = "null",
    decimal: Annotated[
        str | None,
        typer.Option(
            metavar="P,S",
            callback=checked(digits),
            help="Type of numeric without precision, such as 38,18. Default: text.",
            rich_help_panel=TABLES,
        ),
    ] = None,
    variant: Annotated[
        bool, typer.Option("--variant", help="Store json and jsonb as VARIANT.", rich_help_panel=TABLES)
    ] = False,
    missing_toast: Annotated[
        Literal["error", "null"],
        typer.Option(
            help="Unchanged TOAST values that can't be found: stop, or store NULL.", rich_help_panel=TABLES
        ),
    ] = "error",
    readers: Annotated[
        Literal["any", "modern"] | None,
        typer.Option(
            help="Make Delta tables readable by any reader, or only by those that support deletion vectors."
            " Converts existing tables. Default: any for new ones.",
            rich_help_panel=TABLES,
        ),
    ] = None,
    recreated: Annotated[
        Literal["replace", "stop"],
        typer.Option(
            help="When a name now belongs to another table (recreated or renamed): replace the rows, or leave"
            " them.",
            rich_help_panel=TABLES,
        ),
    ] = "replace",
    compact: Annotated[
        bool,
        typer.Option(
            "--compact", help="Afterwards, merge the small files of each table.", rich_help_panel=WORK
        ),
    ] = False,
    retain: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            callback=checked(hours),
            help="Afterwards, remove files of versions older than this, such as 7d.",
            rich_help_panel=WORK,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="LSN",
            callback=checked(lsn),
            help="Only segments that end at or before this LSN.",
            rich_help_panel=WORK,
        ),
    ] = None,
    if_new: Annotated[
        bool,
        typer.Option(
            "--if-new", help="Exit at once, without Spark, if there is nothing new.", rich_help_panel=WORK
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done; write nothing.", rich_help_panel=WORK)
    ] = False,
    follow: Annotated[
        str | None,
        typer.Option(
            metavar="[INTERVAL]",
            callback=checked(positive_duration),
            help="Keep running, and merge segments as they are finished. Default interval: 1s.",
            rich_help_panel=WORK,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    extra: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGS]", help="After --: any arguments of spark-submit."),
    ] = None,
) -> None:
    """Merge a directory into Delta or Iceberg tables.

    Every finished segment is merged exactly once, however often the command is run and wherever it was
    interrupted. A table without a key gets a changelog instead. When a merge ends, Spark's own output is in
    _pgcdc.log in the warehouse; to follow it, use --verbose.
    """
    from pgcdc_cli.spark.launch import SparkOptions, submit
    from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions
    from pgcdc_cli.spark.warehouse import matches_nothing

    if readers is not None and table_format == "iceberg":
        raise usage_error("--readers: Iceberg tables are the same for every reader")
    options = MergeOptions(
        input=directory,
        warehouse=warehouse,
        format=table_format,
        catalog=catalog,
        mode=mode,
        tables=tuple(map(_pattern, tables or ())),
        until=None if until is None else lsn(until),
        dry_run=dry_run,
        metadata=metadata,
        soft_delete=soft_delete,
        infinity=infinity,
        decimal=decimal,
        variant=variant,
        missing_toast=missing_toast,
        readers=readers,
        recreated=recreated,
        follow=None if follow is None else duration(follow),
        compact=compact,
        retain=None if retain is None else hours(retain),
    )
    if follow is not None:
        if if_new or dry_run or until is not None:
            raise usage_error("--follow: leave out --if-new, --dry-run and --until")
        log_times()
        _follow(options, SparkOptions(master, talk.verbosity > 0, tuple(extra or ())), json=json)
        return
    if matches_nothing(options):
        refuse_unmatched(options.tables)
    if if_new and _is_up_to_date(options, json=json):
        return
    shows_progress = sys.stderr.isatty() and talk.verbosity >= 0
    spark = SparkOptions(master, talk.verbosity > 0, tuple(extra or ()))
    summary = submit(options, spark, _say_progress if shows_progress else None, say)
    if json:
        write(json_text.dumps(summary.data))
    else:
        _print(summary, dry_run=dry_run)
    for warning in summary.warnings:
        warn(warning)
    if summary.failure is not None:
        raise summary.failure
    refuse_unmatched(summary.unmatched)


def _follow(options: "MergeOptions", spark: "SparkOptions", *, json: bool) -> None:
    """Merge until INT or TERM; the first one lets a running merge finish, the second doesn't."""
    from pgcdc_cli.spark.launch import FollowControl, follow

    with closing(FollowControl()) as control:

        def end(number: int, frame: FrameType | None) -> None:
            if control.stopped:
                signal.default_int_handler(number, frame)
            control.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        signal.signal(signal.SIGHUP, lambda *_: control.look())
        early_ending.check()
        follow(options, spark, control, _Merges(json=json).tell, say)


class _Merges:
    """Reports one merge after another: a line each, and warnings and tables' problems if they are new."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._segment = 0
        self._said: set[str] = set()

    def tell(self, summary: "MergeSummary") -> None:
        if self._json:
            write(json_text.dumps(summary.data))
        elif summary.segment != self._segment and talk.verbosity >= 0:
            write(_one_line(summary))
        self._segment = summary.segment
        problems = {f"{one.problem}; hint: {one.hint}" for one in summary.tables if one.problem is not None}
        # Several problems have a warning each, which would repeat them.
        warnings = {warning for warning in summary.warnings if not warning.startswith("could not merge ")}
        for line in sorted((warnings | problems) - self._said):
            warn(line)
        self._said = warnings | problems


def _pattern(text: str) -> str:
    """As in pgcdc stream, a table's name alone is in the schema `public`."""
    if "." in text:
        return text
    if set(text) & set("*?["):
        raise usage_error(f'--table: "{text}" is not like schema.table')
    return f"public.{text}"


def _is_up_to_date(options: "MergeOptions", *, json: bool) -> bool:
    """Whether everything is merged, which is then printed."""
    from pgcdc_cli.spark.warehouse import has_no_segment

    merged = (0, Lsn(0)) if has_no_segment(options.input) else _last_merged(options)
    if merged is None:
        return False
    segment, position = merged
    if json:
        content = {"format_version": 1, "mode": options.mode, "segment": segment, "lsn": str(position)}
        nothing: dict[str, Any] = {"tables": [], "warnings": [], "unmatched": []}
        write(json_text.dumps({**content, **nothing, "error": None, "seconds": 0.0}))
    elif talk.verbosity > 0 or (talk.verbosity == 0 and sys.stdout.isatty()):
        found = f"merged up to segment {segment}, LSN {position}" if segment else "no segment is finished yet"
        write(f"nothing new: {found}")
    return True


def _last_merged(options: "MergeOptions") -> tuple[int, Lsn] | None:
    """Return the last segment and its LSN if everything is merged; a message says if only Spark can tell."""
    from pgcdc_cli.spark.warehouse import last_merged, local_path

    if local_path(options.warehouse) is None or local_path(options.input) is None:
        say("can't tell without Spark whether anything is new: not everything is on this machine")
        return None
    return last_merged(options)


def _say_progress(done: Mapping[str, Any]) -> None:
    name = done["table"] if done["mode"] == "merge" else f"{done['table']} (changelog)"
    counts = f"{done['inserted']:,} inserted, {done['updated']:,} updated, {done['deleted']:,} deleted"
    say(f"[{done['done']}/{done['of']}] {name}: {done['problem'] or counts}")


def _print(summary: "MergeSummary", *, dry_run: bool) -> None:
    """Print a table on a terminal, otherwise one line; with -q neither."""
    if dry_run:
        _print_plan(summary)
        return
    if talk.verbosity < 0:
        return
    if not sys.stdout.isatty():
        write(_one_line(summary))
        return
    nulls = [name for name in ("unfit", "missing") if any(getattr(one, name) for one in summary.tables)]
    effects = ["inserted", "updated", "deleted", *nulls]
    headings = ["table", *effects, "segment", "LSN", "version", "problem"]
    for line in table(headings, (_cells(one, effects) for one in summary.tables), headings[1:-1]):
        write(line)
    write("")
    for line in facts([("merged up to", _position(summary)), ("took", f"{summary.seconds:.1f} s")]):
        write(line)


def _position(summary: "MergeSummary") -> str:
    return f"segment {summary.segment}, LSN {summary.lsn}"


def _one_line(summary: "MergeSummary") -> str:
    merged = [one for one in summary.tables if one.problem is None]
    tables = counted(len(merged), "table")
    names = ["inserted", "updated", "deleted", "unfit", "missing"]
    found = [(sum(getattr(one, name) for one in merged), name) for name in names]
    counts = ", ".join(f"{count} {name}" for index, (count, name) in enumerate(found) if count or index < 3)
    return f"merged {tables} up to {_position(summary)}: {counts}, in {summary.seconds:.1f} s"


def _print_plan(summary: "MergeSummary") -> None:
    headings = ["table", "segments", "files", "changes", "size", "into", "problem"]
    planned = [one for one in summary.tables if one.plan is not None or one.problem is not None]
    if not planned:
        write(f"nothing to merge beyond {_position(summary)}")
        return
    for line in table(headings, map(_plan_cells, planned), headings[1:5]):
        write(line)


def _plan_cells(merge: "TableMerge") -> list[str]:
    plan = merge.plan
    if plan is None:
        return [merge.name, "-", "-", "-", "-", merge.path or "-", merge.problem or ""]
    first, last = plan.first_segment, plan.last_segment
    segments = str(last) if first == last else f"{first}-{last}"
    sizes = [f"{plan.files:,}", f"{plan.rows:,}", human_bytes(plan.bytes)]
    return [merge.name, segments, *sizes, plan.path, merge.problem or ""]


def _cells(merge: "TableMerge", effects: Sequence[str]) -> list[str]:
    counts = [f"{getattr(merge, name):,}" for name in effects]
    version = "-" if merge.version is None else str(merge.version)
    return [merge.name, *counts, str(merge.segment), str(merge.lsn), version, merge.problem or ""]
