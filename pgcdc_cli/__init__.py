"""PostgreSQL's changes in files: decode a logical replication slot into JSON lines or Arrow, exactly once."""

__version__ = "0.1.0"
