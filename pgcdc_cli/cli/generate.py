"""Write `man/` and `completions/` from the commands: `python -m pgcdc_cli.cli.generate [--check] [DIR]`.

DIR is the project's directory, by default the working directory. `--check` writes nothing; it names the files
that differ, and then exits with status 1. There is a manual page in roff (man(7)) for every command.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from pgcdc_cli import __version__
from pgcdc_cli.cli.command_tree import (
    ANYWHERE,
    ClickCommand,
    ClickParameter,
    Foreign,
    example_lines,
    panel,
    summary,
    value_name,
    walk,
)
from pgcdc_cli.cli.completion import scripts
from pgcdc_cli.cli.root_command import root_command
from pgcdc_cli.errors import ErrorKind

_VALUES = {
    "SIZE": "A number with a unit, as in PostgreSQL's settings: B, kB, MB, GB or TB, each 1024 times the one"
    " before. Without a unit: bytes.",
    "TIME, INTERVAL": "A number with a unit: ms, s, min, h or d. Without a unit: seconds.",
    "LSN": "A position in the WAL as PostgreSQL prints it, such as 0/1A2B3C8.",
}
_ENVIRONMENT = {
    "PGCDC_OPTION": "Default of --option: PGCDC_DBNAME for --dbname, and so on (see OPTIONS of every"
    " command). An empty variable counts as unset; one of no option is warned about. If an option may be"
    " given several times, blanks separate the values.",
    "PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD, ...": "libpq's own variables, as for psql(1).",
    "PAGER": "The program that pages the changes of pgcdc-show(1) on a terminal. Default: less, or none if"
    " TERM is dumb; empty: none.",
    "PGCDC_COMPLETION_SECONDS": "How long a shell's completion waits for the server, to offer names of slots,"
    " tables and the like. Default: 0.3.",
    "JOURNAL_STREAM": "Set by systemd if standard error is its journal, which notes the time of each line"
    " itself. Without it, and if not on a terminal, a run that has no end of its own (pgcdc-stream(1);"
    " pgcdc-spark-submit(1) with --follow) has --log-format timed by default; everything else has text.",
    "NOTIFY_SOCKET, WATCHDOG_USEC": "Set by systemd for a unit with Type=notify: pgcdc-stream(1) tells it"
    " that the stream has begun, where it is, and that it is alive, as by sd_notify(3).",
    "NO_COLOR": "No colour if set. TERM=dumb has the same effect, and so has output to anything but a"
    " terminal.",
}
_FILES = {
    "--config FILE": "TOML. At its head, options by their long names, for every command that knows them;"
    " under [command], such as [slot.create], that command's own. The command line comes first, then the"
    " environment, then a command's section, then the head of the file.",
    "~/.pgpass, ~/.pg_service.conf": "libpq's password and service files.",
}
_STATUSES = {
    0: "Done: the end was reached, or a signal asked to stop.",
    130: "Interrupted before there was anything to finish.",
    141: "The reader of standard output went away, as if ended by SIGPIPE.",
}


def pages(root: ClickCommand) -> dict[str, str]:
    """Return the manual pages: text by file name (`pgcdc-slot-create.1`)."""
    tree = list(walk(root))
    return {f"{'-'.join(path)}.1": _page(path, command, tree) for path, command in tree}


def _page(
    path: Sequence[str], command: ClickCommand, tree: Iterable[tuple[Sequence[str], ClickCommand]]
) -> str:
    name = "-".join(path)
    sections = [
        f'.TH {_text(name.upper())} 1 "" "pgcdc {__version__}" "pgcdc manual"',
        # No hyphenation: names of options and variables must stay searchable.
        ".nh\n.ad l",
        _section("NAME", f"{_text(name)} \\- {_text(_lower(summary(command)))}"),
        _section("SYNOPSIS", _synopsis(path, command)),
        _section("DESCRIPTION", "\n.PP\n".join(map(_text, _paragraphs(command)))),
        *_parameter_sections(command),
    ]
    if members := getattr(command, "commands", {}):
        sections.append(
            _section("COMMANDS", _items({n: summary(member) + "." for n, member in members.items()}))
        )
    if path[-1] == "stream":
        sections.append(_section("CONNECTOR PROPERTIES", _properties()))
        sections.append(_section("OPTIONS OF WAL2JSON", _wal2json_options()))
    sections.append(_section("EXIT STATUS", _items(_exit_statuses(command))))
    if len(path) == 1:
        more = {"VALUES": _VALUES, "ENVIRONMENT": _ENVIRONMENT, "FILES": _FILES}
        sections += [_section(heading, _items(items)) for heading, items in more.items()]
    sections.append(_section("EXAMPLES", "\n".join([".EX", *map(_text, example_lines(command)), ".EE"])))
    others = [f".BR {_text('-'.join(other))} (1)" for other, _ in tree if related(path, other)]
    sections.append(_section("SEE ALSO", " ,\n".join([*others, ".BR pg_recvlogical (1)"])))
    return "\n".join(sections) + "\n"


def _properties() -> str:
    """Describe the properties that `--connector-config` and `-c` take."""
    from pgcdc_cli.formats.debezium.properties import MASKS, PROPERTIES
    from pgcdc_cli.formats.debezium.transform_properties import documented

    items = {}
    for known in (*PROPERTIES, *documented()):
        values = f" One of {', '.join(known.choices)}." if known.choices else ""
        items[known.name] = f"{known.doc}{values}{_default(known.default)}"
    return _items(items | MASKS)


def _default(text: str) -> str:
    """Name a default; one that ends like a sentence is quoted."""
    shown = text if text[-1:].isalnum() else f'"{text}"'
    return f" Default: {shown}." if text else ""


def _wal2json_options() -> str:
    """Describe the options that `--wal2json-option` takes."""
    from pgcdc_cli.formats.wal2json.wal2json_options import OPTION_DOCS

    return _items(OPTION_DOCS)


def related(path: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a command is another's parent, sibling or member."""
    return path != other and (other[:-1] == path[:-1] or other == path[:-1] or other[:-1] == path)


def _synopsis(path: Sequence[str], command: ClickCommand) -> str:
    words = [f"\\fB{_text(' '.join(path))}\\fR", "[\\fIOPTIONS\\fR]"]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            more = " ..." if parameter.nargs != 1 else ""
            words.append(f"\\fI{_text(value_name(parameter))}\\fR{more}")
    if hasattr(command, "commands"):
        words.append("\\fICOMMAND\\fR ...")
    return " ".join(words)


def _paragraphs(command: ClickCommand) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n")]


def _parameter_sections(command: ClickCommand) -> list[str]:
    sections: dict[str, list[str]] = {"Arguments": [], "Options": []}
    for parameter in command.params:
        if not parameter.hidden:
            sections.setdefault(panel(parameter), []).append(_parameter(parameter))
    sections["Options"].append(_item("\\-?, \\-\\-help", "Show a summary of this page and exit."))
    if any(parameter.hidden and parameter.name in ANYWHERE for parameter in command.params):
        names = ", ".join("\\-\\-" + name.replace("_", "\\-") for name in sorted(ANYWHERE))
        sections["Options"].append(_item(names, "As described in pgcdc(1)."))
    headings = {"Arguments": "ARGUMENTS", "Options": "OPTIONS"}
    return [
        _section(headings.get(name, f"{name.upper()} OPTIONS"), "\n".join(items))
        for name, items in sections.items()
        if items
    ]


def _parameter(parameter: ClickParameter) -> str:
    value = value_name(parameter)
    if parameter.param_type_name == "argument":
        return _item(f"\\fI{_text(value)}\\fR", _text(parameter.help or ""))
    names = sorted([*parameter.opts, *parameter.secondary_opts], key=lambda name: name.startswith("--"))
    tag = ", ".join(f"\\fB{_text(name)}\\fR" for name in names)
    return _item(tag + (f" \\fI{_text(value)}\\fR" if value else ""), _text(_description(parameter)))


def _description(parameter: ClickParameter) -> str:
    """Join help, default and environment variable."""
    sentences = [parameter.help or ""]
    if parameter.required:
        sentences.append("Required.")
    if parameter.multiple:
        sentences.append("May be given several times.")
    if parameter.default not in (None, False, 0, [], ()) or (
        parameter.default == 0 and not _is_switch(parameter)
    ):
        sentences.append(f"Default: {parameter.default}.")
    if parameter.envvar:
        sentences.append(f"Environment: {parameter.envvar}.")
    return " ".join(sentences)


def _is_switch(parameter: ClickParameter) -> bool:
    return bool(parameter.is_flag or parameter.count)


def _exit_statuses(command: ClickCommand) -> dict[str, str]:
    """Describe each exit status; several kinds of error with one status are joined."""
    if isinstance(command, Foreign):
        return {str(status): text for status, text in command.statuses.items()}
    texts: dict[int, list[str]] = {}
    for kind in ErrorKind:
        what = kind.name.lower().replace("_", " ").capitalize()
        again = " (retried automatically)" if kind.rule.transient else ""
        texts.setdefault(kind.rule.exit_status, []).append(f"{what}{again}: {kind.rule.hint}.")
    known = _STATUSES | {status: " ".join(lines) for status, lines in texts.items()}
    return {str(status): text for status, text in sorted(known.items())}


def _section(heading: str, body: str) -> str:
    return f".SH {heading}\n{body}"


def _items(items: dict[str, str]) -> str:
    return "\n".join(_item(f"\\fB{_text(name)}\\fR", _text(text)) for name, text in items.items())


def _item(tag: str, body: str) -> str:
    return f".TP\n{tag}\n{body}"


def _lower(text: str) -> str:
    """Turn `Make a slot` into `make a slot`, but leave `PostgreSQL`."""
    return text[:1].lower() + text[1:] if text[1:2].islower() and not text.startswith("PostgreSQL") else text


def _text(text: str) -> str:
    """Escape text so that roff shows it unchanged: man-pages(7), "Generating optimal glyphs"."""
    for character, escape in {"\\": "\\e", "-": "\\-", "~": "\\(ti", "^": "\\(ha", "'": "\\(aq"}.items():
        text = text.replace(character, escape)
    return f"\\&{text}" if text.startswith(".") else text


def generated() -> dict[str, str]:
    """Return all generated files: text by path in the project."""
    root = root_command()
    return {f"man/{name}": text for name, text in pages(root).items()} | {
        f"completions/{name}": text for name, text in scripts(root).items()
    }


def stale(project: Path) -> list[str]:
    """List files that are missing, outdated, or no longer generated."""
    files = generated()
    present = {str(p.relative_to(project)) for d in ("man", "completions") for p in (project / d).glob("*")}
    outdated = [name for name, text in files.items() if name in present and _read(project / name) != text]
    return sorted(outdated + list(present ^ files.keys()))


def _read(path: Path) -> str:
    return path.read_text("utf-8")


def write(project: Path) -> None:
    """Write the generated files, and remove obsolete ones."""
    files = generated()
    for name in stale(project):
        path = project / name
        if name in files:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files[name], "utf-8")
        else:
            path.unlink()


def main(arguments: list[str]) -> int:
    """Run the generator; return the exit status."""
    check = "--check" in arguments
    directories = [argument for argument in arguments if argument != "--check"]
    project = Path(*directories)
    names = stale(project)
    sys.stdout.write("".join(f"{name}\n" for name in names))
    if not check:
        write(project)
    return 1 if check and names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
