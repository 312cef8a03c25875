"""Tables as the catalog completes them, from relation messages of a real server."""

import json
from dataclasses import replace

import pytest

from pgcdc_cli.changes.table import ReplicaIdentity, TableFacts, TableSchema
from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.frames import XLOGDATA_HEADER
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.decode import decode
from pgcdc_cli.pgoutput.messages import Relation, RelationColumn
from pgcdc_cli.replication.connection import ReplicationConnection
from pgcdc_cli.types.pg_type import PgType


def relations(database, *statements, publication="FOR ALL TABLES") -> list[Relation]:
    """The relation messages that the server sends because of these statements."""
    database.execute(f"CREATE PUBLICATION p {publication}")
    slot = database.create_slot()
    with database.connection.transaction():
        for statement in statements:
            database.execute(statement)
    found, tags = [], ""
    with ReplicationConnection(database.uri) as connection:
        stream = connection.start(slot, Lsn(0), {"proto_version": "1", "publication_names": '"p"'}.items())
        while "C" not in tags:
            for frame in stream.receive(100, 1.0).frames:
                message = decode(frame[XLOGDATA_HEADER:])
                tags += chr(frame[XLOGDATA_HEADER])
                if isinstance(message, Relation):
                    found.append(message)
        stream.finish()
    return found


def described(database, catalog, definition, values="DEFAULT VALUES") -> TableSchema:
    database.execute(definition)
    name = definition.split()[2]
    [relation] = relations(database, f"INSERT INTO {name} {values}")
    return catalog.describe([relation])[0]


def test_built_in_types_keep_oid_and_typmod(database, catalog):
    table = described(
        database,
        catalog,
        "CREATE TABLE t (id int8 PRIMARY KEY, n numeric(12,2), a text[] NOT NULL, m int[][])",
        "VALUES (1, 1, '{}', NULL)",
    )
    assert [c.type.name for c in table.columns] == ["int8", "numeric", "text[]", "int4[]"]
    assert [c.declared for c in table.columns] == ["bigint", "numeric(12,2)", "text[]", "integer[]"]
    assert [c.not_null for c in table.columns] == [True, False, True, False]
    assert [c.dimensions for c in table.columns] == [0, 0, 1, 2]
    assert [c.in_replica_identity for c in table.columns] == [True, False, False, False]
    assert (table.display, table.key) == ("public.t", ("id",))


def test_domains_resolve_to_their_base_with_its_typmod(database, catalog):
    database.execute("CREATE DOMAIN money2 AS numeric(10,2)")
    database.execute("CREATE DOMAIN price AS money2 CHECK (VALUE >= 0)")
    database.execute("CREATE DOMAIN tags AS varchar(5)[]")
    table = described(database, catalog, "CREATE TABLE t (a price, b tags, c price[], d money2)")
    a, b, c, d = (column.type for column in table.columns)
    typmod = (10 << 16 | 2) + 4
    assert (a.name, a.typmod, a.category) == ("numeric", typmod, "base")
    assert a == d
    assert (b.name, b.category, b.element.name, b.element.typmod) == ("varchar[]", "array", "varchar", 9)
    assert (c.name, c.category, c.element) == ("numeric[]", "array", a)
    assert [column.declared for column in table.columns] == ["price", "tags", "price[]", "money2"]
    assert [facts.type_name for facts in table.facts.columns.values()] == [
        "price",
        "tags",
        "_price",
        "money2",
    ]
    money2 = table.columns[3].type_oid
    assert [facts.base for facts in table.facts.columns.values()] == [
        (money2, "money2", "money2"),
        (1015, "character varying(5)[]", "_varchar"),
        None,
        (1700, "numeric(10,2)", "numeric"),
    ]
    assert TableFacts.from_json(table.facts.to_json()) == table.facts


def test_a_column_that_is_added_again_makes_another_version(database, catalog):
    """The relation message stays the same. If its names are in another order now, no position is known."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    [relation] = relations(database, "INSERT INTO t VALUES (1)")
    [before] = catalog.describe([relation])
    database.execute("ALTER TABLE t DROP b; ALTER TABLE t ADD b int")
    [after] = catalog.describe([relation])
    assert [column.position for column in before.columns] == [None, None, None]
    assert [column.position for column in after.columns] == [None, None, 4]
    assert before.fingerprint != after.fingerprint
    assert TableSchema.from_json(after.to_json()).fingerprint == after.fingerprint
    database.execute("ALTER TABLE t DROP a; ALTER TABLE t ADD a int")
    [late] = catalog.describe([relation])
    assert [column.position for column in late.columns] == [None, None, None]


def test_enums_and_arrays_of_them_are_known_and_the_rest_is_other(database, catalog):
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    database.execute("CREATE DOMAIN my_mood AS mood")
    database.execute("CREATE TYPE pair AS (a int, b text)")
    database.execute("CREATE TYPE span AS RANGE (subtype = int4)")
    table = described(
        database,
        catalog,
        "CREATE TABLE t (e mood, f mood[], g my_mood, h pair, i pair[], j span, k int4range)",
    )
    types = [column.type for column in table.columns]
    assert [t.category for t in types] == ["enum", "array", "enum", "other", "array", "other", "other"]
    assert [t.name for t in types] == ["mood", "mood[]", "mood", "pair", "pair[]", "span", "int4range"]
    assert types[1].element == types[0] == types[2]
    assert types[4].element == types[3]


def test_a_type_that_can_be_subscripted_is_no_array(database, catalog):
    """Like point, whose text has no braces."""
    database.execute("SET client_min_messages = error; CREATE TYPE spot")
    for function in ("in(cstring) RETURNS spot", "out(spot) RETURNS cstring"):
        internal = f"point_{function.partition('(')[0]}"
        database.execute(
            f"CREATE FUNCTION spot_{function} LANGUAGE internal IMMUTABLE STRICT AS '{internal}'"
        )
    functions = "INPUT = spot_in, OUTPUT = spot_out"
    database.execute(f"CREATE TYPE spot ({functions}, LIKE = point, ELEMENT = float8)")
    table = described(database, catalog, "CREATE TABLE t (s spot)", "VALUES ('(1,2)')")
    assert (table.columns[0].type.name, table.columns[0].type.category) == ("spot", "other")


def test_a_type_in_another_schema_is_declared_with_it(database, catalog):
    database.execute("CREATE SCHEMA shop")
    database.execute("CREATE TYPE shop.mood AS ENUM ('ok')")
    table = described(database, catalog, "CREATE TABLE t (e shop.mood)")
    assert (table.columns[0].declared, table.columns[0].type.name) == ("shop.mood", "mood")


@pytest.mark.parametrize(
    ("definition", "identity", "key"),
    [
        ("(a int, b int, PRIMARY KEY (b, a))", "DEFAULT", ("a", "b")),
        ("(a int, b int)", "DEFAULT", None),
        ("(a int, b int, PRIMARY KEY (b, a))", "FULL", ("b", "a")),
        ("(a int, b int, PRIMARY KEY (a) INCLUDE (b))", "FULL", ("a",)),
        ("(a int PRIMARY KEY DEFERRABLE, b int)", "FULL", None),
        ("(a int, b int)", "FULL", None),
        ("(a int PRIMARY KEY, b int)", "NOTHING", None),
        ("(a int PRIMARY KEY, b int NOT NULL CONSTRAINT u UNIQUE)", "USING INDEX u", ("b",)),
    ],
)
def test_the_key_is_what_identifies_a_row_on_the_wire(database, catalog, definition, identity, key):
    database.execute(f"CREATE TABLE t {definition}")
    database.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    [relation] = relations(database, "INSERT INTO t VALUES (1, 1)")
    assert catalog.describe([relation])[0].key == key


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_key_that_is_published_in_part_is_none(database, catalog, identity):
    database.execute("CREATE TABLE t (a int, b int, c int, PRIMARY KEY (a, b))")
    database.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    publication = "FOR TABLE t (a, c) WITH (publish = 'insert')"
    [relation] = relations(database, "INSERT INTO t VALUES (1, 1, 1)", publication=publication)
    assert [c.name for c in relation.columns] == ["a", "c"]
    assert catalog.describe([relation])[0].key is None


def test_a_key_with_a_generated_column_that_is_not_published_is_none(database, catalog):
    columns = "a int, g int GENERATED ALWAYS AS (a % 2) STORED, PRIMARY KEY (a, g)"
    database.execute(f"CREATE TABLE t ({columns})")
    publication = "FOR ALL TABLES WITH (publish = 'insert')"
    [relation] = relations(database, "INSERT INTO t VALUES (1)", publication=publication)
    assert [(c.name, c.key) for c in relation.columns] == [("a", True)]
    assert catalog.describe([relation])[0].key is None


def test_a_root_s_primary_key_that_its_partitions_lack_is_none(database, catalog):
    """Without its index in each partition, rows can have equal keys."""
    database.execute("CREATE TABLE t (a int NOT NULL) PARTITION BY RANGE (a)")
    database.execute("CREATE TABLE t1 PARTITION OF t DEFAULT; ALTER TABLE ONLY t ADD PRIMARY KEY (a)")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    publication = "FOR TABLE t WITH (publish_via_partition_root = true)"
    root = relations(database, "INSERT INTO t VALUES (1), (1)", publication=publication)[0]
    assert (root.name, catalog.describe([root])[0].key) == ("t", None)


@pytest.mark.parametrize("root", ["DEFAULT", "FULL", "USING INDEX t_b_a_idx"])
@pytest.mark.parametrize("part", ["DEFAULT", "FULL", "USING INDEX t1_b_a_idx", "USING INDEX t1_b_idx"])
def test_a_key_that_a_partition_s_old_rows_lack_is_a_warning(database, catalog, caplog, root, part):
    """Its deletes come without it, and updates that change it look like inserts. It comes once."""
    database.execute("CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL) PARTITION BY RANGE (a)")
    database.execute("CREATE UNIQUE INDEX ON t (b, a); CREATE TABLE t1 PARTITION OF t DEFAULT")
    database.execute("CREATE UNIQUE INDEX t1_b_idx ON t1 (b) INCLUDE (a)")
    database.execute(f"ALTER TABLE t REPLICA IDENTITY {root}; ALTER TABLE t1 REPLICA IDENTITY {part}")
    publication = "FOR TABLE t WITH (publish_via_partition_root = true)"
    [relation, *_] = relations(database, "INSERT INTO t VALUES (1, 1)", publication=publication)
    for _ in range(2):
        [table] = catalog.describe([relation])
    sent = {"DEFAULT": "a", "FULL": "ab", "USING INDEX t1_b_a_idx": "ab", "USING INDEX t1_b_idx": "b"}
    lacking = [name for name in table.key if name not in sent[part]]
    start = 'old rows of partition "public.t1" come without column "{}" of the key of "public.t": '
    assert [message.split(": ")[0] + ": " for message in caplog.messages] == list(map(start.format, lacking))
    assert catalog.describe([relation], changes=False) == [table]


def test_a_key_that_grew_since_the_message_is_what_the_message_says(database, catalog):
    database.execute("CREATE TABLE t (a int PRIMARY KEY, b int)")
    [relation] = relations(database, "INSERT INTO t VALUES (1, 1)")
    database.execute(
        "ALTER TABLE t ADD c int NOT NULL DEFAULT 0, DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a, c)"
    )
    assert catalog.describe([relation])[0].key == ("a",)


def test_a_partitioned_table_published_by_its_root_has_the_roots_key(database, catalog):
    database.execute("CREATE TABLE t (a int, b int, PRIMARY KEY (a)) PARTITION BY RANGE (a)")
    database.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    publication = "FOR TABLE t WITH (publish_via_partition_root = true)"
    root = relations(database, "INSERT INTO t VALUES (1, 1)", publication=publication)[0]
    table = catalog.describe([root])[0]
    assert (table.display, table.key) == ("public.t", ("a",))


def test_a_table_that_is_gone_is_what_the_message_says(database, catalog):
    database.execute("CREATE TYPE mood AS ENUM ('ok')")
    database.execute("CREATE TABLE t (a int PRIMARY KEY, b numeric(5,1), c mood)")
    [relation] = relations(database, "INSERT INTO t VALUES (1, 1, 'ok')")
    database.execute("DROP TABLE t")
    database.execute("DROP TYPE mood")
    table = catalog.describe([relation])[0]
    assert table.key == ("a",)
    assert [c.declared for c in table.columns] == ["integer", "numeric(5,1)", "unknown"]
    assert table.columns[2].type == PgType(relation.columns[2].type_oid, -1, "unknown", "other")
    assert [c.not_null for c in table.columns] == [None, None, None]


def test_a_column_that_is_gone_or_of_another_type_now_is_what_the_message_says(database, catalog):
    database.execute("CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL, c int NOT NULL, d int NOT NULL)")
    [relation] = relations(database, "INSERT INTO t VALUES (1, 1, 1, 1)")
    database.execute("ALTER TABLE t DROP b")
    database.execute("ALTER TABLE t ALTER c TYPE text")
    database.execute("ALTER TABLE t RENAME d TO e")
    table = catalog.describe([relation])[0]
    assert [c.name for c in table.columns] == ["a", "b", "c", "d"]
    assert [c.type.name for c in table.columns] == ["int4"] * 4
    assert [c.not_null for c in table.columns] == [True, None, None, None]


def test_a_table_without_columns_is_described(database, catalog):
    table = described(database, catalog, "CREATE TABLE empty ()")
    assert (table.columns, table.key) == ((), None)


def test_names_in_any_script_are_described(database, catalog):
    table = described(database, catalog, 'CREATE TABLE "Tàb%s" ("q""uote" int PRIMARY KEY)', "VALUES (1)")
    assert (table.display, table.key) == ("public.Tàb%s", ('q"uote',))


def test_describing_any_number_of_tables_takes_one_round_trip(database, catalog, monkeypatch):
    database.execute("CREATE DOMAIN feeling AS text NOT NULL")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text DEFAULT 'a'); CREATE TABLE e ()")
    database.execute("CREATE TABLE u (n numeric(12,2), f feeling, l text[], PRIMARY KEY (f, n))")
    found = relations(
        database,
        "INSERT INTO t VALUES (1)",
        "INSERT INTO u VALUES (1, 'ok', '{}')",
        "INSERT INTO e DEFAULT VALUES",
        "ALTER TABLE t ADD w int",
        "INSERT INTO t VALUES (2)",
    )
    gone = Relation(1, "s", "t", ReplicaIdentity.DEFAULT, (RelationColumn("a", 99999, -1, key=False),))
    assert [one.name for one in found] == ["t", "u", "e", "t"]
    alone = [catalog.describe([relation])[0] for relation in [*found, gone]]
    asked = []
    ask = catalog._session.ask
    monkeypatch.setattr(catalog._session, "ask", lambda *args: asked.append(args) or ask(*args))
    together = catalog.describe([*found, gone])
    assert together == alone
    assert [table.facts for table in together] == [table.facts for table in alone]
    assert len(asked) == 1


def test_of_many_tables_the_one_that_cannot_be_described_is_named(database, catalog):
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE odd (id int PRIMARY KEY)")
    found = relations(database, "INSERT INTO t VALUES (1)", "INSERT INTO odd VALUES (1)")
    odd = replace(found[1], columns=(replace(found[1].columns[0], typmod=2**40),))
    with pytest.raises(PgcdcError, match=r'could not describe table "public\.odd": '):
        catalog.describe([found[0], odd])


def test_defaults_are_told_as_the_catalog_prints_them_but_not_of_generated_columns(database, catalog):
    table = described(
        database,
        catalog,
        "CREATE TABLE t (id serial PRIMARY KEY, v text DEFAULT 'it''s', n int,"
        " g int GENERATED ALWAYS AS (1) STORED)",
    )
    assert table.facts is not None
    defaults = {name: facts.default for name, facts in table.facts.columns.items()}
    assert defaults["id"] == "nextval('t_id_seq'::regclass)"
    assert (defaults["v"], defaults["n"], defaults.get("g")) == ("'it''s'::text", None, None)


def test_a_changed_default_is_told_with_the_next_relation_message_but_is_no_new_version(database, catalog):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text DEFAULT 'a')")
    [relation] = relations(database, "INSERT INTO t VALUES (1)")
    before = catalog.describe([relation])[0]
    database.execute("ALTER TABLE t ALTER v SET DEFAULT 'b'")
    after = catalog.describe([relation])[0]
    assert before.facts is not None
    assert after.facts is not None
    assert [t.facts.columns["v"].default for t in (before, after)] == ["'a'::text", "'b'::text"]
    assert before.fingerprint == after.fingerprint


@pytest.mark.parametrize("column", ["mood", "mood[]", "feeling"])
def test_labels_of_an_enum_a_domain_over_it_or_an_array_come_in_their_order(database, catalog, column):
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); ALTER TYPE mood ADD VALUE 'fine' BEFORE 'ok'")
    database.execute("CREATE DOMAIN feeling AS mood")
    table = described(database, catalog, f"CREATE TABLE t (id int PRIMARY KEY, m {column})", "VALUES (1)")
    assert table.facts is not None
    assert table.facts.columns["m"].labels == ("sad", "fine", "ok")
    assert table.facts.columns["id"].labels is None


def test_a_primary_key_is_told_in_its_own_order_and_a_unique_index_stands_in_for_none(database, catalog):
    database.execute("CREATE TABLE t (a int, b int, c int UNIQUE, PRIMARY KEY (b, a))")
    [relation] = relations(database, "INSERT INTO t VALUES (1, 2, 3)")
    keyed = catalog.describe([relation])[0]
    assert keyed.facts is not None
    assert (keyed.facts.primary_key, keyed.facts.unique) == (("b", "a"), ("c",))
    database.execute("DROP PUBLICATION p; ALTER TABLE t DROP CONSTRAINT t_pkey")
    bare = catalog.describe([relation])[0]
    assert bare.facts is not None
    assert (bare.facts.primary_key, bare.facts.unique) == (None, ("c",))


def test_of_unique_indexes_that_stand_in_the_clustered_one_is_first_then_the_first_by_name(database, catalog):
    """As the JDBC driver orders them for Debezium. One over an expression, or not unique, is no key."""
    database.execute("CREATE TABLE t (a int, b int CONSTRAINT u2 UNIQUE, c int CONSTRAINT u1 UNIQUE)")
    database.execute("CREATE INDEX i1 ON t (a); CREATE UNIQUE INDEX i2 ON t (a, lower('x'))")
    [relation] = relations(database, "INSERT INTO t VALUES (1, 2, 3)")
    assert catalog.describe([relation])[0].facts.unique == ("c",)
    database.execute("ALTER TABLE t CLUSTER ON u2")
    assert catalog.describe([relation])[0].facts.unique == ("b",)


@pytest.mark.parametrize(
    ("publication", "listed", "left_out"),
    [
        ("FOR ALL TABLES", False, ()),
        ("FOR TABLES IN SCHEMA public", False, ()),
        ("FOR TABLE t", True, ()),
        ("FOR TABLE t (a, d) WITH (publish_via_partition_root)", True, (2, 4)),
        ("FOR TABLE t_1 (a, d)", True, (3, 5)),
    ],
)
def test_whether_a_publication_lists_a_table_and_leaves_out_columns_is_told(
    database, catalog, publication, listed, left_out
):
    """It may list a partitioned table above."""
    database.execute("CREATE TABLE t (a int, c int, d int, e int) PARTITION BY RANGE (a)")
    database.execute("CREATE TABLE t_1 (gone int, a int, c int, d int, e int); ALTER TABLE t_1 DROP gone")
    database.execute("ALTER TABLE t ATTACH PARTITION t_1 DEFAULT")
    relation = relations(database, "INSERT INTO t VALUES (1)", publication=publication)[0]
    name = "t" if "via_partition_root" in publication else "t_1"
    table = catalog.describe([relation])[0]
    assert (table.name, table.facts.listed, table.facts.left_out) == (name, listed, left_out)


@pytest.mark.parametrize("publication", ["FOR ALL TABLES", "FOR TABLE t"])
def test_no_column_counts_as_left_out_unless_a_list_does_that(database, catalog, publication):
    """What isn't sent here is a generated column."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id) STORED)")
    [relation] = relations(database, "INSERT INTO t VALUES (1)", publication=publication)
    table = catalog.describe([relation])[0]
    assert ([column.name for column in table.columns], table.facts.left_out) == (["id"], ())


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("int", "5"),
        ("text", 'a "b" {c}, d\\'),
        ("text", ""),
        ("int[]", "{1,2}"),
        ("box", "(2,2),(1,1)"),
        ("box[]", "{(2,2),(1,1);(1,1),(0,0)}"),
    ],
)
def test_the_value_of_rows_older_than_their_column_is_told_as_text(database, catalog, type_, value):
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    database.execute(f"ALTER TABLE t ADD v {type_} NOT NULL DEFAULT '{value}'")
    assert database.execute("SELECT v::text FROM t").fetchone() == (value,)
    [relation] = relations(database, "INSERT INTO t VALUES (2)")
    assert catalog.describe([relation])[0].facts.columns["v"].missing == value


def test_included_columns_of_a_primary_key_are_told(database, catalog):
    database.execute("CREATE TABLE t (a int, b int, c int, PRIMARY KEY (b) INCLUDE (a, c))")
    [relation] = relations(database, "INSERT INTO t VALUES (1, 2, 3)")
    table = catalog.describe([relation])[0]
    assert table.facts is not None
    assert (table.key, table.facts.primary_key, table.facts.included) == (("b",), ("b", "a", "c"), 2)
    stored = TableSchema.from_json(json.loads(json.dumps(table.to_json())))
    assert stored.facts == table.facts


def test_a_domain_that_is_not_null_makes_its_column_so(database, catalog):
    database.execute("CREATE DOMAIN email AS text NOT NULL")
    table = described(database, catalog, "CREATE TABLE t (id int PRIMARY KEY, e email)", "VALUES (1, 'a@b')")
    assert [column.not_null for column in table.columns] == [True, True]


def test_facts_survive_the_schema_file(database, catalog):
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    table = described(
        database, catalog, "CREATE TABLE t (id int PRIMARY KEY, m mood DEFAULT 'ok')", "VALUES (1)"
    )
    again = TableSchema.from_json(table.to_json())
    assert (again, again.facts) == (table, table.facts)


AS_TEXT = """
CREATE TYPE {0};
CREATE FUNCTION {0}_in(cstring) RETURNS {0} LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION {0}_out({0}) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS '{1}';
CREATE FUNCTION {0}_send({0}) RETURNS bytea LANGUAGE internal IMMUTABLE STRICT AS '{2}';
"""


def test_what_a_type_that_is_not_built_in_sends_in_binary_is_known(database, catalog):
    database.execute("SET client_min_messages = error")
    for name, output, send, delimiter in (
        ("cased", "textout", "textsend", ","),
        ("other", "textout", "byteasend", ","),
        ("apart", "textout", "textsend", ";"),
    ):
        database.execute(AS_TEXT.format(name, output, send))
        functions = f"INPUT = {name}_in, OUTPUT = {name}_out, SEND = {name}_send"
        database.execute(f"CREATE TYPE {name} ({functions}, LIKE = text, DELIMITER = '{delimiter}')")
    database.execute(AS_TEXT.format("dumb", "textout", "textsend"))
    database.execute("CREATE TYPE dumb (INPUT = dumb_in, OUTPUT = dumb_out, LIKE = text)")
    database.execute("CREATE DOMAIN tag AS cased; CREATE TYPE mood AS ENUM ('ok')")
    table = described(
        database,
        catalog,
        "CREATE TABLE t (a cased, b other, c dumb, d tag, e cased[], f mood, g int, h apart)",
    )
    sends = [column.type.sends for column in table.columns]
    assert sends == ["text", "own", "nothing", "text", "own", "own", "own", "own"]
    assert table.columns[4].type.element.sends == "text"
