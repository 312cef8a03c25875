"""Replication origins: where a transaction comes from that was replicated here.

Apart from slices, which need NumPy: messages have origins, too, and the catalog knows messages.
"""

from dataclasses import dataclass

from pgcdc_cli.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Origin:
    """The server that a transaction came here from, and the LSN of its commit there.

    `number` is `pg_replication_origin.roident`, None where nobody asked for it or there is none any more.
    """

    commit_lsn: Lsn
    name: str
    number: int | None = None
