"""The whole way once: a server, a shop under load, files, Spark tables, and proof that they are equal."""

import json
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

from pgcdc_cli.demo import shop, travel, witness
from pgcdc_cli.demo.actions import Kind
from pgcdc_cli.demo.children import Children, interruptible
from pgcdc_cli.demo.compare import compare
from pgcdc_cli.demo.opening import Opening
from pgcdc_cli.demo.report import DemoResult, DemoSettings, Reporter, TableResult
from pgcdc_cli.demo.stage import PUBLICATION, SLOT, WITNESS, Stage, new_directory, running_server


def run_demo(settings: DemoSettings, reporter: Reporter) -> DemoResult:
    """Run the demo and leave its directory; its server and all else that it started are gone at the end.

    Raises USAGE if the directory is there already and not empty, what a failing pgcdc command said, and
    KeyboardInterrupt also for SIGTERM and SIGHUP. Tables that differ raise nothing: the result says so.
    """
    began = time.monotonic()
    directory = new_directory(settings.keep)
    children = Children(reporter.command, reporter.output)
    reporter.step(1, 6, "Start PostgreSQL 18 and build the shop")
    with (
        interruptible(),
        running_server() as server,
        children,
        psycopg.connect(server.uri(), autocommit=True) as connection,
    ):
        stage = Stage(settings, reporter, children, connection, server.uri(), directory)
        shop.create(stage.uri)
        return _demonstrate(stage, began)


def _demonstrate(stage: Stage, began: float) -> DemoResult:
    step = stage.reporter.step
    step(2, 6, "Publish its tables and create a slot")
    _publish(stage)
    step(3, 6, "Open the shop and stream its changes into files")
    opening = Opening(stage)
    takings = opening.run()
    step(4, 6, "Close the shop and stream to the end of the log")
    catch_up = opening.catch_up()
    step(5, 6, "Merge the rest into the Delta tables")
    opening.finish_merge()
    first = travel.take_down(stage.warehouse)
    stage.finish_merge(stage.children.start(*stage.merge_command))
    second = travel.take_down(stage.warehouse)
    step(6, 6, "Compare every table with its source, and read the lake as each merge left it")
    tables = _compare(stage)
    return DemoResult(
        directory=stage.directory,
        tables=tables,
        views=[travel.view(stage.warehouse, moment) for moment in (first, second)],
        orders=travel.changed_orders(stage.warehouse, first, second),
        transactions=takings.counts[Kind.TRANSACTION],
        kinds=dict(takings.counts),
        segments=len(stage.segments()),
        rate=sum(table.events for table in tables) / takings.seconds,
        lag=takings.lag,
        catch_up=catch_up,
        elapsed=time.monotonic() - began,
        suggestions=_suggestions(stage),
    )


def _publish(stage: Stage) -> None:
    """Publish, make the slot, and only then fill the shop: the stream brings its first rows, too."""
    server = ["-d", stage.uri]
    stage.children.run("publication", "create", PUBLICATION, *server, "--schema", shop.SCHEMA)
    stage.children.run("slot", "create", SLOT, *server)
    witness.create(stage.connection, SLOT, WITNESS)
    shop.fill(stage.uri, stage.settings.seed)


def _compare(stage: Stage) -> list[TableResult]:
    changed = witness.count_changes(stage.connection, WITNESS, PUBLICATION)
    return [_table_result(stage, name, changed.get(f"{shop.SCHEMA}.{name}", 0)) for name in shop.TABLES]


def _table_result(stage: Stage, name: str, changed: int) -> TableResult:
    table = f"{shop.SCHEMA}.{name}"
    files = [file for segment in stage.segments() for file in segment["files"] if file["table"] == table]
    events = sum(file["rows"] for file in files)
    found = compare(stage.connection, table, stage.warehouse / shop.SCHEMA / name)
    lost = [f"{changed} changes on the server, {events} events in the files"] * (changed != events)
    return TableResult(
        table=table,
        source_rows=found.source_rows,
        merged_rows=found.copy_rows,
        changed=changed,
        events=events,
        files=len(files),
        bytes=sum(file["bytes"] for file in files),
        differences=[*lost, *found.differences],
    )


def _suggestions(stage: Stage) -> Sequence[str]:
    """Look at changes, at a merged table, and at how far everything is, with the versions of one moment."""
    files, warehouse = str(stage.files), str(stage.warehouse)
    path = json.dumps(str(stage.warehouse / shop.SCHEMA / "orders"))
    orders = f'QueryBuilder().register("orders", DeltaTable({path}))'
    query = json.dumps("SELECT status, count(*) AS orders, sum(total) AS total FROM orders GROUP BY status")
    look = f"{orders}.execute({query}).read_all()"
    commands = [
        [_program("pgcdc"), "show", files, "--table", "shop.orders", "--limit", "10"],
        [_program("python"), "-c", f"from deltalake import DeltaTable, QueryBuilder; print({look})"],
        [_program("pgcdc"), "status", files, "--warehouse", warehouse],
    ]
    return [shlex.join(command) for command in commands]


def _program(name: str) -> str:
    """Name a program as it can be typed: with its directory if PATH has none or another's."""
    ours = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    return name if found is not None and Path(found).parent == ours.parent else str(ours)
