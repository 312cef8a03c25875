"""The decoder for one connection's messages."""

from pgoutput_reference import describe

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
