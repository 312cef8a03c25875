"""`pgcdc doctor`: check whether a stream would run, and lose nothing."""

import json as json_text
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from pgcdc_cli.cli.command_tree import Command, examples, usage_error
from pgcdc_cli.cli.connection_options import connecting
from pgcdc_cli.cli.printing import flush, wants_colour, write
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.terminal import safe

if TYPE_CHECKING:
    from pgcdc_cli.catalog.doctor import Finding, Level

_LEVELS: "tuple[Level, ...]" = ("error", "warning", "ok")
_REPEATED = "the statements above fix this, too"
_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[33m", "ok": "\x1b[32m"}


def register(app: typer.Typer) -> None:
    """Add `doctor`."""
    app.command(
        "doctor",
        cls=Command,
        epilog=examples(
            "pgcdc doctor -d shop -S shop_slot --publication shop_pub",
            "pgcdc doctor -d shop --publication shop_pub --role streamer",
        ),
    )(doctor)


@connecting
def doctor(
    *,
    conninfo: str,
    slot: Annotated[
        str | None, typer.Option("-S", "--slot", metavar="SLOT", help="Slot that will be streamed.")
    ] = None,
    publication: Annotated[
        list[str] | None,
        typer.Option("--publication", metavar="NAME", help="Publication that will be streamed."),
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Print the SQL that grants a role the privileges it needs, and no more."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check for what would stop a stream or lose changes.

    Checks the server, the role that connects, publications and slots: those given, or all of the database.
    Each finding is an error, a warning or ok, and says how to fix it; with an error, the exit status is 15.
    Nothing is changed.
    """
    from pgcdc_cli.catalog import Catalog

    if role is not None and (json or slot is not None):
        raise usage_error("--role prints SQL: it excludes --json and -S")
    with Catalog(conninfo) as catalog:
        if role is not None:
            for statement in catalog.streaming_grants(role, publication or []):
                write(statement)
            return
        # What several publications share, such as a table without a key, is found for each of them.
        findings = list(dict.fromkeys(catalog.diagnose(slot, publication or [])))
    findings.sort(key=lambda finding: _LEVELS.index(finding.level))
    shown = list(_without_repeats(findings))
    if json:
        content = {"format_version": 1, "findings": [asdict(finding) for finding in shown]}
        write(json_text.dumps(content))
    else:
        _print(shown)
    _judge(findings)


def _without_repeats(findings: "Sequence[Finding]") -> "Iterator[Finding]":
    """Leave out a finding's statements if earlier findings have all of them: some work only once.

    A part of them stays as it is: BEGIN and COMMIT, or the reload after a changed setting, are needed again.
    """
    seen: set[str] = set()
    for finding in findings:
        repeated = finding.statements and seen.issuperset(finding.statements)
        seen.update(finding.statements)
        yield replace(finding, statements=(), advice=finding.advice or _REPEATED) if repeated else finding


def _print(findings: "Sequence[Finding]") -> None:
    colours, plain = (_COLOURS, "\x1b[0m") if wants_colour(sys.stdout) else (dict.fromkeys(_LEVELS, ""), "")
    for finding in findings:
        word = f"{colours[finding.level]}{finding.level}{plain}{' ' * (7 - len(finding.level))}"
        write(f"{word}  {safe(finding.message)}")
        for line in _remedy(finding):
            write(" " * 9 + safe(line))


def _remedy(finding: "Finding") -> Iterator[str]:
    yield from finding.statements
    if finding.advice is not None:
        yield f"({finding.advice})"


def _judge(findings: "Sequence[Finding]") -> None:
    """Raise UNFIT if any finding is an error."""
    counts = Counter(finding.level for finding in findings)
    if not counts["error"]:
        return
    flush()
    found = ", ".join(
        f"{counts[level]} {level}{'' if counts[level] == 1 else 's'}"
        for level in _LEVELS[:2]
        if counts[level]
    )
    raise PgcdcError(ErrorKind.UNFIT, f"could not find everything in order: {found}", hint=_hint(findings))


def _hint(findings: "Sequence[Finding]") -> str | None:
    """Say what to do about errors that no statement fixes; None for the usual hint."""
    by_statements = [bool(finding.statements) for finding in findings if finding.level == "error"]
    if all(by_statements):
        return None
    if not any(by_statements):
        return "no statement fixes this: follow the advice under each error, then run pgcdc doctor again"
    return (
        "run the statements under the errors, follow the advice under those that no statement fixes, then run"
        " pgcdc doctor again"
    )
