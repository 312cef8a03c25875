import shlex
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from processes import wait_until

from pgcdc_cli.catalog import Alteration, Catalog, Publication, PublishedTable, members
from pgcdc_cli.changes.selection import every_table
from pgcdc_cli.errors import ErrorKind, PgcdcError


@pytest.fixture
def catalog(database):
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v text, w int)")
    database.execute('CREATE SCHEMA "Other"')
    database.execute('CREATE TABLE "Other"."B ""b""" (id int PRIMARY KEY, "X y" int)')
    database.execute('CREATE TABLE "Other".z ()')
    with Catalog(database.uri) as catalog:
        yield catalog


@pytest.mark.parametrize(
    "publication",
    [
        Publication("empty", owner="postgres"),
        Publication("everything", all_tables=True, owner="postgres"),
        Publication("inserts", all_tables=True, operations=("insert",), owner="postgres"),
        Publication("no ops", all_tables=True, operations=(), owner="postgres"),
        Publication("schemas", schemas=("Other", "public"), owner="postgres"),
        Publication(
            "Quo\"ted, it's",
            tables=(PublishedTable("Other", 'B "b"', ("id", "X y")), PublishedTable("public", "a")),
            operations=("insert", "truncate"),
            via_root=True,
            owner="postgres",
        ),
        Publication(
            "by schema",
            tables=(PublishedTable("Other", "z"), PublishedTable("public", "a")),
            owner="postgres",
        ),
        Publication(
            "filtered",
            tables=(PublishedTable("public", "a", ("id", "w"), "(id > 10)"),),
            owner="postgres",
        ),
        Publication("mixed", tables=(PublishedTable("public", "a"),), schemas=("Other",), owner="postgres"),
    ],
    ids=lambda p: p.name,
)
def test_a_publication_reads_back_as_it_was_made(catalog, publication):
    catalog.create_publication(publication)
    assert catalog.publication(publication.name) == publication
    assert catalog.publications() == [publication]
    catalog.check_publications([publication.name], for_slot=True)
    catalog.drop_publication(publication.name)
    assert catalog.publication(publication.name) is None


def test_tables_that_can_be_published_are_listed_without_their_partitions(database, catalog):
    """A partition stands for itself if no table above it is included."""
    database.execute("CREATE TABLE p (id int) PARTITION BY RANGE (id); CREATE TABLE q PARTITION OF p DEFAULT")
    database.execute("CREATE UNLOGGED TABLE u (); CREATE TEMP TABLE t (); CREATE VIEW v AS SELECT 1")
    found = catalog.tables(every_table)
    assert found == [("Other", 'B "b"'), ("Other", "z"), ("public", "a"), ("public", "p")]
    assert catalog.tables(lambda _schema, table: table in {"a", "q"}) == [("public", "a"), ("public", "q")]


def test_schemas_of_a_publication_are_in_the_order_of_their_names(catalog):
    catalog.create_publication(Publication("p", schemas=("public", "Other")))
    assert catalog.publication("p").schemas == ("Other", "public")


def test_publications_are_listed_by_name_and_found_by_it(catalog):
    for name in ("b", "a", "c"):
        catalog.create_publication(Publication(name))
    assert [publication.name for publication in catalog.publications()] == ["a", "b", "c"]
    assert [catalog.publication(name).name for name in ("c", "a")] == ["c", "a"]


def test_a_publication_that_is_there_is_not_made_again(catalog):
    catalog.create_publication(Publication("p"))
    with pytest.raises(PgcdcError, match=r'could not create publication "p": .*already exists') as caught:
        catalog.create_publication(Publication("p"))
    assert caught.value.kind is ErrorKind.PUBLICATION


@pytest.mark.parametrize(
    "table",
    [
        PublishedTable("public", "nix"),
        PublishedTable("public", "a", ("nix",)),
        PublishedTable("public", "a", None, "nix > 1"),
        PublishedTable("public", "a", None, "id >"),
        PublishedTable("public", "a", None, "random() > 0.5"),
        PublishedTable("public", "a", None, "id > 1); CREATE TABLE public.other (); --"),
    ],
)
def test_a_table_column_or_filter_that_does_not_do_is_a_usage_error(catalog, table):
    with pytest.raises(PgcdcError, match='could not create publication "p": ') as caught:
        catalog.create_publication(Publication("p", tables=(table,)))
    assert caught.value.kind is ErrorKind.USAGE
    assert catalog.publications() == []


def test_an_unknown_operation_is_a_usage_error(catalog):
    with pytest.raises(PgcdcError) as caught:
        catalog.create_publication(Publication("p", operations=("merge",)))
    assert caught.value.kind is ErrorKind.USAGE


def test_whose_lock_an_alteration_waits_for_is_said(database, catalog, caplog, monkeypatch):
    """Such as that of a VACUUM or CREATE INDEX of a table that is to be published."""
    catalog.create_publication(Publication("p"))
    monkeypatch.setattr("pgcdc_cli.replication.session.QUIET", 0.1)
    change = Alteration(add=members("p", [PublishedTable("public", "a")]))
    with ThreadPoolExecutor(1) as background, psycopg.connect(database.uri) as holder:
        holder.execute("LOCK a IN SHARE UPDATE EXCLUSIVE MODE")
        altered = background.submit(catalog.alter_publication, "p", change)
        wait_until(lambda: "to see whose locks" in caplog.text)
        query = caplog.messages[-1].split("waits for: ")[1]
        wait_until(lambda: [pid for pid, *_ in database.execute(query)] == [holder.info.backend_pid])
        holder.rollback()
        altered.result()
    assert [table.name for table in catalog.publication("p").tables] == ["a"]


def test_dropping_what_is_not_there_fails_unless_told_otherwise(catalog):
    with pytest.raises(PgcdcError, match="could not drop publication") as caught:
        catalog.drop_publication("nix")
    assert caught.value.kind is ErrorKind.PUBLICATION
    catalog.drop_publication("nix", if_exists=True)


def test_the_first_missing_publication_is_named(catalog):
    catalog.create_publication(Publication("there"))
    with pytest.raises(PgcdcError, match='could not find publication "Nix"') as caught:
        catalog.check_publications(["there", "Nix", "nada"], for_slot=True)
    assert caught.value.kind is ErrorKind.PUBLICATION
    assert caught.value.hint.startswith("see which exist with: pgcdc publication list; or create it with:")


def test_a_missing_publication_proposes_what_looks_like_it(catalog):
    for name in ("shop_pub", "Orders", "other"):
        catalog.create_publication(Publication(name))
    with pytest.raises(PgcdcError) as caught:
        catalog.check_publications(["shop_pup"], for_slot=True)
    assert caught.value.hint.startswith('did you mean "shop_pub"; or create it with:')
    with pytest.raises(PgcdcError) as caught:
        catalog.check_publications(["orders"], for_slot=False)
    assert caught.value.hint.startswith('did you mean "Orders"; or create it with:')


def test_several_publications_in_one_name_are_to_be_named_one_by_one(catalog):
    for name in ("one", "the shop's"):
        catalog.create_publication(Publication(name))
    hint = catalog.other_publications("the shop's,one")
    assert shlex.split(hint)[-4:] == ["--publication", "the shop's", "--publication", "one"]
    assert catalog.other_publications("one,two") == 'did you mean "one"'


def test_a_role_without_rights_is_told_so(database, catalog):
    database.execute("DROP ROLE IF EXISTS publication_maker")
    database.execute("CREATE ROLE publication_maker LOGIN")
    try:
        with (
            Catalog(database.server.uri(database.name, "publication_maker")) as theirs,
            pytest.raises(PgcdcError, match="permission denied") as caught,
        ):
            theirs.create_publication(Publication("p"))
        assert caught.value.kind is ErrorKind.RIGHTS
    finally:
        database.execute("DROP ROLE publication_maker")
    assert catalog.publications() == []
