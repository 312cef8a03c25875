"""What a stream depends on: the server's version and settings."""

from dataclasses import dataclass

from pgcdc_cli.catalog.session import Session

_FACTS = """
SELECT current_setting('server_version_num')::int, current_database(), current_setting('wal_level'),
       (SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'),
       pg_is_in_recovery(), (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)
"""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`version` as 180004 for 18.4; `wal_sender_timeout` in seconds, 0 for none, as it is for this role."""

    version: int
    database: str
    wal_level: str
    wal_sender_timeout: float
    in_recovery: bool
    may_replicate: bool


def read_facts(session: Session) -> ServerFacts:
    [row] = session.ask(_FACTS, {}, "read the server's settings")
    version, database, wal_level, milliseconds, in_recovery, may_replicate = row
    return ServerFacts(version, database, wal_level, milliseconds / 1000, in_recovery, bool(may_replicate))
