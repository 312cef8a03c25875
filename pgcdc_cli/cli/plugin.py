"""What goes to the server's plugin with START_REPLICATION."""

from collections.abc import Mapping

from pgcdc_cli.cli.options import usage_error

OWN_OPTIONS = {
    "proto_version": "use --proto-version",
    "publication_names": "use --publication",
    "streaming": "use --streaming",
    "two_phase": "use --two-phase",
    "binary": "binary values are not supported yet",
    "messages": "use --messages",
}
"""pgoutput's options that change what arrives, and what to do instead of giving them by -o."""


def refuse_protocols(proto_version: int, streaming: str, *, two_phase: bool) -> None:
    """Refuse what is not done."""
    if proto_version > 1:
        raise usage_error(f"--proto-version {proto_version} is not supported yet, only 1")
    if streaming != "off":
        raise usage_error(f"--streaming {streaming} is not supported yet, only off")
    if two_phase:
        raise usage_error("--two-phase is not supported yet")


def plugin_options(
    file_format: str, publications: list[str], given: list[str], *, messages: bool
) -> Mapping[str, str]:
    """Options of START_REPLICATION."""
    options = dict(_name_and_value(item) for item in given)
    if file_format == "raw" and not publications:
        if messages:
            raise usage_error("--messages goes with --publication; for another plugin, use -o")
        return options
    if not publications:
        raise usage_error("--publication is missing")
    for name in options:
        if name in OWN_OPTIONS:
            raise usage_error(f"-o {name}: {OWN_OPTIONS[name]}")
    from pgcdc_cli.replication.commands import publication_names

    options |= {"proto_version": "1", "publication_names": publication_names(publications)}
    return options | ({"messages": "true"} if messages else {})


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise usage_error(f'-o: "{text}" is not NAME=VALUE')
    return name, value
