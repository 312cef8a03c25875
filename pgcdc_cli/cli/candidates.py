"""`pgcdc __complete KIND LINE`: what a server or a directory has to offer for the word at a line's end.

The completion scripts ask it. It is quick or silent: whoever presses Tab waits for it, and wants no errors.
"""

import os
import shlex
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pgcdc_cli.cli.command_tree import ClickCommand
from pgcdc_cli.cli.connection_options import connection_string
from pgcdc_cli.cli.printing import PROGRAM, write

COMMAND = "__complete"

PATIENCE = "PGCDC_COMPLETION_SECONDS"
"""The variable that says how long the server may take to connect and answer; 0.3 without it."""

QUERIES = {
    "databases": "SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate",
    "publications": "SELECT pubname FROM pg_publication",
    "schemas": "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'",
    "slots": "SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'logical' AND NOT temporary",
    "tables": (
        "SELECT nspname || '.' || relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE relkind IN ('r', 'p') AND nspname !~ '^pg_' AND nspname <> 'information_schema'"
    ),
}
STORED = "stored"
"""Tables of the directory that the line names, rather than of a server."""

_CONNECTION = ("dbname", "host", "port", "username")


def complete(root: ClickCommand, arguments: Sequence[str]) -> int:
    """Print a candidate a line, or nothing at all; gives the exit status, always 0."""
    with suppress(Exception):
        kind, line = arguments
        options = _options_of(root, _before_cursor(line))
        names = _stored(options) if kind == STORED else _asked(QUERIES[kind], options)
        for name in sorted(names):
            # A line has room for no other.
            if name.isprintable():
                write(name)
    return 0


def _before_cursor(line: str) -> list[str]:
    """Split a line into words, without the one that is to be completed and the option that it belongs to."""
    words = shlex.split(line) if line[-1:].isspace() else shlex.split(line)[:-1]
    return words[:-1] if words[-1].startswith("-") and "=" not in words[-1] else words


def _options_of(root: ClickCommand, words: Sequence[str]) -> dict[str, Any]:
    """Read the line as far as it goes, with the variables and the file that give defaults."""
    command, context, rest = root, root.make_context(PROGRAM, [], resilient_parsing=True), list(words[1:])
    while members := getattr(command, "commands", None):
        at = next(number for number, word in enumerate(rest) if word in members)
        command = members[rest[at]]
        # What stands before a command may stand behind it as well.
        name, rest = rest[at], rest[:at] + rest[at + 1 :]
        own = [] if hasattr(command, "commands") else rest
        context = command.make_context(name, own, parent=context, resilient_parsing=True)
    return dict(context.params)


def _asked(query: str, options: dict[str, Any]) -> Iterable[str]:
    from pgcdc_cli.replication.session import connect

    given = {name: options[name] for name in _CONNECTION}
    conninfo = connection_string(**given, password=None)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, float(os.environ.get(PATIENCE, "0.3")))
    with connect(conninfo) as connection:
        return [str(name) for (name,) in connection.execute(query.encode())]


def _stored(options: dict[str, Any]) -> Iterable[str]:
    from pgcdc_cli.directory.file_names import MANIFEST
    from pgcdc_cli.directory.manifest import read_manifest

    directories = options.get("paths") or [options.get("directory")]
    segments = [segment for path in directories for segment in read_manifest(str(Path(path) / MANIFEST))]
    return {file.table for segment in segments for file in segment.files if file.table is not None}
