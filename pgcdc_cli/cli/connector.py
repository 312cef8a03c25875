"""`--connector-config` and `-c`: a Debezium connector's configuration instead of options."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pgcdc_cli.cli.options import usage_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgcdc_cli.catalog import Catalog
    from pgcdc_cli.formats.debezium.config import ConnectorConfig
    from pgcdc_cli.stream.settings import SnapshotPlan

_CONNECTION = {
    "host": "database_hostname",
    "port": "database_port",
    "user": "database_user",
    "password": "database_password",
    "dbname": "database_dbname",
    "sslmode": "database_sslmode",
    "sslcert": "database_sslcert",
    "sslkey": "database_sslkey",
    "sslpassword": "database_sslpassword",
    "sslrootcert": "database_sslrootcert",
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


def snapshot_plan(config: "ConnectorConfig | None") -> "SnapshotPlan | None":
    """Give what `snapshot.mode` asks for."""
    from pgcdc_cli.stream.settings import SnapshotPlan

    if config is None or config.snapshot_mode in {"never", "no_data"}:
        return None
    return SnapshotPlan(
        config.includes_table,
        again=config.snapshot_mode == "always",
        only=config.snapshot_mode == "initial_only",
    )


def publication_maker(config: "ConnectorConfig | None", name: str) -> "Callable[[Catalog], None] | None":
    """Give what `publication.autocreate.mode` asks for."""
    if config is None or config.publication_autocreate_mode == "disabled":
        return None
    mode, includes = config.publication_autocreate_mode, config.includes_table

    def make(catalog: "Catalog") -> None:
        from pgcdc_cli.catalog import Publication, PublishedTable

        exists = catalog.publication(name) is not None
        if mode == "filtered":
            tables = tuple(PublishedTable(*table) for table in catalog.tables() if includes(*table))
            if not tables:
                raise usage_error("publication.autocreate.mode=filtered: the filters let no table through")
            filtered = Publication(name, tables=tables)
            (catalog.set_publication_tables if exists else catalog.create_publication)(filtered)
        elif not exists:
            catalog.create_publication(Publication(name, all_tables=mode == "all_tables"))

    return make
