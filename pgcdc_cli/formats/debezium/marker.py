"""What `source.snapshot` says of a row."""

from pgcdc_cli.pgoutput.changes import ChangeBatch
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Part


def snapshot_marker(batch: ChangeBatch) -> Part:
    """Give `false` for a streamed batch; a snapshot's last rows are marked before its first ones."""
    place = batch.snapshot
    if place is None:
        return b"false"
    markers = [b"true"] * len(batch)
    if place.begins:
        markers[0] = b"first" if place.first_table else b"first_in_data_collection"
    if place.ends:
        markers[-1] = b"last" if place.last_table else b"last_in_data_collection"
    return kernels.binary(markers)
