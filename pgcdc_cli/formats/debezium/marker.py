"""What `source.snapshot` says of a row."""

from pgcdc_cli.pgoutput.changes import ChangeBatch
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Part


def snapshot_marker(batch: ChangeBatch) -> Part:
    """Give `false` for a streamed batch.

    A row that is several of these is, in this order: the last of all, the first of all, its table's last.
    """
    place = batch.snapshot
    if place is None:
        return b"false"
    markers = [b"true"] * len(batch)
    if place.begins:
        markers[0] = b"first_in_data_collection"
    if place.ends:
        markers[-1] = b"last_in_data_collection"
    if place.begins and place.first_table:
        markers[0] = b"first"
    if place.ends and place.last_table:
        markers[-1] = b"last"
    return kernels.binary(markers)
