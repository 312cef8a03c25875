"""Completion in bash, zsh and fish: scripts made from the command tree, and the names that they ask for.

The scripts contain commands and options, so that completing these needs no start of Python. Each script first
finds the command among the words before the cursor (`pgcdc slot create`), then offers its members, its
options, or an option's values. For names of slots, tables and so on it calls `pgcdc __complete KIND LINE`,
which is quick or prints nothing: a user who presses Tab waits for it, and wants no errors.
"""

import os
import shlex
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pgcdc_cli.cli.command_tree import ClickCommand, ClickParameter, choices, summary, value_name, walk
from pgcdc_cli.cli.connection_options import connection_string
from pgcdc_cli.cli.printing import PROGRAM, write

_HEAD = "# Completion of pgcdc's command line; written by: python -m pgcdc_cli.cli.generate"
_HELP = "Show help and exit"


_KINDS = {
    "-d": "databases",
    "-S": "slots",
    "--publication": "publications",
    "--table": "tables",
    "--exclude-table": "tables",
    "--resnapshot": "tables",
    "--add-table": "tables",
    "--drop-table": "tables",
    "--set-table": "tables",
    "--schema": "schemas",
    "--add-schema": "schemas",
    "--drop-schema": "schemas",
}
_WORDS = {"LSN|now": ("now",), "OP": ("I", "U", "D", "T", "M", "R")}
"""Values to offer for a placeholder that stands for more than a fixed choice."""

_NEW = {"pgcdc slot create", "pgcdc publication create"}
_OF_DIRECTORIES = {"pgcdc show", "pgcdc spark-submit"}


class Option(NamedTuple):
    """An option; `values` are the words to offer, None for a flag.

    `files` is `d` or `f` if names of directories or files are offered, `kind` the kind of names to get from
    `pgcdc __complete`. `begun`: the words are beginnings, such as `decimal.handling.mode=`.
    """

    names: tuple[str, ...]
    summary: str
    values: tuple[str, ...] | None
    files: str = ""
    kind: str = ""
    begun: bool = False


class Node(NamedTuple):
    """A command; `files`: its arguments are paths; `kind`: the kind of names that its arguments are."""

    words: str
    members: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]
    files: str
    kind: str


def scripts(root: ClickCommand) -> dict[str, str]:
    """Return the scripts: text by file name."""
    nodes = [_node(path, command) for path, command in walk(root)]
    writers: dict[str, Callable[[list[Node]], Iterator[str]]] = {
        "pgcdc.bash": _bash,
        "_pgcdc": _zsh,
        "pgcdc.fish": _fish,
    }
    return {name: "\n".join(writer(nodes)) + "\n" for name, writer in writers.items()}


def _node(path: Sequence[str], command: ClickCommand) -> Node:
    words = " ".join(path)
    members = getattr(command, "commands", {}).items()
    options = [_option(words, p) for p in command.params if p.param_type_name == "option"]
    arguments = [value_name(p) for p in command.params if p.param_type_name == "argument"]
    return Node(
        words,
        tuple((name, summary(member)) for name, member in members),
        (*options, Option(("-?", "--help"), _HELP, None)),
        "".join(map(_files, arguments)),
        f"{path[1]}s" if len(path) > 2 and words not in _NEW and arguments else "",
    )


def _option(command: str, parameter: ClickParameter) -> Option:
    value = value_name(parameter)
    names = (*parameter.opts, *parameter.secondary_opts)
    begun = _beginnings(names)
    words = (begun or _WORDS.get(value, tuple(choices(parameter)))) if value else None
    kind = next((_KINDS[name] for name in names if name in _KINDS), "")
    if kind == "tables" and command in _OF_DIRECTORIES:
        kind = "stored"
    return Option(names, (parameter.help or "").rstrip("."), words, _files(value), kind, bool(begun))


def _beginnings(names: Sequence[str]) -> tuple[str, ...]:
    """List what the values of an option begin with, if it sets others by their names."""
    from pgcdc_cli.formats.debezium.properties import PROPERTIES
    from pgcdc_cli.formats.debezium.transform_properties import documented
    from pgcdc_cli.formats.wal2json.wal2json_options import OPTION_DOCS

    known: tuple[str, ...] = ()
    if "-c" in names:
        known = tuple(one.name for one in (*PROPERTIES, *documented()) if "NAME" not in one.name)
    elif "--wal2json-option" in names:
        known = tuple(OPTION_DOCS)
    return tuple(f"{name}=" for name in known)


def _files(value: str) -> str:
    return {"DIR": "d", "FILE": "f", "PATH": "f"}.get(value, "")


def _paths(nodes: list[Node]) -> str:
    return "|".join(f'"{node.words}"' for node in nodes if node.words != "pgcdc")


def _bash(nodes: list[Node]) -> Iterator[str]:
    yield _HEAD
    yield "_pgcdc_offer() {"
    yield "    # By lines: a file's name may hold blanks."
    yield "    local line"
    yield '    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen "$@")'
    yield "}"
    yield "_pgcdc_files() {"
    yield "    # bash 3 has no compopt, and quotes nothing then."
    yield "    compopt -o filenames 2>/dev/null"
    yield '    _pgcdc_offer "$@"'
    yield "}"
    yield "_pgcdc_begin() {"
    yield "    compopt -o nospace 2>/dev/null"
    yield '    _pgcdc_offer "$@"'
    yield "}"
    yield from _bash_ask()
    yield "_pgcdc() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"'
    yield "    local command=pgcdc members='' options='' i"
    yield "    COMPREPLY=()"
    yield "    # bash takes --option=value apart into three words."
    yield '    if [ "$word" = "=" ]; then word=""'
    yield '    elif [ "$previous" = "=" ]; then previous="${COMP_WORDS[COMP_CWORD-2]}"; fi'
    yield "    for ((i = 1; i < COMP_CWORD; i++)); do"
    yield '        case "$command ${COMP_WORDS[i]}" in'
    yield f'            {_paths(nodes)}) command="$command ${{COMP_WORDS[i]}}" ;;'
    yield "        esac"
    yield "    done"
    yield '    case "$command $previous" in'
    for action, patterns in _actions(nodes, _bash_values).items():
        yield f"        {'|'.join(patterns)}) {action}; return ;;"
    yield "    esac"
    yield '    case "$command" in'
    for node in nodes:
        yield f'        "{node.words}")'
        yield f"            members={shlex.quote(' '.join(name for name, _ in node.members))}"
        yield f"            options={shlex.quote(' '.join(_option_names(node)))}"
        if node.files:
            yield f'            case "$word" in -*) ;; *) {_bash_files(node.files)} ;; esac'
        if node.kind:
            yield f'            case "$word" in -*) ;; *) _pgcdc_ask {node.kind} ;; esac'
        yield "            ;;"
    yield "    esac"
    yield '    case "$word" in'
    yield '        -*) _pgcdc_offer -W "$options" -- "$word" ;;'
    yield '        *) _pgcdc_offer -W "$members" -- "$word" ;;'
    yield "    esac"
    yield "}"
    yield "complete -F _pgcdc pgcdc"


def _bash_ask() -> Iterator[str]:
    yield "_pgcdc_ask() {"
    yield "    # Names are compared and quoted, never expanded: anybody may have made them."
    yield '    local line quote="\'"'
    yield '    local begun="${word#$quote}"'
    yield "    while IFS= read -r line; do"
    yield '        [[ "$line" == "$begun"* ]] || continue'
    yield '        if [ "$begun" = "$word" ]; then COMPREPLY+=("$(printf %q "$line")")'
    yield "        # bash keeps the quote that is begun, and ends it."
    yield '        else COMPREPLY+=("${line//$quote/$quote\\\\$quote$quote}"); fi'
    yield '    done < <(pgcdc __complete "$1" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)'
    yield "}"


def _bash_values(option: Option) -> str:
    if option.kind:
        return f"_pgcdc_ask {option.kind}"
    if option.files:
        return _bash_files(option.files)
    offer = "_pgcdc_begin" if option.begun else "_pgcdc_offer"
    return f'{offer} -W {shlex.quote(" ".join(option.values))} -- "$word"' if option.values else ":"


def _bash_files(kind: str) -> str:
    return f'_pgcdc_files -{kind} -- "$word"'


def _zsh(nodes: list[Node]) -> Iterator[str]:
    yield "#compdef pgcdc"
    yield _HEAD
    yield "_pgcdc_ask() {"
    yield '    local -a names=("${(@f)$(pgcdc __complete $1 "${words[1,CURRENT-1]} " 2>/dev/null)}")'
    yield '    compadd -- "${(@)names:#}"'
    yield "}"
    yield "_pgcdc() {"
    yield '    local command=pgcdc previous="${words[CURRENT-1]}" i'
    yield "    local -a members options"
    yield '    if [[ "${words[CURRENT]}" == --*=* ]]; then'
    yield '        previous="${words[CURRENT]%%=*}"'
    yield "        compset -P 1 '*='"
    yield "    fi"
    yield "    for ((i = 2; i < CURRENT; i++)); do"
    yield '        case "$command ${words[i]}" in'
    yield f'            ({_paths(nodes)}) command="$command ${{words[i]}}" ;;'
    yield "        esac"
    yield "    done"
    yield '    case "$command $previous" in'
    for action, patterns in _actions(nodes, _zsh_values).items():
        yield f"        ({'|'.join(patterns)}) {action}; return ;;"
    yield "    esac"
    yield '    case "$command" in'
    for node in nodes:
        yield f'        ("{node.words}")'
        yield f"            members=({_zsh_words(node.members)})"
        yield f"            options=({_zsh_words((n, o.summary) for o in node.options for n in o.names)})"
        if node.files:
            yield f"            {_zsh_files(node.files)}"
        if node.kind:
            yield f'            [[ "${{words[CURRENT]}}" == -* ]] || _pgcdc_ask {node.kind}'
        yield "            ;;"
    yield "    esac"
    yield '    if [[ "${words[CURRENT]}" == -* ]]; then _describe -o option options'
    yield "    elif (( $#members )); then _describe command members; fi"
    yield "}"
    yield '_pgcdc "$@"'


def _zsh_words(words: Iterable[tuple[str, str]]) -> str:
    return " ".join(shlex.quote(f"{name.replace(':', chr(92) + ':')}:{text}") for name, text in words)


def _zsh_values(option: Option) -> str:
    if option.kind:
        return f"_pgcdc_ask {option.kind}"
    if option.files:
        return _zsh_files(option.files)
    blank = "-S '' " if option.begun else ""
    return f"compadd {blank}-- {shlex.join(option.values)}" if option.values else "_message value"


def _zsh_files(kind: str) -> str:
    return "_files -/" if kind == "d" else "_files"


def _fish(nodes: list[Node]) -> Iterator[str]:
    yield _HEAD
    yield "function __pgcdc_at"
    yield "    set -l command pgcdc"
    yield "    for word in (commandline -opc)[2..-1]"
    yield f'        contains -- "$command $word" {_paths(nodes).replace("|", " ")}'
    yield '        and set command "$command $word"'
    yield "    end"
    yield '    test "$command" = "$argv"'
    yield "end"
    yield "function __pgcdc_ask"
    yield "    command -q pgcdc; and pgcdc __complete $argv (commandline -cp) 2>/dev/null"
    yield "end"
    yield "complete -c pgcdc -f"
    for node in nodes:
        at = f"complete -c pgcdc -n '__pgcdc_at {node.words}'"
        for name, text in node.members:
            yield f"{at} -a {name} -d {_fish_text(text)}"
        for option in node.options:
            yield f"{at} {_fish_option(option)} -d {_fish_text(option.summary)}"
        if node.files:
            yield f"{at} -F"
        if node.kind:
            yield f"{at} -a '(__pgcdc_ask {node.kind})'"


def _fish_option(option: Option) -> str:
    words = [f"-l {n[2:]}" if n.startswith("--") else f"-s {shlex.quote(n[1:])}" for n in option.names]
    if option.kind:
        words.append(f"-x -a '(__pgcdc_ask {option.kind})'")
    elif option.files:
        words.append("-r -F")
    elif option.values is not None:
        words.append(f"-x -a {_fish_text(' '.join(option.values))}" if option.values else "-x")
    return " ".join(words)


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _actions(nodes: list[Node], action: Callable[[Option], str]) -> dict[str, list[str]]:
    """Group options by what completes their value: action -> `"command option"`, for options with a value."""
    patterns: dict[str, list[str]] = {}
    for node in nodes:
        for option in node.options:
            if option.values is not None:
                names = [f'"{node.words} {name}"' for name in option.names]
                patterns.setdefault(action(option), []).extend(names)
    return patterns


def _option_names(node: Node) -> list[str]:
    return [name for option in node.options for name in option.names]


COMMAND = "__complete"

_PATIENCE = "PGCDC_COMPLETION_SECONDS"
"""The variable with the seconds that the server may take to connect and answer; 0.3 by default."""

_QUERIES = {
    "databases": "SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate",
    "publications": "SELECT pubname FROM pg_publication",
    "schemas": "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'",
    "slots": "SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'logical' AND NOT temporary",
    "tables": (
        "SELECT quote_ident(nspname) || '.' || quote_ident(relname)"
        " FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE relkind IN ('r', 'p') AND nspname !~ '^pg_' AND nspname <> 'information_schema'"
    ),
}
_STORED = "stored"
"""The kind of names that are tables in the directory on the command line, not on a server."""

_CONNECTION = ("dbname", "host", "port", "username")


def complete(root: ClickCommand, arguments: Sequence[str]) -> int:
    """Print one candidate per line, or nothing at all; return the exit status, always 0."""
    with suppress(Exception):
        kind, line = arguments
        options = _options_of(root, _before_cursor(line))
        names = _stored(options) if kind == _STORED else _asked(_QUERIES[kind], options)
        for name in sorted(names):
            # A name with control characters doesn't fit a line.
            if name.isprintable():
                write(name)
    return 0


def _before_cursor(line: str) -> list[str]:
    """Split a line into words, without the word to complete and the option that it belongs to."""
    try:
        words = shlex.split(line) if line[-1:].isspace() else shlex.split(line)[:-1]
    except ValueError:
        # The word to complete may begin with a quote.
        words = shlex.split(f"{line}'")[:-1]
    return words[:-1] if words[-1].startswith("-") and "=" not in words[-1] else words


def _options_of(root: ClickCommand, words: Sequence[str]) -> dict[str, Any]:
    """Parse the line as far as possible, with defaults from variables and the configuration file."""
    command, context, rest = root, root.make_context(PROGRAM, [], resilient_parsing=True), list(words[1:])
    while members := getattr(command, "commands", None):
        at = next(number for number, word in enumerate(rest) if word in members)
        command = members[rest[at]]
        # Options before a command's name are allowed after it, too.
        name, rest = rest[at], rest[:at] + rest[at + 1 :]
        own = [] if hasattr(command, "commands") else rest
        context = command.make_context(name, own, parent=context, resilient_parsing=True)
    return dict(context.params)


def _asked(query: str, options: dict[str, Any]) -> Iterable[str]:
    from pgcdc_cli.replication.session import ask, connect, database_encoding
    from pgcdc_cli.types.database_text import DatabaseText

    given = {name: options[name] for name in _CONNECTION}
    conninfo = connection_string(**given, password=None)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, float(os.environ.get(_PATIENCE, "0.3")))
    with connect(conninfo) as connection:
        # Names that aren't valid text can't be typed; kept as surrogates, they aren't printable either.
        text = DatabaseText.shown(database_encoding(connection)).keeping()
        return [str(name) for (name,) in ask(connection, query, text=text)]


def _stored(options: dict[str, Any]) -> Iterable[str]:
    from pgcdc_cli.directory.file_names import MANIFEST
    from pgcdc_cli.directory.manifest import read_manifest

    directories = options.get("paths") or [options.get("directory")]
    segments = [segment for path in directories for segment in read_manifest(str(Path(path) / MANIFEST))]
    return {file.table for segment in segments for file in segment.files if file.table is not None}
