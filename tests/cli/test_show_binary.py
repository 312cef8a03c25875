"""A binary capture is shown like one in text format, for all built-in types."""

import pytest
from show_tools import show, with_changes
from test_show import capture

from pgcdc_cli.replication.session import SESSION_SETTINGS


@pytest.mark.parametrize("form", ["jsonl", "pretty"])
def test_a_capture_in_binary_is_shown_as_one_in_text(database, pgcdc, tmp_path, form):
    shop = with_changes(database)
    for name, value in SESSION_SETTINGS.items():
        shop.execute(f"SET {name} = '{value}'")
    capture(shop, tmp_path / "text")
    capture(shop, tmp_path / "binary", binary="true")
    assert (tmp_path / "text").read_bytes() != (tmp_path / "binary").read_bytes()
    assert show(pgcdc, "binary", "--format", form) == show(pgcdc, "text", "--format", form)


def test_what_has_no_reader_is_shown_in_hexadecimal(database18, pgcdc, tmp_path):
    shop = with_changes(database18)
    shop.execute("CREATE TABLE priced (a int PRIMARY KEY, price money); INSERT INTO priced VALUES (1, 2)")
    capture(shop, tmp_path / "binary", binary="true")
    assert '"new":{"a":1,"price":"\\\\x00000000000000c8"}' in show(pgcdc, "binary")


def test_a_damaged_value_is_an_error_that_names_column_and_place(database18, pgcdc, tmp_path):
    shop = with_changes(database18)
    capture(shop, tmp_path / "binary", binary="true")
    data = (tmp_path / "binary").read_bytes()
    (tmp_path / "binary").write_bytes(data.replace(b"b\0\0\0\x01\x01", b"b\0\0\0\x01\x07", 1))
    ran = pgcdc("show", "binary")
    assert ran.status == 8
    assert (
        'column "ok" is not what its type sends in binary: it is neither 0 nor 1, in the message at'
        in ran.err
    )
