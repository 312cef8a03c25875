"""Made-up streams in pieces are as if they had come whole; mutated ones as the plain reference reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgoutput_connection import connection
from pgoutput_pieces import as_sent, in_pieces, rearranged
from pgoutput_reference import flat, reference
from pgoutput_reference_pieces import reference_of_pieces
from pgoutput_strategies import cuts, mutations, streams
from size import examples

from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.sinks import spool
from pgcdc_cli.sinks.disk import Disk
from pgcdc_cli.sinks.files import Files
from pgcdc_cli.sinks.spool import SpoolFolder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A new folder for each call."""
    return lambda: tmp_path_factory.mktemp("spools")


def assembled(batches, folder, *, skip_before=0):
    """All batches through one connection; where a checkpoint names a prepared one no more, its spool goes."""
    spools = SpoolFolder(Files(Disk(), str(folder)), "spool")
    streams = connection(spools, skip_before=skip_before)
    parts, prepared = [], {}
    for batch in batches:
        for part in streams.slices(batch):
            parts.append(part)
            if part.edge is not None and part.edge.prepared is not None:
                kept = {(one.xid, one.gid): one for one in part.edge.prepared}
                for gone in prepared.keys() - kept.keys():
                    spools.discard(prepared[gone])
                prepared = kept
    found = flat(parts)
    found.in_transaction = streams.in_transaction
    found.prepared = set(prepared)
    found.pending = None
    return found


@given(st.data(), streams())
@examples(60)
def test_transactions_in_pieces_are_those_that_come_whole(folders, data, frames):
    frames = as_sent(frames)
    pieces = data.draw(in_pieces(frames))
    found = assembled(data.draw(cuts(pieces)), folders())
    whole = reference(frames, skip_before=0, marks=True)
    assert found.events == whole.events
    if whole.last_edge is not None:
        assert found.last_edge[1] >= whole.last_edge[1]
    assert not found.in_transaction


@given(st.data(), streams())
@examples(60)
def test_any_pieces_are_read_as_the_plain_reference_does(folders, data, frames):
    """Also from any position on: what ended before it is dropped."""
    pieces = data.draw(in_pieces(as_sent(frames)))
    lsns = {int.from_bytes(one[1:9]) + near for one in pieces for near in (-1, 0, 1)}
    skip_before = Lsn(data.draw(st.sampled_from(sorted({0} | {lsn for lsn in lsns if lsn >= 0}))))
    check(pieces, data.draw(cuts(pieces)), folders, skip_before=skip_before)


@given(st.data(), streams(), st.sampled_from([1, 100, 1 << 30]))
@examples(150)
def test_mutated_pieces_are_refused_or_read_as_the_plain_reference_does(folders, data, frames, chunk_bytes):
    pieces = data.draw(rearranged(data.draw(in_pieces(as_sent(frames)))))
    if pieces and data.draw(st.booleans()):
        pieces = data.draw(mutations(pieces))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "CHUNK_BYTES", chunk_bytes)
        check(pieces, data.draw(cuts(pieces)), folders)


def check(pieces, batches, folders, **options):
    """One error, or what the reference reads, wherever the stream is cut."""
    try:
        expected = reference_of_pieces(pieces, **options)
    except PgcdcError:
        for some in ([pieces], batches):
            with pytest.raises(PgcdcError):
                assembled(some, folders(), **options)
        return
    pending, expected.pending = expected.pending, None
    for some in ([pieces], batches):
        folder = folders()
        found = assembled(some, folder, **options)
        assert vars(found) == vars(expected)
        assert pending or not list(folder.glob("spool/*")), "a spool ends with its transaction"
