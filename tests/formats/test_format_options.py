import pytest

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.select import check_options

NONE_GIVEN = {"compression": "none", "numeric": "string", "transactions": False}


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("arrow", {"layout": "stream"}, "one schema"),
        ("arrow", {"layout": "table", "compression": "gzip"}, "gzip"),
        ("arrow", {"layout": "table", "numeric": "number"}, "--numeric"),
        ("arrow", {"layout": "table", "transactions": True}, "--transactions"),
        ("raw", {"layout": "stream", "compression": "zstd"}, "--compression"),
        ("raw", {"layout": "stream", "transactions": True}, "--transactions"),
        ("pretty", {"layout": "stream", "compression": "gzip"}, "--compression"),
        ("pretty", {"layout": "stream", "numeric": "number"}, "--numeric"),
        ("jsonl", {"layout": "table", "transactions": True}, "begins and commits"),
    ],
)
def test_what_cannot_be_is_one_line_and_a_usage_error(name, options, part):
    with pytest.raises(PgcdcError) as error:
        check_options(name, **NONE_GIVEN | options)
    assert error.value.kind is ErrorKind.USAGE
    assert error.value.message.startswith("could not ")
    assert part in error.value.message
    assert "\n" not in error.value.message
