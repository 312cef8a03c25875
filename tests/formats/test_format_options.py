import pytest

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.arrow import ArrowFormat
from pgcdc_cli.formats.jsonl import JsonlFormat
from pgcdc_cli.formats.pretty import PrettyFormat
from pgcdc_cli.formats.raw import RawFormat
from pgcdc_cli.formats.select import select_format


def test_a_name_and_its_options_make_the_format():
    assert select_format("jsonl", layout="table", compression="zstd", numeric="number") == JsonlFormat(
        "table", "zstd", "number"
    )
    assert select_format("jsonl", layout="stream", transactions=True) == JsonlFormat(
        "stream", transactions=True
    )
    assert select_format("arrow", layout="table", compression="zstd") == ArrowFormat("zstd")
    assert select_format("pretty", layout="stream", transactions=True, colour=True) == PrettyFormat(True)
    assert isinstance(select_format("raw", layout="stream"), RawFormat)


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("csv", {"layout": "table"}, '"csv"'),
        ("", {"layout": "table"}, '""'),
        ("arrow", {"layout": "stream"}, "one schema"),
        ("arrow", {"layout": "table", "compression": "gzip"}, "gzip"),
        ("arrow", {"layout": "table", "numeric": "number"}, "--numeric"),
        ("arrow", {"layout": "table", "transactions": True}, "--transactions"),
        ("raw", {"layout": "table"}, "--layout table"),
        ("raw", {"layout": "stream", "compression": "zstd"}, "--compression"),
        ("raw", {"layout": "stream", "transactions": True}, "--transactions"),
        ("pretty", {"layout": "table"}, "--layout table"),
        ("pretty", {"layout": "stream", "compression": "gzip"}, "--compression"),
        ("pretty", {"layout": "stream", "numeric": "number"}, "--numeric"),
        ("jsonl", {"layout": "table", "transactions": True}, "begins and commits"),
    ],
)
def test_what_cannot_be_is_one_line_and_a_usage_error(name, options, part):
    with pytest.raises(PgcdcError) as error:
        select_format(name, **options)
    assert error.value.kind is ErrorKind.USAGE
    assert error.value.message.startswith("could not ")
    assert part in error.value.message
    assert "\n" not in error.value.message
