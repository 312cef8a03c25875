"""Managed services, on which no role may run ALTER SYSTEM, and the settings by which they are known."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ManagedService:
    """A service that runs servers: `settings` is where its users change a server's settings.

    `decoding` is what they set there instead of `wal_level = logical`, by name and value; None if nothing.
    """

    name: str
    settings: str
    decoding: tuple[str, str] | None = None


# Amazon RDS, "Performing logical replication"; Cloud SQL, "Set up logical replication and decoding"; Azure
# Database for PostgreSQL, "Logical replication and logical decoding".
BY_SETTING: Final = {
    "rds.logical_replication": ManagedService(
        "Amazon RDS or Aurora", "parameter group", ("rds.logical_replication", "1")
    ),
    "cloudsql.logical_decoding": ManagedService(
        "Google Cloud SQL", "flags", ("cloudsql.logical_decoding", "on")
    ),
    "azure.extensions": ManagedService("Azure Database for PostgreSQL", "server parameters"),
}
"""Services by a setting that only their servers have."""

REPLICATION_ROLE: Final = "rds_replication"
"""The role of Amazon RDS whose members may replicate; there, no role gets the attribute REPLICATION."""
