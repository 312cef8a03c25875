"""`--connector-config` and `-c`: a Debezium connector's configuration instead of options."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pgcdc_cli.cli.options import usage_error

if TYPE_CHECKING:
    from pgcdc_cli.formats.debezium.config import ConnectorConfig

_CONNECTION = {
    "host": "database_hostname",
    "port": "database_port",
    "user": "database_user",
    "password": "database_password",
    "dbname": "database_dbname",
    "sslmode": "database_sslmode",
}


class Source(NamedTuple):
    """What is read, from options or, where they are silent, from a connector's configuration."""

    conninfo: str
    slot: str
    publications: list[str]


def read_config(path: Path | None, given: list[str]) -> "ConnectorConfig":
    """Read the configuration; what `-c` says wins over the file. Raises PgcdcError USAGE."""
    from pgcdc_cli.formats.debezium.load import connector_config, read_properties

    properties = {} if path is None else read_properties(path)
    for item in given:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise usage_error(f'-c: "{item}" is not NAME=VALUE')
        properties[name.strip()] = value
    return connector_config(properties)


def source_of(
    config: "ConnectorConfig | None", conninfo: str, slot: str | None, publications: list[str]
) -> Source:
    """Complete the options; raises PgcdcError USAGE where no slot is named."""
    if config is None:
        if slot is None:
            raise usage_error("-S/--slot is missing")
        return Source(conninfo, slot, publications)
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    known = conninfo_to_dict(conninfo)
    values = {name: getattr(config, attribute) for name, attribute in _CONNECTION.items()}
    more = {name: str(value) for name, value in values.items() if value and name not in known}
    return Source(
        make_conninfo(conninfo, **more), slot or config.slot_name, publications or [config.publication_name]
    )
