"""Stream PostgreSQL's logical replication into files, JSON lines, Arrow or Debezium JSON, exactly once."""

__version__ = "0.1.0"
