import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgcdc_cli.directory.file_names import (
    LONGEST,
    SCHEMAS,
    TableFolders,
    file_name,
    parse_file_name,
    table_folder,
)
from pgcdc_cli.formats.encoded_rows import MESSAGES
from pgcdc_cli.lsn import Lsn

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=63)
SIMILAR = st.text(
    st.sampled_from("aAäÄA\u0308\u0130i\u0131IßsS\u017fKk\u212a.%/_-~2eE"), min_size=1, max_size=6
)


@pytest.mark.parametrize(
    ("schema", "table", "folder"),
    [
        ("public", "orders", "public.orders"),
        ("public", "OrderLines", "public.OrderLines"),
        ("public", "Order Lines", "public.Order Lines"),
        ("a.b", "c", "a~2Eb.c"),
        ("a", "b.c", "a.b.c"),
        ("public", "a/b%~\n", "public.a~2Fb~25~7E~0A"),
        ("public", "注文", "public.注文"),
        ("public", "é", "public.é"),
        ("public", "हिन्दी", "public.हिन्दी"),
        ("_messages", "x", "~5Fmessages.x"),
        (".hidden", " x.", "~2Ehidden.~20x~2E"),
    ],
)
def test_a_folder_is_named_after_its_table(schema, table, folder):
    assert table_folder(schema, table) == folder


def folded(name: str) -> str:
    """A name as a file system sees it that ignores case and normalizes Unicode."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFKC", name).casefold().upper().casefold())


TABLES = st.lists(st.tuples(NAMES | SIMILAR, NAMES | SIMILAR), min_size=2, max_size=6, unique=True)


@settings(deadline=None, max_examples=500)
@given(TABLES)
def test_two_tables_never_share_a_folder_even_where_case_is_ignored(tables):
    folders = TableFolders(())
    assert len({folded(folders.name(*table)) for table in tables}) == len(tables)


@settings(deadline=None, max_examples=300)
@given(TABLES, st.randoms())
def test_tables_stay_in_their_folders(tables, random):
    first = TableFolders(())
    found = {table: first.name(*table) for table in tables}
    random.shuffle(tables)
    again = TableFolders(found.values())
    assert {table: again.name(*table) for table in tables} == found


@pytest.mark.parametrize(
    ("table", "folder"),
    [
        (("public", "OrderLines"), "public.%4Frder%4Cines"),
        (("a", "b.c"), "a.b%2Ec"),
        (("_x", "é"), "_x.%C3%A9"),
    ],
)
def test_a_folder_that_an_earlier_version_made_goes_on(table, folder):
    assert TableFolders([folder, "public.orders"]).name(*table) == folder


@pytest.mark.parametrize(
    "name",
    [
        *("manifest.jsonl", "checkpoint.json", "checkpoint.json.tmp"),
        *("handed-over.json", "handed-over.json.tmp"),
    ],
)
def test_a_table_is_not_taken_for_a_file_of_the_directory(name):
    schema, _, table = name.partition(".")
    for existing in ([], [name]):
        assert TableFolders(existing).name(schema, table).startswith(f"{name}~~")


@settings(deadline=None, max_examples=500)
@given(NAMES | SIMILAR, NAMES | SIMILAR)
def test_a_folder_is_one_name_that_every_file_system_takes(schema, table):
    folder = table_folder(schema, table)
    assert len(folder.encode()) <= LONGEST
    assert not {"/", "\0", "\n", "\\", ":"} & set(folder)
    assert folder not in {MESSAGES, SCHEMAS, ".", ".."}
    assert not folder.startswith(".")


def test_long_names_stay_apart_and_within_the_limit():
    folders = {table_folder("語" * 63, "表" * 62 + last) for last in "甲乙丙"}
    assert len(folders) == 3
    assert all(len(folder.encode()) <= LONGEST and "~~" in folder for folder in folders)


@given(st.integers(1, 10**9), st.integers(0, 2**64 - 1), st.integers(1, 10**6))
def test_a_file_name_says_segment_position_and_part(segment, lsn, part):
    name = file_name(segment, Lsn(lsn), part, ".jsonl.zst")
    assert parse_file_name(name) == (segment, lsn, part, ".jsonl.zst")
    assert parse_file_name(name + ".partial") == (segment, lsn, part, ".jsonl.zst.partial")


@pytest.mark.parametrize(
    "name", ["README", "12-0-1.jsonl", "checkpoint.json", "000001-0000000000000010-0.jsonl"]
)
def test_other_files_are_not_taken_for_data(name):
    assert parse_file_name(name) is None
