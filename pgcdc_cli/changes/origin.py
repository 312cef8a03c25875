"""Replication origins: which server a replicated transaction comes from.

A module of its own, without NumPy, since the decoder's messages and the catalog use it, too.
"""

from dataclasses import dataclass

from pgcdc_cli.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Origin:
    """The replication origin of a transaction, and the LSN of its commit on the origin server.

    `number` is `pg_replication_origin.roident`; None if it wasn't looked up, or the origin was dropped.
    """

    commit_lsn: Lsn
    name: str
    number: int | None = None
