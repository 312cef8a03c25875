"""Each problem that the doctor finds is fixed by the statements that it prints."""

import contextlib
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from debian_server import DebianServer
from processes import stream_command, wait_until
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus
from servers import Database, new_slot_name, remove
from standbys import replayed, standby

from pgcdc_cli.catalog import Catalog
from pgcdc_cli.catalog.doctor.finding import Setting


def findings(database, *publications, slot=None, user=None):
    uri = database.uri if user is None else database.server.uri(database.name, user=user)
    with Catalog(uri) as catalog:
        return catalog.diagnose(slot, publications)


def problems(*arguments, **options):
    found = findings(*arguments, **options)
    return [(one.check, one.level, one.subject) for one in found if one.level != "ok"]


def mend(database, check, *publications, restart=False, **options):
    """Run the statements of the only finding of this kind, and check that it is gone."""
    found = [one for one in findings(database, *publications, **options) if one.check == check]
    [finding] = [one for one in found if one.level != "ok"]
    assert finding.statements
    with psycopg.connect(database.uri, autocommit=True) as connection:
        for statement in finding.statements:
            connection.execute(statement)
    if restart:
        assert "restart" in finding.advice
        database.server.pg_ctl("restart", "-m", "fast")
    # A new setting takes a moment to reach every process.
    wait_until(lambda: check not in [one for one, _, _ in problems(database, *publications, **options)])
    return finding


def alter_system(database, name, value):
    database.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    database.execute("SELECT pg_reload_conf()")
    wait_until(lambda: database.execute(f"SHOW {name}").fetchone() == (value,))


@contextlib.contextmanager
def altered(database, name, value):
    """Change a setting of the server, and reset it at the end."""
    alter_system(database, name, value)
    try:
        yield
    finally:
        database.execute(f"ALTER SYSTEM RESET {name}")
        database.execute("SELECT pg_reload_conf()")


@pytest.fixture
def own_database(own_server):
    """A function that makes a database on its own server, with settings that other tests can't use."""
    made = []

    def make(**settings):
        made.append(Database(own_server(18, settings)))
        return made[-1]

    yield make
    for database in made:
        database.connection.close()


@pytest.fixture
def role(database):
    """A role that may log in, and nothing else."""
    name = f"r_{uuid.uuid4().hex[:12]}"
    database.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def publish(database, *statements, objects="FOR ALL TABLES"):
    for statement in statements:
        database.execute(statement)
    database.execute(f"CREATE PUBLICATION p {objects}")


def test_what_is_in_order_has_no_problem(database):
    publish(database, "CREATE TABLE orders (id int PRIMARY KEY, total numeric)")
    slot = database.create_slot()
    assert problems(database, "p", slot=slot) == []
    said = [one.message for one in findings(database, "p", slot=slot)]
    assert 'publication "p" has 1 table' in said
    assert "wal_level is logical" in said
    assert said[0].startswith(f"PostgreSQL {database.server.version}.")
    assert said[0].endswith(f', a primary, database "{database.name}"')


def test_a_wal_level_that_is_too_low(own_database):
    database = own_database(wal_level="replica")
    mend(database, "wal-level", restart=True)


def test_neither_walsenders_nor_slots_are_left(own_database):
    database = own_database(max_wal_senders="0", max_replication_slots="1")
    slot = database.create_slot()
    assert ("free-slots", "error", None) in problems(database)
    assert ("free-slots", "warning", None) in problems(database, slot=slot)
    database.connection.close()
    mend(database, "free-slots", restart=True)
    mend(database, "free-wal-senders", restart=True)


def test_a_role_without_replication(database, role):
    mend(database, "replication-right", user=role)


@pytest.mark.parametrize(
    ("only_there", "change"),
    [
        ("rds.logical_replication", "rds.logical_replication = 1 in the parameter group"),
        ("cloudsql.logical_decoding", "cloudsql.logical_decoding = on in the flags"),
        ("azure.extensions", "wal_level = logical in the server parameters"),
    ],
)
def test_a_managed_service_has_its_own_place_for_settings(own_database, only_there, change):
    """Nobody may run ALTER SYSTEM there."""
    database = own_database(**{only_there: "", "wal_level": "replica", "max_replication_slots": "0"})
    found = {one.check: one for one in findings(database)}
    assert found["wal-level"].statements == found["free-slots"].statements == ()
    assert found["wal-level"].advice.startswith(f"set {change} (")
    assert found["wal-level"].advice.endswith("), and restart the server")
    assert found["free-slots"].advice.startswith("set max_replication_slots = 5 in ")
    assert found["free-slots"].advice.endswith("; or drop a slot that is not in use: pgcdc slot list")


def test_where_a_role_stands_for_the_attribute_its_members_may_replicate(own_database):
    database = own_database()
    database.execute("CREATE ROLE rds_replication; CREATE ROLE reader LOGIN")
    finding = mend(database, "replication-right", user="reader")
    assert finding.statements == ('GRANT "rds_replication" TO "reader";',)
    with Catalog(database.uri) as catalog:
        given = catalog.streaming_grants("later", [])
    assert given[:2] == ['CREATE ROLE "later" LOGIN;', 'GRANT "rds_replication" TO "later";']


@pytest.fixture
def set_for_role(database):
    """A function that sets something where it counts most: for the role in this database."""
    target = f"ALTER ROLE postgres IN DATABASE {database.name}"
    yield lambda name, value: database.execute(f"{target} SET {name} = '{value}'")
    database.execute(f"{target} RESET ALL")


@pytest.mark.parametrize(
    ("value", "why"),
    [("0", "the server never notices that a reader is gone"), ("2s", "the server ends healthy connections")],
)
def test_a_timeout_of_walsenders_that_is_too_low_or_none(database, set_for_role, value, why):
    set_for_role("wal_sender_timeout", value)
    assert why in mend(database, "wal-sender-timeout").message


def test_timeouts_of_sessions_are_no_problem_and_it_says_so(database):
    names = [
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "idle_session_timeout",
    ]
    if database.server.version >= 17:
        names.append("transaction_timeout")
    for name in names:
        database.execute(f"ALTER DATABASE {database.name} SET {name} = '50s'")
    [said] = [one for one in findings(database) if one.check == "session-timeouts"]
    shown = ", ".join(f"{name} (50000 ms)" for name in names)
    assert (said.level, said.message) == (
        "ok",
        f"{shown}: no effect on pgcdc, whose sessions set it to 0",
    )


def test_little_memory_to_decode(database, set_for_role):
    set_for_role("logical_decoding_work_mem", "64kB")
    mend(database, "logical-decoding-work-mem")


def test_slots_that_are_invalidated_when_idle(own_database):
    database = own_database(idle_replication_slot_timeout="1s")
    slot = database.create_slot()
    assert ("idle-slot-timeout", "warning", None) in problems(database)
    wait_until(lambda: ("slot-idle", "error", slot) in problems(database))
    mend(database, "slot-idle")
    assert problems(database, slot=slot) == [("publication-missing", "warning", None)]
    alter_system(database, "idle_replication_slot_timeout", "1h")
    assert "slot-idle" not in str(problems(database))
    assert mend(database, "idle-slot-timeout").advice == "or run pgcdc stream more often than that"
    alter_system(database, "idle_replication_slot_timeout", "1s")
    wait_until(lambda: ("slot-idle", "error", slot) in problems(database))
    database.execute("CHECKPOINT")
    assert ("slot-lost", "error", slot) in problems(database)
    assert "slot-idle" not in str(problems(database))


def test_a_missing_publication(database):
    created = ('CREATE PUBLICATION "shop_pub" FOR ALL TABLES;',)
    assert mend(database, "publication-missing", "shop_pub").statements == created
    mend(database, "publication-missing", "another", slot=database.create_slot())


def test_a_missing_publication_has_near_names(database):
    database.execute("CREATE PUBLICATION shop_pub")
    [finding] = [one for one in findings(database, "shop_pup") if one.check == "publication-missing"]
    assert (finding.statements, finding.advice) == ((), 'did you mean "shop_pub"?')


def test_a_missing_publication_and_no_right_to_create_one(database, role):
    [finding] = [one for one in findings(database, "q", user=role) if one.check == "publication-missing"]
    database.execute(finding.statements[0])
    with psycopg.connect(database.server.uri(database.name, user=role), autocommit=True) as connection:
        connection.execute("CREATE PUBLICATION q")


def test_a_database_without_publications(database):
    assert ("publication-missing", "warning", None) in problems(database)


def test_a_publication_without_tables(database):
    publish(database, "CREATE TABLE orders (id int PRIMARY KEY)", objects="")
    advice = "or one table: pgcdc publication alter p --add-table TABLE"
    assert mend(database, "publication-empty", "p").advice == advice


def test_operations_that_are_left_out(database):
    publish(
        database,
        "CREATE TABLE orders (id int PRIMARY KEY)",
        objects="FOR ALL TABLES WITH (publish = 'insert, delete')",
    )
    finding = mend(database, "operations", "p")
    assert "update, truncate" in finding.message


KEY = "id int PRIMARY KEY"


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


FULL = 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL;'
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


@pytest.mark.parametrize(
    ("other", "equal"),
    [
        ("FOR TABLE t (id, a)", "ALTER PUBLICATION p SET TABLE t (a, id)"),
        ("FOR ALL TABLES", "ALTER PUBLICATION p SET TABLE t"),
    ],
)
def test_publications_that_send_different_columns(database, other, equal):
    table = f"CREATE TABLE t ({KEY}, a int, b int)"
    publish(database, table, f"CREATE PUBLICATION q {other}", objects="FOR TABLE t (id)")
    assert ("different-columns", "warning", "public.t") in problems(database)
    assert "different-columns" not in str([problems(database, "p"), problems(database, "q")])
    read_both(database, refused=True)
    database.execute(equal)
    assert problems(database, "p", "q") == []
    read_both(database, refused=False)


def test_different_columns_of_a_partitioned_table_are_reported_once(database):
    via_root = "WITH (publish_via_partition_root)"
    publish(
        database,
        f"CREATE TABLE t ({KEY}, a int) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t DEFAULT; CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (1) TO (2)",
        f"CREATE PUBLICATION q FOR TABLE t {via_root}; CREATE PUBLICATION r FOR TABLE t {via_root}",
        objects=f"FOR TABLE t (id) {via_root}",
    )
    assert problems(database) == [("different-columns", "warning", "public.t")]


def read_both(database, *, refused):
    """Stream an insert with both publications; the doctor reports what the server refuses."""
    slot = database.create_slot()
    database.execute("INSERT INTO t SELECT max(id) + 1 FROM (SELECT id FROM t UNION SELECT 0) every (id)")
    found = ("different-columns", "error", "public.t") in problems(database, "p", "q")
    command = stream_command(database.uri, slot, *("-f", "-", "--endpos", "now"), publications=["p", "q"])
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found, ran.returncode) == (refused, 7 if refused else 0)
    assert ("hint: stream the publications apart" in ran.stderr) == refused


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
    (statement,) = next(one.statements for one in findings(database18) if one.check == "replica-identity")
    assert statement == FULL
    database18.execute("ALTER TABLE t ALTER n SET NOT NULL; CREATE UNIQUE INDEX v ON t (n)")
    (statement,) = next(one.statements for one in findings(database18) if one.check == "replica-identity")
    assert statement == 'ALTER TABLE "public"."t" REPLICA IDENTITY USING INDEX "v";'
    database18.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX u")
    assert problems(database18) == [("unvalidated-key", "warning", "public.t")]
    mend(database18, "unvalidated-key")
    # Neither other constraints nor other columns matter.
    database18.execute("ALTER TABLE t ADD CHECK (id > 0) NOT VALID, ADD m int")
    database18.execute("ALTER TABLE t ADD CONSTRAINT m NOT NULL m NOT VALID")
    assert problems(database18) == []


@pytest.mark.parametrize("objects", ["FOR TABLE t", "FOR ALL TABLES", "FOR TABLES IN SCHEMA public"])
def test_partitions_under_their_own_names(database, objects):
    root = f"CREATE TABLE t ({KEY}) PARTITION BY RANGE (id)"
    divided = "CREATE TABLE t_1 PARTITION OF t DEFAULT PARTITION BY RANGE (id)"
    publish(database, root, divided, "CREATE TABLE t_2 PARTITION OF t_1 DEFAULT", objects=objects)
    assert mend(database, "partition-root", "p").subject == "public.t"
    assert problems(database, "p") == []


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


def interrupt_detach(database, root, leaf):
    """Leave a partition half detached, as a DETACH does that was cancelled while it waited."""
    detach = f"ALTER TABLE {root} DETACH PARTITION {leaf} CONCURRENTLY"
    pending = "SELECT FROM pg_inherits WHERE inhdetachpending"
    with (
        ThreadPoolExecutor(1) as background,
        psycopg.connect(database.uri) as reader,
        psycopg.connect(database.uri, autocommit=True) as detaching,
    ):
        reader.execute(f"SELECT FROM {root}")
        detached = background.submit(detaching.execute, detach)
        wait_until(lambda: database.execute(pending).rowcount)
        database.execute("SELECT pg_cancel_backend(%s)", (detaching.info.backend_pid,))
        with pytest.raises(psycopg.errors.QueryCanceled):
            detached.result()


@pytest.mark.parametrize(
    ("objects", "crashes"),
    [
        ("FOR ALL TABLES WITH (publish_via_partition_root)", True),
        ("FOR ALL TABLES", False),
        ("FOR TABLE t WITH (publish_via_partition_root)", False),
    ],
)
def test_a_partition_that_is_still_being_detached(database, objects, crashes):
    leaf = "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (1) TO (9)"
    publish(database, f"CREATE TABLE t ({KEY}) PARTITION BY RANGE (id)", leaf, objects=objects)
    interrupt_detach(database, "t", "t_1")
    if crashes:
        assert mend(database, "pending-detach", "p").subject == "public.t_1"
    assert "pending-detach" not in [check for check, _, _ in problems(database, "p")]


@pytest.mark.parametrize("objects", ["FOR ALL TABLES", "FOR TABLES IN SCHEMA public"])
def test_unlogged_tables(database, objects):
    publish(database, f"CREATE UNLOGGED TABLE t ({KEY})", f"CREATE TABLE u ({KEY})", objects=objects)
    assert mend(database, "unlogged-table", "p").subject == "public.t"


@pytest.mark.parametrize(
    "objects",
    [
        "FOR TABLE t",
        "FOR TABLE t WITH (publish_via_partition_root)",
        "FOR TABLES IN SCHEMA public",
        "FOR ALL TABLES",
    ],
)
def test_partitions_on_other_servers(database, objects):
    publish(
        database,
        "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w",
        "CREATE TABLE t (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE here PARTITION OF t (id PRIMARY KEY) FOR VALUES FROM (0) TO (9)",
        "CREATE FOREIGN TABLE there PARTITION OF t FOR VALUES FROM (10) TO (19) SERVER s",
        "CREATE FOREIGN TABLE no_partition (id int) SERVER s",
        objects=objects,
    )
    found = [one for one in problems(database, "p") if one[0] != "partition-root"]
    assert found == [("foreign-partition", "warning", "public.there")]


def test_tables_that_the_role_may_not_read(database, role):
    publish(database, "CREATE SCHEMA s", f"CREATE TABLE s.t ({KEY}, a int)", objects="FOR TABLE s.t (id)")
    database.execute(f"ALTER ROLE {role} REPLICATION")
    mend(database, "select-right", "p", user=role)
    database.execute(f"REVOKE SELECT ON s.t FROM {role}")
    database.execute(f"GRANT SELECT (id) ON s.t TO {role}")
    assert problems(database, "p", user=role) == []
    database.execute("ALTER PUBLICATION p SET TABLE s.t")
    assert problems(database, "p", user=role) == [("select-right", "warning", "s.t")]
    database.execute("ALTER PUBLICATION p SET TABLE s.t (id)")
    database.execute(f"REVOKE USAGE ON SCHEMA s FROM {role}")
    assert problems(database, "p", user=role) == [("select-right", "warning", "s.t")]


def test_a_role_needs_to_read_a_partitioned_table_and_not_its_partitions(database, role):
    publish(
        database,
        f"CREATE TABLE t ({KEY}) PARTITION BY RANGE (id); CREATE TABLE t_1 PARTITION OF t DEFAULT",
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (1) TO (2)",
        objects="FOR TABLE t WITH (publish_via_partition_root)",
    )
    assert mend(database, "select-right", "p", user=role).subject == "public.t"


def test_a_table_without_columns_is_read_by_a_role_that_may(database, role):
    publish(database, "CREATE SCHEMA s", "CREATE TABLE s.t ()", objects="FOR TABLE s.t")
    database.execute(f"GRANT USAGE ON SCHEMA s TO {role}")
    assert ("select-right", "warning", "s.t") in problems(database, "p", user=role)
    database.execute(f"GRANT SELECT ON s.t TO {role}")
    assert "select-right" not in str(problems(database, "p", user=role))


def test_a_missing_slot(database):
    name = new_slot_name()
    mend(database, "slot-missing", slot=name)
    [finding] = [one for one in findings(database, slot=f"{name}x") if one.check == "slot-missing"]
    assert finding.advice == f'or did you mean "{name}"?'


def test_slots_of_another_kind_or_database(database):
    name = new_slot_name()
    other = Database(database.server)
    try:
        [finding] = [one for one in findings(other, slot=database.create_slot()) if one.check == "slot-kind"]
        assert (finding.level, finding.advice) == ("error", f"connect to that database: -d {database.name}")
        # Nobody should create a publication here because of that.
        found = findings(other, "p", slot=finding.subject)
        [missing] = [one for one in found if one.check == "publication-missing"]
        there = f"the slot is of another database, and its publications are there: -d {database.name}"
        assert (missing.statements, missing.advice) == ((), there)
        database.execute("SELECT pg_create_physical_replication_slot(%s)", (name,))
        assert ("slot-kind", "error", name) in problems(database, slot=name)
    finally:
        database.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        other.drop()


def test_a_slots_database_is_named_as_a_shell_takes_it(database):
    name, slot = f"{database.name} b", new_slot_name()
    database.execute(f'CREATE DATABASE "{name}"')
    with psycopg.connect(database.uri, dbname=name, autocommit=True) as other:
        other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    try:
        [finding] = [one for one in findings(database, slot=slot) if one.check == "slot-kind"]
        assert finding.advice == f"connect to that database: -d '{name}'"
    finally:
        database.drop_slot(slot)
        database.execute(f'DROP DATABASE "{name}"')


def test_without_a_name_it_says_which_slots_can_be_streamed(database):
    slot = database.create_slot()
    other = database.create_slot(two_phase=True)
    found = [(one.level, one.subject) for one in findings(database) if one.check == "slot-kind"]
    assert sorted(found) == sorted([("ok", slot), ("ok", other)])


def write_log(database, megabytes):
    for _ in range(megabytes):
        database.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1048576))")


def test_a_slot_that_nobody_reads(own_database):
    database = own_database(max_wal_size="32MB", min_wal_size="32MB")
    slot = database.create_slot()
    write_log(database, 40)
    [finding] = [one for one in findings(database) if one.check == "slot-inactive"]
    assert (finding.level, finding.subject, finding.statements) == ("warning", slot, ())
    wait_until(lambda: advanced(database, slot) and "slot-inactive" not in str(problems(database)))


def advanced(database, slot):
    """Advance a slot; its restart_lsn moves to a record of running transactions, as CHECKPOINT writes it."""
    database.execute("CHECKPOINT")
    return database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,))


def test_a_slot_near_the_limit_beyond_it_and_lost(own_database):
    database = own_database(max_slot_wal_keep_size="32MB")
    slot = database.create_slot()
    write_log(database, 24)
    assert mend(database, "slot-near-limit").subject == slot
    with altered(database, "max_slot_wal_keep_size", "8MB"):
        assert mend(database, "slot-unreserved").subject == slot
        alter_system(database, "max_slot_wal_keep_size", "8MB")
        wait_until(lambda: checkpointed(database, slot) == "lost")
        assert "slot-kind" not in [one.check for one in findings(database, slot=slot)]
        finding = mend(database, "slot-lost")
        assert finding.message == f'slot "{slot}" is invalidated (wal_removed): its changes are lost'


def checkpointed(database, slot):
    """Write a checkpoint, and return the slot's state after it; the checkpointer learns of a setting late."""
    database.execute("CHECKPOINT")
    status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
    return database.execute(status, (slot,)).fetchone()[0]


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)])
def test_a_lost_slot_is_recreated_with_its_flags(own_database, flags):
    database, slot = own_database(max_slot_wal_keep_size="8MB"), new_slot_name()
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, %s, %s)"
    database.execute(create, (slot, *flags))
    write_log(database, 24)
    database.execute("CHECKPOINT")
    mend(database, "slot-lost")
    kept = "SELECT two_phase, failover FROM pg_replication_slots WHERE slot_name = %s"
    assert database.execute(kept, (slot,)).fetchone() == flags


def test_transactions_that_were_spilled(database):
    publish(database, f"CREATE TABLE t ({KEY}, a text)")
    slot = database.create_slot()
    database.execute("SET logical_decoding_work_mem = '64kB'")
    database.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 5000) i")
    decode = "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, %s, '1', %s, 'p')"
    database.execute(decode, (slot, "proto_version", "publication_names"))
    [finding] = [one for one in findings(database) if one.check == "slot-spilled"]
    assert (finding.level, finding.subject) == ("ok", slot)
    assert finding.message.startswith(f'slot "{slot}": 1 MB were spilled to the server\'s disk to send 1 MB;')


def test_a_standby(own_database):
    database = own_database()
    primary = database.server
    follower = standby(primary)
    try:
        slot, copy = database.create_slot(), new_slot_name()
        assert ("slot-failover", "warning", slot) not in problems(database, slot=slot)
        database.execute("SELECT pg_create_physical_replication_slot(%s)", (copy,))
        assert ("slot-failover", "warning", slot) in problems(database, slot=slot)
        replayed(follower, primary)
        database.server, database.uri = follower, follower.uri(database.name)
        found = problems(database)
        assert ("hot-standby-feedback", "warning", None) in found
        assert ("primary-slot-name", "warning", None) in found
        said = {one.check: one for one in findings(database)}
        assert said["server-version"].message.endswith(f', a standby, database "{database.name}"')
        assert said["wal-level"].message.startswith("wal_level is logical; the primary's must be, too")
        mend(database, "hot-standby-feedback")
        _, advised = said["primary-slot-name"].advice.replace("NAME", copy).split("then here: ")
        with psycopg.connect(database.uri, autocommit=True) as connection:
            for statement in advised.removesuffix(";").split(";"):
                connection.execute(statement)
        wait_until(lambda: "primary-slot-name" not in str(problems(database)))
    finally:
        remove(follower)


def test_failover_slots_that_run_ahead_of_the_standbys(own_database):
    database, slot = own_database(), new_slot_name()
    standbys = new_slot_name(), new_slot_name()
    for copy in standbys:
        database.execute("SELECT pg_create_physical_replication_slot(%s, true)", (copy,))
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, false, true)"
    database.execute(create, (slot,))
    [finding] = [one for one in findings(database, slot=slot) if one.check == "slot-failover"]
    assert "may be ahead of the standbys" in finding.message
    assert (finding.statements, finding.advice[:14]) == ((), "name the slots")
    [position] = database.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    receiver = make_conninfo(database.server.uri(), replication="true")
    with contextlib.closing(psycopg.connect(receiver, autocommit=True)) as connected:
        start = f"START_REPLICATION SLOT {standbys[0]} PHYSICAL {position}"
        assert connected.pgconn.exec_(start.encode()).status == ExecStatus.COPY_BOTH
        finding = mend(database, "slot-failover", slot=slot)
        assert standbys[1] not in finding.statements[0]
    wait_until(lambda: ("slot-failover", "warning", slot) in problems(database, slot=slot))
    [finding] = [one for one in findings(database, slot=slot) if one.check == "slot-failover"]
    assert f'standbys that are not connected, with slots "{standbys[0]}": nothing is sent' in finding.message


def test_what_the_role_may_not_see_is_said(database, role):
    database.execute("REVOKE EXECUTE ON FUNCTION pg_current_wal_lsn() FROM PUBLIC")
    assert ("not-seen", "warning", "slot-lost") in problems(database, user=role)


@pytest.mark.skipif(DebianServer.missing() is not None, reason=DebianServer.missing() or "")
def test_postgresql_15():
    server = DebianServer()
    try:
        database = Database(server)
        publish(database, f"CREATE TABLE t ({KEY}, a int)", objects="FOR TABLE t WHERE (a > 1)")
        slot = database.create_slot()
        assert problems(database, "p", slot=slot) == [("row-filter", "error", "public.t")]
        mend(database, "row-filter", "p", slot=slot)
        assert problems(database, "p", slot=slot) == []
        database.connection.close()
        (server.data / "standby.signal").touch()
        server.pg_ctl("restart")
        assert problems(database, "p", slot=slot)[0] == ("standby", "error", None)
        assert "hot-standby-feedback" not in str(findings(database))
    finally:
        server.stop()


def test_a_size_is_shown_as_it_is_set():
    assert [Setting(value, "kB").text for value in ("65536", "64", "0")] == ["64MB", "64 kB", "0 kB"]
    assert [Setting(value, "s").text for value in ("60", "2048")] == ["60 s", "2048 s"]
