"""What the doctor finds in replica identities and keys, which updates need, is fixed by what it prints."""

import psycopg
import pytest
from doctor_findings import FULL, KEY, finding_of, findings, mend, problems, publish


def update_fails_until_mended(database, check, columns, identity, objects):
    table = f"CREATE TABLE t ({columns})"
    publish(database, table, f"ALTER TABLE t REPLICA IDENTITY {identity}", objects=objects)
    database.execute("INSERT INTO t (id) VALUES (1)")
    with pytest.raises(psycopg.Error):
        database.execute("UPDATE t SET id = 2")
    finding = mend(database, check, "p")
    assert (finding.level, finding.subject) == ("error", "public.t")
    database.execute("UPDATE t SET id = 2")


@pytest.mark.parametrize(
    ("check", "columns", "identity", "objects"),
    [
        ("replica-identity", "id int", "DEFAULT", "FOR ALL TABLES"),
        ("replica-identity", "id int NOT NULL UNIQUE", "DEFAULT", "FOR TABLE t"),
        ("replica-identity", KEY, "NOTHING", "FOR TABLE t"),
        ("replica-identity", f"{KEY} DEFERRABLE", "DEFAULT", "FOR TABLE t"),
        ("replica-identity", f"{KEY} DEFERRABLE", "NOTHING", "FOR TABLE t"),
        ("column-list", f"{KEY}, a int", "DEFAULT", "FOR TABLE t (a)"),
        ("column-list", f"{KEY}, a int", "FULL", "FOR TABLE t (id)"),
        ("row-filter", f"{KEY}, a int", "DEFAULT", "FOR TABLE t WHERE (a > 1)"),
        ("row-filter", f"{KEY}, a int", "DEFAULT", "FOR TABLE t (id) WHERE (a > 1)"),
        ("row-filter", "id int, a int, PRIMARY KEY (id) INCLUDE (a)", "DEFAULT", "FOR TABLE t WHERE (a > 1)"),
    ],
)
def test_updates_that_would_fail_on_the_source(database, check, columns, identity, objects):
    update_fails_until_mended(database, check, columns, identity, objects)


INDEX = 'ALTER TABLE "public"."t" REPLICA IDENTITY USING INDEX "u";'


@pytest.mark.parametrize(
    ("index", "remedy"),
    [
        ("UNIQUE INDEX u ON t (id)", INDEX),
        ("UNIQUE INDEX u ON t (id) INCLUDE (n)", INDEX),
        ("INDEX u ON t (id)", FULL),
        ("UNIQUE INDEX u ON t (id, n)", FULL),
        ("UNIQUE INDEX u ON t (id) WHERE id > 0", FULL),
        ("UNIQUE INDEX u ON t (abs(id))", FULL),
    ],
)
def test_an_index_is_proposed_as_the_identity_if_it_can_be_one(database, index, remedy):
    publish(database, "CREATE TABLE t (id int NOT NULL, n int)", f"CREATE {index}")
    assert mend(database, "replica-identity", "p").statements == (remedy,)


def test_an_index_that_could_not_be_built_is_not_proposed(database):
    publish(database, "CREATE TABLE t (id int NOT NULL)", "INSERT INTO t VALUES (1), (1)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        database.execute("CREATE UNIQUE INDEX CONCURRENTLY u ON t (id)")
    assert mend(database, "replica-identity", "p").statements == (FULL,)


@pytest.mark.parametrize(
    ("list_of", "publish", "remedy"),
    [
        ("t", "update", "BEGIN;"),
        ("t_1", "delete", "BEGIN;"),
        ("t", "insert", 'ALTER TABLE "public"."t_1" REPLICA IDENTITY FULL;'),
    ],
)
def test_a_row_filter_of_a_table_that_another_publication_has_a_column_list_for(
    database, list_of, publish, remedy
):
    database.execute(f"CREATE TABLE t ({KEY}, c text) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE t_1 PARTITION OF t DEFAULT")
    via_root = "publish_via_partition_root = true"
    database.execute(f"CREATE PUBLICATION p FOR TABLE t WHERE (c = 'x') WITH ({via_root})")
    database.execute(
        f"CREATE PUBLICATION q FOR TABLE {list_of} (id) WITH (publish = '{publish}', {via_root})"
    )
    database.execute("INSERT INTO t VALUES (1, 'x')")
    finding = mend(database, "row-filter", "p")
    assert finding.statements[0] == remedy
    # The publication gets no column list that it didn't have: a column that is added is published.
    assert "(" not in "".join(finding.statements)
    database.execute("UPDATE t SET c = 'y'")


@pytest.mark.parametrize("publication", ["p", "q"])
def test_no_replica_identity_where_a_column_list_refuses_full(database, publication):
    """The list stays as it is, but for the key, whether it is this publication's or another one's."""
    database.execute("CREATE TABLE t (id int, secret text)")
    for name in ("p", "q"):
        columns = "(id)" if name == publication else ""
        database.execute(f"CREATE PUBLICATION {name} FOR TABLE t {columns}")
    database.execute("INSERT INTO t VALUES (1, 'x')")
    mend(database, "replica-identity", "p")
    mend(database, "column-list", publication)
    database.execute("UPDATE t SET id = 2")
    published = "SELECT attnames FROM pg_publication_tables WHERE pubname = %s"
    assert sorted(database.execute(published, [publication]).fetchone()[0]) == ["id", "pgcdc_key"]


@pytest.mark.parametrize(
    ("check", "columns", "row_filter"),
    [("column-list", "a", "id > 1"), ("row-filter", "id", "a > 1")],
)
def test_what_a_publication_leaves_out_stays_out(database, check, columns, row_filter):
    """Columns and rows may be left out because nobody is to see them."""
    objects = f"FOR TABLE t ({columns}) WHERE ({row_filter})"
    publish(database, f"CREATE TABLE t ({KEY}, a int, secret text)", objects=objects)
    mend(database, check, "p")
    [(shown, left)] = database.execute("SELECT attnames, rowfilter FROM pg_publication_tables").fetchall()
    assert "secret" not in shown
    assert (left is not None) == (check == "column-list")


GENERATED = "GENERATED ALWAYS AS (a + 1)"

ALL, STORED = "FOR ALL TABLES", "FOR TABLE t WITH (publish_generated_columns = stored)"


@pytest.mark.parametrize(
    ("check", "columns", "identity", "objects"),
    [
        ("generated-column", f"id int, g int {GENERATED} STORED", "FULL", ALL),
        ("generated-column", f"id int, g int {GENERATED} STORED UNIQUE NOT NULL", "USING INDEX t_g_key", ALL),
        ("generated-column", f"{KEY}, g int {GENERATED}", "FULL", STORED),
        ("generated-column", f"id int NOT NULL UNIQUE, g int {GENERATED}", "FULL", ALL),
        ("generated-column", f"{KEY} DEFERRABLE, g int {GENERATED}", "FULL", ALL),
        ("generated-column", f"id int, g int {GENERATED}, h int {GENERATED} STORED", "FULL", STORED),
        ("replica-identity", f"id int, g int {GENERATED}", "NOTHING", ALL),
        ("row-filter", f"{KEY}, g int {GENERATED}", "DEFAULT", "FOR TABLE t WHERE (a > 1)"),
    ],
)
def test_updates_that_fail_for_generated_columns(database18, check, columns, identity, objects):
    update_fails_until_mended(database18, check, f"a int DEFAULT 1, {columns}", identity, objects)


def test_generated_columns_that_the_server_accepts(database):
    """Those outside of the identity; all in a publication that sends them; all before PostgreSQL 18."""
    publish(database, f"CREATE TABLE t ({KEY}, a int, g int {GENERATED} STORED)")
    if database.connection.info.server_version >= 180000:
        database.execute("UPDATE t SET a = 1")
        assert problems(database, "p") == []
        database.execute("ALTER PUBLICATION p SET (publish_generated_columns = stored)")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute("UPDATE t SET a = 1")
    assert problems(database, "p") == []


def test_a_row_filter_that_uses_only_the_identity(database):
    publish(database, f"CREATE TABLE t ({KEY}, a int)", objects="FOR TABLE t WHERE (id > 1)")
    database.execute("UPDATE t SET a = 1")
    assert problems(database, "p") == []


def test_included_columns_are_no_part_of_the_identity(database):
    objects = "FOR TABLE t (id)"
    publish(database, "CREATE TABLE t (id int, a int, PRIMARY KEY (id) INCLUDE (a))", objects=objects)
    database.execute("UPDATE t SET a = 1")
    assert problems(database, "p") == []


def test_inserts_alone_need_no_identity(database):
    publish(database, "CREATE TABLE t (id int)", objects="FOR TABLE t WITH (publish = 'insert')")
    assert "replica-identity" not in [check for check, _, _ in problems(database, "p")]


@pytest.mark.parametrize("operation", ["update", "delete"])
def test_updates_alone_and_deletes_alone_need_an_identity(database, operation):
    objects = f"FOR TABLE t WITH (publish = 'insert, {operation}')"
    publish(database, "CREATE TABLE t (id int)", objects=objects)
    mend(database, "replica-identity", "p")


def test_a_table_without_an_identity_is_reported_for_that_alone(database):
    publish(database, "CREATE TABLE t (id int, a int)", objects="FOR TABLE t WHERE (a > 1)")
    errors = [check for check, level, _ in problems(database, "p") if level == "error"]
    assert errors == ["replica-identity"]
    mend(database, "replica-identity", "p")
    database.execute("INSERT INTO t VALUES (1, 2); UPDATE t SET a = 3")


def test_a_primary_key_is_the_default_identity(database):
    publish(database, f"CREATE TABLE t ({KEY})", "ALTER TABLE t REPLICA IDENTITY NOTHING")
    default = ('ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT;',)
    assert mend(database, "replica-identity", "p").statements == default


@pytest.mark.parametrize(
    "columns",
    [
        "id int",
        "id int NOT NULL UNIQUE",
        f"{KEY} DEFERRABLE",
        "id int, a int, PRIMARY KEY (id) INCLUDE (a) DEFERRABLE",
    ],
)
def test_tables_without_a_key(database, columns):
    publish(database, f"CREATE TABLE t ({columns})", "ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute("CREATE PUBLICATION q FOR TABLE t")
    message = mend(database, "keyless-table").message
    assert ("no primary key but a deferrable one" in message) == ("DEFERRABLE" in columns)


def test_keys_that_may_be_null(database18):
    database18.execute("CREATE TABLE t (id int, n int); CREATE UNIQUE INDEX u ON t (id)")
    database18.execute('ALTER TABLE t ADD CONSTRAINT "Known" NOT NULL id NOT VALID')
    database18.execute("CREATE PUBLICATION pub FOR TABLE t")
    # An index on such a key is not proposed as the replica identity.
    (statement,) = finding_of(database18, "replica-identity").statements
    assert statement == FULL
    database18.execute("ALTER TABLE t ALTER n SET NOT NULL; CREATE UNIQUE INDEX v ON t (n)")
    (statement,) = finding_of(database18, "replica-identity").statements
    assert statement == 'ALTER TABLE "public"."t" REPLICA IDENTITY USING INDEX "v";'
    database18.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX u")
    assert problems(database18) == [("unvalidated-key", "warning", "public.t")]
    mend(database18, "unvalidated-key")
    # Neither other constraints nor other columns matter.
    database18.execute("ALTER TABLE t ADD CHECK (id > 0) NOT VALID, ADD m int")
    database18.execute("ALTER TABLE t ADD CONSTRAINT m NOT NULL m NOT VALID")
    assert problems(database18) == []


@pytest.mark.parametrize("via_root", ["true", "false"])
def test_each_partition_has_an_identity_of_its_own(database, via_root):
    root = f"CREATE TABLE t ({KEY}) PARTITION BY RANGE (id)"
    leaf = "CREATE TABLE t_1 PARTITION OF t DEFAULT"
    nothing = "ALTER TABLE t_1 REPLICA IDENTITY NOTHING"
    objects = f"FOR TABLE t WITH (publish_via_partition_root = {via_root})"
    publish(database, root, leaf, nothing, objects=objects)
    assert "partition-identity" not in str(problems(database, "p"))
    assert mend(database, "replica-identity", "p").subject == "public.t_1"


def test_a_partition_s_identity_that_lacks_the_key_of_its_root(database):
    root = f"CREATE TABLE t ({KEY}, code text NOT NULL) PARTITION BY RANGE (id)"
    leaves = "CREATE TABLE t_1 PARTITION OF t (UNIQUE (code), UNIQUE (code, id)) DEFAULT"
    publish(database, root, leaves, objects="FOR TABLE t WITH (publish_via_partition_root)")
    assert problems(database, "p") == []
    database.execute("ALTER TABLE t_1 REPLICA IDENTITY USING INDEX t_1_code_id_key")
    assert problems(database, "p") == []
    database.execute("ALTER TABLE t_1 REPLICA IDENTITY USING INDEX t_1_code_key")
    assert mend(database, "partition-identity", "p").subject == "public.t_1"


@pytest.mark.parametrize(
    ("root", "more", "identity", "lacks"),
    [
        (KEY, "ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_id_key", "code, id", None),
        (KEY, "ALTER TABLE t REPLICA IDENTITY USING INDEX t_id_other_key", "code, id", "other"),
        (f"{KEY} DEFERRABLE", "", "code", None),
        ("id int NOT NULL", "ALTER TABLE ONLY t ADD PRIMARY KEY (id)", "code", None),
    ],
)
def test_the_key_of_a_partitioned_table_is_its_identity_or_a_primary_key_that_holds(
    database, root, more, identity, lacks
):
    """Neither a deferrable one, nor one that the partitions don't have yet."""
    unique = "UNIQUE (code, id), UNIQUE (id, other)"
    columns = f"{root}, code text NOT NULL, other int NOT NULL, {unique}"
    leaf = f"CREATE TABLE t_1 PARTITION OF t DEFAULT; CREATE UNIQUE INDEX u ON t_1 ({identity})"
    use = "ALTER TABLE t_1 REPLICA IDENTITY USING INDEX u"
    publish(database, f"CREATE TABLE t ({columns}) PARTITION BY RANGE (id)", leaf, use)
    database.execute(f"ALTER PUBLICATION p SET (publish_via_partition_root); {more}")
    said = [one.message for one in findings(database, "p") if one.check == "partition-identity"]
    assert ([f'without column "{lacks}"' in one for one in said]) == ([] if lacks is None else [True])
    if lacks is not None:
        mend(database, "partition-identity", "p")


def test_a_partition_s_identity_stays_what_a_column_list_allows(database):
    """With FULL, the server would refuse all updates and deletes of the partition."""
    root = f"CREATE TABLE t ({KEY}, code text NOT NULL) PARTITION BY RANGE (id)"
    leaves = "CREATE TABLE t_1 PARTITION OF t (UNIQUE (code)) DEFAULT"
    identity = "ALTER TABLE t_1 REPLICA IDENTITY USING INDEX t_1_code_key"
    objects = "FOR TABLE t (id, code) WITH (publish_via_partition_root)"
    publish(database, root, leaves, identity, objects=objects)
    mend(database, "partition-identity", "p")
    database.execute("INSERT INTO t VALUES (1, 'x')")
    database.execute("UPDATE t SET code = 'y'")
