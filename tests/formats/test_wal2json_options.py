"""The plugin's options, by its names: how they are parsed, and what is refused."""

import pytest
from batches import table

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.wal2json.wal2json_options import OPTION_DOCS, Wal2jsonOptions, read_options

THEIR_DEFAULTS = {
    "format-version": "2",
    "include-transaction": "true",
    "include-xids": "false",
    "include-timestamp": "false",
    "include-lsn": "false",
    "include-schemas": "true",
    "include-types": "true",
    "include-type-oids": "false",
    "include-pk": "false",
    "include-not-null": "false",
    "include-default": "false",
    "include-column-positions": "false",
    "include-origin": "false",
    "include-typmod": "true",
    "include-domain-data-type": "false",
    "numeric-data-types-as-string": "false",
    "pretty-print": "false",
    "write-in-chunks": "false",
    "add-tables": "*.*",
    "filter-tables": "",
    "add-msg-prefixes": "",
    "filter-msg-prefixes": "",
    "filter-origins": "",
    "actions": "insert,update,delete,truncate",
}


def test_every_option_may_be_given_as_it_is_by_default():
    assert set(THEIR_DEFAULTS) == set(OPTION_DOCS)
    for name, value in THEIR_DEFAULTS.items():
        options = read_options({name: value}.items())
        assert options.wants_table(table({"id": "int4"}))
        assert options.wants_message("any")
        if name != "add-tables":
            assert options == Wal2jsonOptions()


@pytest.mark.parametrize("text", ["t", "TRUE", "on", "y", "Yes", "1"])
def test_a_boolean_is_read_as_the_server_reads_it(text):
    assert read_options({"include-xids": text}.items()).include_xids


@pytest.mark.parametrize(
    ("patterns", "name", "wanted"),
    [
        ("public.orders", "orders", True),
        ("public.orders", "Orders", False),
        ("shop.*,  *.orders ", "orders", True),
        ("shop.*", "orders", False),
        (r"public.a\,b", "a,b", True),
        (r"public.a\ b", "a b", True),
        (r"p\ublic.a.b", "a.b", True),
        (r"public.\*", "a", False),
        ("", "orders", False),
    ],
)
def test_tables_are_added_and_filtered_by_name(patterns, name, wanted):
    named = table({"id": "int4"}, name=name)
    assert read_options({"add-tables": patterns}.items()).wants_table(named) is wanted
    assert read_options({"filter-tables": patterns}.items()).wants_table(named) is not wanted


def test_filters_of_tables_add_up_and_of_other_lists_the_last_counts():
    """As in the plugin."""
    given = [
        ("add-tables", "*.a"),
        ("add-tables", "public.*"),
        ("filter-tables", "*.b"),
        ("filter-tables", "*.c"),
    ]
    wants = read_options(given).wants_table
    assert [name for name in "abcd" if wants(table({"id": "int4"}, name=name))] == ["a", "d"]
    assert not read_options(given[1::-1]).wants_table(table({"id": "int4"}, name="d"))


def test_what_is_filtered_is_not_added_again():
    options = read_options({"add-tables": "public.*", "filter-tables": "*.orders"}.items())
    assert not options.wants_table(table({"id": "int4"}))
    messages = read_options({"add-msg-prefixes": "a,b", "filter-msg-prefixes": "b"}.items())
    assert [prefix for prefix in "abc" if messages.wants_message(prefix)] == ["a"]


@pytest.mark.parametrize(
    ("name", "value", "message", "hint"),
    [
        ("include-xid", "1", '"include-xid": there is none', 'did you mean "include-xids"'),
        ("zzz", "1", '"zzz": there is none', "there are format-version, "),
        ("include-unchanged-toast", "1", "there is none", "leave it out: as in the plugin"),
        ("include-xids", "o", '"include-xids": "o" is not true or false', None),
        ("include-xids", "", '"include-xids": "" is not true or false', None),
        ("format-version", "3", '"format-version": "3" is not 1 or 2', None),
        ("actions", "insert,merge", '"insert,merge" is not a list of insert, update', None),
        ("add-tables", "orders", '"orders" is not a list of tables', None),
        ("add-tables", "a.b,,c.d", '"a.b,,c.d" is not a list of tables', None),
        ("filter-msg-prefixes", "a b", '"a b" is not a list of prefixes', None),
        ("filter-origins", "1,west", '"1,west" is not a list of numbers', None),
        ("pretty-print", "on", "format version 2 ignores it", "format-version=1"),
        ("include-typmod", "off", "format version 2 ignores it", "format-version=1"),
        ("write-in-chunks", "on", "format version 2 ignores it", "format-version=2"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line(name, value, message, hint):
    with pytest.raises(PgcdcError) as error:
        read_options({name: value}.items())
    assert error.value.kind is ErrorKind.USAGE
    assert error.value.message.startswith("could not use wal2json's option")
    assert message in error.value.message
    assert "\n" not in error.value.message
    assert hint is None or hint in str(error.value.hint)


@pytest.mark.parametrize(
    ("name", "value"), [("include-typmod", "off"), ("write-in-chunks", "on"), ("pretty-print", "on")]
)
def test_what_version_2_does_not_look_at_is_taken_where_the_version_is_given(name, value):
    for version in ("1", "2"):
        changed = read_options({"format-version": version, name: value}.items()).changed
        assert f"wal2json.{name.replace('-', '_')}" in changed


def test_a_checkpoint_names_what_is_not_as_by_default():
    assert Wal2jsonOptions().changed == {}
    options = read_options({"include-xids": "on", "actions": "insert,delete"}.items())
    assert options.changed == {"wal2json.include_xids": "True", "wal2json.actions": "['D', 'I']"}
