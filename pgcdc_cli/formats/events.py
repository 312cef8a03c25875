"""What is no row, as the object of its JSON line: truncates, logical messages, and transactions' bounds."""

import base64
from typing import Any

from pgcdc_cli.formats.stamps import one_timestamp
from pgcdc_cli.pgoutput.changes import MessageChange, Stamp, TransactionMark, TruncateChange

Event = TruncateChange | MessageChange | TransactionMark


def event_object(event: Event, gid: str | None = None) -> dict[str, Any]:
    """Build the object, its keys in the order of the line; `gid` is what its transaction was prepared as."""
    if isinstance(event, TruncateChange):
        return _truncate(event, gid)
    if isinstance(event, MessageChange):
        return _message(event, gid)
    return _mark(event)


def _truncate(event: TruncateChange, gid: str | None) -> dict[str, Any]:
    return {
        "op": "T",
        **_stamp(event.stamp, gid),
        "schema": event.table.schema,
        "table": event.table.name,
        "cascade": event.cascade,
        "restart_identity": event.restart_identity,
    }


def _message(event: MessageChange, gid: str | None) -> dict[str, Any]:
    return {
        "op": "M",
        **_stamp(event.stamp, gid),
        "transactional": event.transactional,
        "prefix": event.prefix,
        **_content(event.content),
    }


def _content(content: bytes) -> dict[str, str]:
    try:
        return {"content": content.decode()}
    except UnicodeDecodeError:
        return {"content_base64": base64.b64encode(content).decode()}


def _mark(event: TransactionMark) -> dict[str, Any]:
    stamp = event.stamp
    end = {} if event.kind == "B" else {"end_lsn": str(stamp.lsn)}
    return {
        "op": event.kind,
        "commit_lsn": str(stamp.commit_lsn),
        **end,
        "xid": stamp.xid,
        "ts": _timestamp(stamp.commit_ts),
        **_source(stamp, event.gid),
    }


def _source(stamp: Stamp, gid: str | None) -> dict[str, str]:
    prepared = {} if gid is None else {"gid": gid}
    if stamp.origin is None:
        return prepared
    lsn = stamp.origin.commit_lsn
    return prepared | {"origin": stamp.origin.name} | ({"origin_lsn": str(lsn)} if lsn else {})


def _stamp(stamp: Stamp, gid: str | None) -> dict[str, Any]:
    return {
        "lsn": str(stamp.lsn),
        "commit_lsn": str(stamp.commit_lsn),
        "seq": stamp.seq,
        "xid": stamp.xid,
        "ts": _timestamp(stamp.commit_ts),
        **_source(stamp, gid),
    }


def _timestamp(micros: int | None) -> str | None:
    return None if micros is None else one_timestamp(micros).decode()
