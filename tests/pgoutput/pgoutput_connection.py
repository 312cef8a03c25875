"""The decoder for one connection's messages."""

from pgoutput_reference import describe

from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.assemble import Assembler
from pgcdc_cli.pgoutput.prepared import PreparedPolicy
from pgcdc_cli.pgoutput.transactions import PgoutputDecoder


def connection(spools, *, skip_before=0, until=None, known=(), batch=1, **policy):
    """A decoder that collects its warnings in `warnings`, and reads a spool chunk by chunk."""
    warnings = []
    assembler = Assembler(describe, skip_before=Lsn(skip_before), until=until, boundaries=True)
    given_policy = PreparedPolicy(known=known, warn=warnings.append, **policy)
    decoder = PgoutputDecoder(assembler, spools, given_policy, skip_before=Lsn(skip_before))
    decoder.warnings, decoder.batch = warnings, batch
    return decoder
