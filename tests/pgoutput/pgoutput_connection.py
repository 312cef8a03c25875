"""The decoder for one connection's messages, and what it gives out."""

from pgoutput_orders import frames_of
from pgoutput_reference import describe, flat

from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.assemble import Assembler
from pgcdc_cli.pgoutput.message_batch import DecodeLimits
from pgcdc_cli.pgoutput.prepared import PreparedPolicy
from pgcdc_cli.pgoutput.relations import Tables
from pgcdc_cli.pgoutput.transactions import PgoutputDecoder


def connection(spools, *, skip_before=0, until=None, transactions=None, known=(), batch=1, **policy):
    """A decoder that collects its warnings in `warnings`, and reads a spool chunk by chunk."""
    warnings = []
    limits = DecodeLimits(Lsn(skip_before), until, transactions)
    assembler = Assembler(Tables(describe), limits, boundaries=True)
    given_policy = PreparedPolicy(known=known, warn=warnings.append, **policy)
    decoder = PgoutputDecoder(assembler, spools, given_policy)
    decoder.warnings, decoder.batch = warnings, batch
    return decoder


def after_restart(spools, part, *, skip_before, **policy):
    """A new connection, in a folder with what is prepared at the edge of this slice."""
    spools.clear(part.edge.prepared)
    return connection(spools, skip_before=skip_before, known=part.edge.prepared, **policy)


def taken(streams, *messages):
    return list(streams.slices(frames_of(*messages)))


def values(slices):
    """The new rows, in stream order."""
    return [event[3] for event in flat(slices).events if event[0] in {"I", "U"}]


def edges(slices):
    return [part.edge.end_lsn for part in slices if part.edge is not None]


def boundaries(slices):
    return [boundary for part in slices for some in part.boundaries for boundary in some]
