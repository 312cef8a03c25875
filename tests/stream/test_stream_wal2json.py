"""`--format wal2json` compared with the plugin itself: a slot of each in one database, the same lines."""

import json
import re
import subprocess
from collections.abc import Iterator

import every_type
import pytest
from debian_server import DebianServer
from processes import PGCDC, stream_command
from segments import contents, manifest
from servers import Database
from stream_runs import NOW, stream

pytestmark = pytest.mark.skipif(
    DebianServer.missing("wal2json") is not None, reason=DebianServer.missing("wal2json") or ""
)

OPENED = re.compile(r'(\{"action":"B".*),"nextlsn":"[^"]*"\}')

IDENTITIES = """
CREATE TABLE by_key (id int, part text, note text, big text, PRIMARY KEY (part, id));
ALTER TABLE by_key ALTER big SET STORAGE EXTERNAL;
CREATE TABLE whole (id int PRIMARY KEY, note text, big text);
ALTER TABLE whole REPLICA IDENTITY FULL, ALTER big SET STORAGE EXTERNAL;
CREATE TABLE bare (a int, b text); ALTER TABLE bare REPLICA IDENTITY FULL;
CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL, note text);
CREATE UNIQUE INDEX code ON by_index (code); ALTER TABLE by_index REPLICA IDENTITY USING INDEX code;
CREATE TABLE added (id serial, note text); ALTER TABLE added REPLICA IDENTITY NOTHING;
CREATE SCHEMA "odd ""näme""\t";
CREATE TYPE "Mood" AS ENUM ('ok');
CREATE DOMAIN positive AS int NOT NULL CHECK (VALUE > 0);
CREATE TABLE "odd ""näme""\t"."T" ("I d" int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, gone int,
    "50% \\ ""q"" x" "Mood" DEFAULT 'ok', p positive DEFAULT 1, moods "Mood"[], n numeric(9,2) DEFAULT 0.5,
    f float8, flags bool[], at timestamptz(3), raw bytea NOT NULL DEFAULT '\\x00ff', ok bool DEFAULT true);
ALTER TABLE "odd ""näme""\t"."T" DROP gone;
"""
"""Tables with every kind of replica identity, and one whose columns cover every catalog fact."""

WORKLOAD = """
INSERT INTO by_key VALUES (1, 'a', 'x', repeat('long', 2000)), (2, 'b', NULL, NULL);
UPDATE by_key SET note = note || 'y';
UPDATE by_key SET id = id + 10;
UPDATE by_key SET big = 'short' WHERE part = 'a';
DELETE FROM by_key;
INSERT INTO whole VALUES (1, E'tab\\t "quoted" back\\\\slash\\x01\\x7f\\u2028é', repeat('long', 2000)),
    (2, NULL, NULL);
UPDATE whole SET note = 'z';
DELETE FROM whole WHERE id = 1;
INSERT INTO bare VALUES (NULL, 'n'), (2, NULL);
UPDATE bare SET a = 3 WHERE a = 2;
DELETE FROM bare;
INSERT INTO by_index VALUES (1, 'c', 'n'), (2, 'd', NULL);
UPDATE by_index SET note = 'm';
UPDATE by_index SET code = code || id;
DELETE FROM by_index;
INSERT INTO added (note) VALUES ('first'), (NULL);
INSERT INTO "odd ""näme""\t"."T" (moods, f, flags, at) VALUES
    ('{ok,NULL}', 1e300, '{t,f,NULL}', '2024-02-29 12:00+02'), (NULL, 'NaN', NULL, 'infinity'),
    (NULL, '-Infinity', NULL, NULL);
UPDATE "odd ""näme""\t"."T" SET n = -n, ok = NOT ok;
TRUNCATE whole, by_key;
TRUNCATE added RESTART IDENTITY CASCADE;
SELECT pg_logical_emit_message(true, 'in "it"', E'text\\n\\x01');
SELECT pg_logical_emit_message(false, 'outside', 'alone');
SELECT pg_logical_emit_message(true, '', '');
SELECT pg_logical_emit_message(true, 'zero', '\\x610062'::bytea);
"""

TOGETHER = """
BEGIN; INSERT INTO bare VALUES (1, 'one'); SAVEPOINT s; INSERT INTO bare VALUES (2, 'two');
INSERT INTO by_index VALUES (9, 'nine', 'n'); ROLLBACK TO s; SAVEPOINT t;
INSERT INTO bare VALUES (3, 'three');
SELECT pg_logical_emit_message(true, 'm', 'between'); SELECT pg_logical_emit_message(false, 'm', 'before');
RELEASE t; UPDATE bare SET b = 'four' WHERE a = 1; TRUNCATE whole; COMMIT;
"""


@pytest.fixture(scope="module")
def debian() -> Iterator[DebianServer]:
    # The plugin prints transactions without changes, such as autovacuum's; pgoutput doesn't send them.
    settings = {"max_prepared_transactions": "2", "logical_decoding_work_mem": "64kB", "autovacuum": "off"}
    server = DebianServer(settings)
    server.allow_plugin("wal2json")
    yield server
    server.stop()


@pytest.fixture
def source(debian) -> Iterator[Database]:
    database = Database(debian)
    database.execute(IDENTITIES)
    database.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    yield database
    database.drop()


class Beside:
    """A slot of the plugin and one of ours; each is read once."""

    def __init__(self, source: Database, theirs: str | None = None, ours: str | None = None) -> None:
        self.source = source
        self.theirs_slot = theirs or source.create_slot(plugin="wal2json")
        self.ours_slot = ours or source.create_slot()

    def theirs(self, **options: str) -> list[str]:
        """The plugin's output, without `nextlsn` in begins and without empty transactions."""
        given = [word for pair in {"format-version": "2", **options}.items() for word in pair]
        rows = self.source.execute(
            "SELECT data FROM pg_logical_slot_get_changes(%s, NULL, NULL, VARIADIC %s::text[])",
            (self.theirs_slot, given),
        )
        return without_empty([OPENED.sub(r"\1}", line) for (line,) in rows])

    def ours(self, *arguments: str, **options: str) -> list[str]:
        return without_empty(lines_of(self.ran(*arguments, **options).stdout))

    def ran(self, *arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
        given = [word for name, value in options.items() for word in ("--wal2json-option", f"{name}={value}")]
        line = stream_command(
            self.source.uri, self.ours_slot, "--format", "wal2json", "-f", "-", *NOW, *given, *arguments
        )
        return subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)


def lines_of(text: str) -> list[str]:
    """Split at line feeds only."""
    return text.removesuffix("\n").split("\n")


def without_empty(lines: list[str]) -> list[str]:
    """Drop begins that are followed by their commits: pgoutput doesn't send empty transactions."""
    kept: list[str] = []
    for line in lines:
        if line.startswith('{"action":"C"') and kept and kept[-1].startswith('{"action":"B"'):
            kept.pop()
        else:
            kept.append(line)
    return kept


def without_empty_objects(chunks: list[str]) -> list[str]:
    """Drop version 1's objects that begin and end without a change: pgoutput doesn't send these."""
    kept: list[str] = []
    for chunk in chunks:
        if chunk.split() in (["]}"], ["]", "}"]) and kept and kept[-1].endswith("["):
            kept.pop()
        else:
            kept.append(chunk)
    return kept


def execute(source: Database, script: str) -> None:
    """Execute each statement in a transaction of its own."""
    for statement in script.strip().removesuffix(";").split(";\n"):
        source.execute(statement)


def compared(source: Database, script: str, *arguments: str, **options: str) -> list[str]:
    beside = Beside(source)
    execute(source, script)
    expected = beside.theirs(**options)
    assert expected
    assert beside.ours(*arguments, **options) == expected
    return expected


@pytest.mark.parametrize("arguments", [(), ("--binary",), ("--proto-version", "1")], ids=" ".join)
def test_lines_are_the_plugins(source, arguments):
    lines = compared(source, WORKLOAD, *arguments)
    assert {json.loads(line)["action"] for line in lines} == set("BIUDTMC")


def test_an_option_alone_is_true_as_for_the_plugin(source):
    """`pg_recvlogical -o include-xids` is what its users write."""
    beside = Beside(source)
    execute(source, WORKLOAD)
    assert beside.ours("--wal2json-option", "include-xids") == beside.theirs(**{"include-xids": "true"})


def test_a_transaction_of_several_tables_and_savepoints_is_in_its_order(source):
    compared(source, TOGETHER)


def test_every_type_is_printed_as_the_plugin_prints_it(source):
    source.execute("DROP PUBLICATION pub")
    every_type.fill(source)
    beside = Beside(source)
    every_type.change(source)
    assert beside.ours() == beside.theirs()


@pytest.mark.parametrize("streaming", ["on", "off"])
def test_many_rows_and_streamed_transactions(source, streaming):
    beside = Beside(source)
    source.execute("INSERT INTO whole SELECT g, 'n' || g FROM generate_series(1, 3000) g")
    source.execute("UPDATE whole SET note = NULL WHERE id % 7 = 0")
    source.execute("DELETE FROM whole WHERE id % 2 = 0")
    given = dict.fromkeys(("include-xids", "include-lsn", "include-timestamp"), "on")
    assert beside.ours("--streaming", streaming, **given) == beside.theirs(**given)


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("rows", [2, 50])
def test_a_table_without_columns_has_empty_arrays(source, version, rows):
    source.execute("CREATE TABLE nothing (); ALTER TABLE nothing REPLICA IDENTITY FULL")
    script = f"INSERT INTO nothing SELECT FROM generate_series(1, {rows});\nDELETE FROM nothing"
    compared(source, script, **{"format-version": version})


OPTIONS = [
    {"include-transaction": "false"},
    {"include-xids": "true", "include-timestamp": "true", "include-lsn": "true"},
    {"include-schemas": "false", "include-types": "false"},
    {"include-types": "false", "include-type-oids": "on", "include-pk": "yes"},
    {"include-not-null": "1", "include-column-positions": "t", "include-pk": "on", "include-type-oids": "on"},
    {"add-tables": '*.whole,odd\\ "näme"\\\t.*', "include-xids": "on"},
    {"add-tables": "public.*", "filter-tables": "*.by_key , public.bare"},
    {"actions": "insert,truncate"},
    {"actions": "", "add-msg-prefixes": "outside,zero"},
    {"filter-msg-prefixes": 'outside,in\\ "it"', "actions": "delete"},
    {"format-version": "2", "include-typmod": "false", "write-in-chunks": "true", "pretty-print": "true"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_options_do_what_they_do_there(source, options):
    compared(source, WORKLOAD, **options)


DOMAINS = """
CREATE DOMAIN price AS numeric(9,2); CREATE DOMAIN dear AS price; CREATE DOMAIN bytes AS bytea;
CREATE DOMAIN moods AS "Mood"[]; CREATE DOMAIN flag AS bool;
CREATE TABLE domains (id positive, p price, d dear, b bytes, m moods, ok flag, n int, PRIMARY KEY (id, d));
"""


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize(
    "options",
    [
        {"include-pk": "on", "include-type-oids": "on"},
        {"include-pk": "on", "include-typmod": "off"},
        {"include-types": "off", "include-type-oids": "on"},
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("of_base", ["on", "off"])
def test_a_domain_has_its_own_name_or_that_of_its_base(source, version, options, of_base):
    source.execute(DOMAINS)
    script = r"INSERT INTO domains VALUES (1, 1.5, 2.25, '\x0a', '{ok}', true, 3);"
    script += "\nINSERT INTO domains VALUES (2, 'NaN', 0);\nUPDATE domains SET p = p + 1;"
    script += "\nUPDATE domains SET id = id + 5;\nDELETE FROM domains"
    compared(source, script, **{"format-version": version, "include-domain-data-type": of_base, **options})


DEFAULTS = """
CREATE TABLE simple (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, a int DEFAULT 1 + 1, b text,
    c timestamptz DEFAULT now(), d numeric(4,1) DEFAULT 0.5, e text DEFAULT 'it''s');
CREATE TABLE named (id serial PRIMARY KEY, e text DEFAULT '"\\');
"""


def test_defaults_are_the_plugins(source):
    source.execute(DEFAULTS)
    script = "INSERT INTO simple (b) VALUES ('x');\nUPDATE simple SET a = 9;\nDELETE FROM simple"
    compared(source, script, **{"include-default": "true", "include-not-null": "true"})


def test_a_default_is_a_string_in_json_whatever_is_in_it(source):
    """The plugin prints it between quotes without escaping, so that a quote in it breaks the line."""
    source.execute(DEFAULTS)
    beside = Beside(source)
    source.execute("INSERT INTO named DEFAULT VALUES")
    options = {"include-default": "true", "include-transaction": "false"}
    (theirs,) = beside.theirs(**options)
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(theirs)
    (ours,) = map(json.loads, beside.ours(**options))
    defaults = ["nextval('named_id_seq'::regclass)", "'\"\\'::text"]
    assert [column["default"] for column in ours["columns"]] == defaults
    assert [column["value"] for column in ours["columns"]] == [1, '"\\']


def test_a_changed_default_is_printed_from_then_on(source):
    source.execute(DEFAULTS)
    beside = Beside(source)
    source.execute("INSERT INTO simple (a) VALUES (1)")
    options = {"include-default": "true", "include-transaction": "false"}
    before = beside.ours(**options)
    source.execute("ALTER TABLE simple ALTER a SET DEFAULT 7")
    source.execute("INSERT INTO simple (a) VALUES (2)")
    after = beside.ours(**options)
    assert [*before, *after] == beside.theirs(**options)
    assert '"default":"7"' in after[0]


@pytest.fixture
def origins(source) -> Iterator[tuple[str, str]]:
    """The names of two replication origins."""
    names = (f"west {source.name}", f"east {source.name}")
    for name in names:
        source.execute("SELECT pg_replication_origin_create(%s)", (name,))
    yield names
    for name in names:
        source.execute("SELECT pg_replication_origin_drop(%s)", (name,))


OUTSIDE = '"transactional":false'


def write_with(source: Database, origins: tuple[str, ...]) -> None:
    """Change a few rows, and many (streamed) ones, with each origin; between them without an origin."""
    execute(source, "INSERT INTO bare VALUES (0, 'here')")
    for name in origins:
        source.execute("SELECT pg_replication_origin_session_setup(%s)", (name,))
        execute(source, TOGETHER.replace(";\n", "; "))
        source.execute("INSERT INTO whole SELECT g, repeat('n', 40) FROM generate_series(1, 3000) g")
        source.execute("UPDATE whole SET note = 'short'; TRUNCATE whole")
        source.execute("SELECT pg_replication_origin_session_reset()")
        execute(source, "INSERT INTO bare VALUES (1, 'between')")


@pytest.mark.parametrize("arguments", [(), ("--proto-version", "1")], ids=" ".join)
@pytest.mark.parametrize(
    "options",
    [
        {"include-origin": "on"},
        {"include-origin": "on", "include-xids": "on", "include-timestamp": "on", "include-lsn": "on"},
        {"include-origin": "on", "include-xids": "on", "pretty-print": "on", "format-version": "1"},
    ],
    ids=" ".join,
)
def test_an_origin_has_its_number(source, origins, arguments, options):
    beside = Beside(source)
    write_with(source, origins)
    theirs = beside.theirs(**options)
    numbers = {number for (number,) in source.execute("SELECT roident::int FROM pg_replication_origin")}
    assert {int(n) for line in theirs for n in re.findall(r'"origin": ?(\d+)', line)} == {0, *numbers}
    assert beside.ran(*arguments, **options).stdout == "".join(f"{line}\n" for line in theirs)


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("streaming", ["on", "off"])
def test_transactions_of_origins_are_left_out(source, origins, version, streaming):
    """Non-transactional messages stay: pgoutput doesn't send their origin."""
    beside = Beside(source)
    write_with(source, origins)
    query = "SELECT roident::int FROM pg_replication_origin WHERE roname = %s"
    [(west,)] = source.execute(query, (origins[0],))
    options = {"format-version": version, "filter-origins": f"{west},65000", "include-xids": "on"}
    ours, theirs = beside.ours("--streaming", streaming, **options), beside.theirs(**options)
    assert [line for line in ours if OUTSIDE not in line] == [line for line in theirs if OUTSIDE not in line]
    assert sum(OUTSIDE in line for line in ours) == len(origins)


@pytest.mark.parametrize("two_phase", [False, True], ids=["sent at commit", "sent at prepare"])
def test_a_prepared_transaction_is_there_once_it_is_committed(source, tmp_path, two_phase):
    theirs, ours = source.create_slot(plugin="wal2json"), source.create_slot(two_phase=two_phase)
    beside = Beside(source, theirs, ours)
    for number in (1, 2):
        source.execute(
            f"BEGIN; INSERT INTO bare VALUES ({number}, 'p'); PREPARE TRANSACTION '{source.name}_{number}'"
        )
    source.execute("INSERT INTO bare VALUES (3, 'between')")
    source.execute(f"COMMIT PREPARED '{source.name}_2'")
    source.execute(f"ROLLBACK PREPARED '{source.name}_1'")
    file = tmp_path / "lines.jsonl"
    more = ["-t"] if two_phase else []
    lsn = ("--wal2json-option", "include-lsn=on")
    run = stream(source.uri, ours, "--format", "wal2json", "-f", str(file), *lsn, *NOW, *more)
    assert (run.returncode, run.stderr) == (0, "")
    assert without_empty(lines_of(file.read_text())) == beside.theirs(**{"include-lsn": "on"})


@pytest.mark.parametrize("layout", ["stream", "table"])
def test_a_directory_goes_on_where_it_ended(source, tmp_path, layout):
    beside, transactions = Beside(source), str(layout == "stream").lower()
    given = ("--layout", layout, "--wal2json-option", f"include-transaction={transactions}")
    arguments = ("--format", "wal2json", "-D", str(tmp_path), "--rotate-size", "2kB", *given, *NOW)
    for script in (WORKLOAD, TOGETHER):
        execute(source, script)
        run = stream(source.uri, beside.ours_slot, *arguments)
        assert (run.returncode, run.stderr) == (0, "")
    assert len(manifest(tmp_path)) > 1
    theirs = beside.theirs(**{"include-transaction": transactions})
    found = contents(tmp_path)
    if layout == "stream":
        assert without_empty([line.decode() for line in found[None]]) == theirs
    else:
        by_table: dict[str, list[bytes]] = {}
        for line in theirs:
            by_table.setdefault(target_of(json.loads(line)), []).append(line.encode())
        assert found == by_table


def target_of(line: dict[str, str]) -> str:
    return "_messages" if line["action"] == "M" else f"{line['schema']}.{line['table']}"


def test_a_directory_keeps_to_its_options(source, tmp_path):
    slot = source.create_slot()
    source.execute("INSERT INTO bare VALUES (1, 'x')")
    arguments = ("--format", "wal2json", "-D", str(tmp_path), "--layout", "stream", *NOW)
    assert stream(source.uri, slot, *arguments).returncode == 0
    run = stream(source.uri, slot, *arguments, "--wal2json-option", "include-xids=on")
    assert (run.returncode, run.stdout) == (2, "")
    assert "its wal2json.include_xids is not set, and now it is True" in run.stderr


def test_show_reads_them(source, tmp_path):
    slot, out = source.create_slot(), tmp_path / "out"
    source.execute("INSERT INTO bare VALUES (1, 'x')")
    run = stream(source.uri, slot, "--format", "wal2json", "-D", str(out), "--layout", "stream", *NOW)
    assert run.returncode == 0
    shown = subprocess.run([*PGCDC, "show", "--json", str(out)], capture_output=True, text=True, check=True)
    changes = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [(one["table"], one["new"]) for one in changes if one["op"] == "I"] == [
        ("bare", {"a": 1, "b": "x"})
    ]


NEXT = re.compile(r',?\s*"nextlsn": ?"[0-9A-F/]+"')


EMPTY = re.compile(r'"change": ?\[\s*\]')


def objects(lines: list[str]) -> list[tuple[str, str]]:
    """Split objects into `nextlsn` and the rest, since the plugin has them in another order.

    Objects without changes are dropped: pgoutput doesn't send most empty transactions.
    """
    found = [(NEXT.search(line), NEXT.sub("", line)) for line in lines if EMPTY.search(line) is None]
    return [("" if at is None else at[0].strip(",\n\t"), rest.replace("{,", "{")) for at, rest in found]


OBJECT = re.compile(r"^\{(?:.+|\n(?:\t.*\n)+)\}$", re.MULTILINE)
"""An object on one line, or on several, of which all but the first and last begin with a tab."""

VERSION_1 = [
    {},
    {"include-xids": "true", "include-timestamp": "true", "include-lsn": "true"},
    {"include-schemas": "false", "include-types": "false", "include-type-oids": "on"},
    {"include-not-null": "1", "include-column-positions": "t", "include-type-oids": "on"},
    {"add-tables": "*.whole", "include-xids": "on"},
    {"actions": "insert,truncate", "filter-tables": "public.bare", "filter-msg-prefixes": "m"},
    {"actions": "delete", "include-transaction": "false"},
    {"include-typmod": "false"},
    {"pretty-print": "true", "include-xids": "true", "include-timestamp": "true", "include-lsn": "true"},
    {"pretty-print": "true", "include-not-null": "1", "include-column-positions": "t"},
    {"pretty-print": "true", "include-schemas": "false", "include-types": "false", "include-type-oids": "on"},
]


@pytest.mark.parametrize("options", VERSION_1, ids=" ".join)
def test_version_1_is_an_object_a_transaction(source, options):
    beside, options = Beside(source), {"format-version": "1", **options}
    execute(source, WORKLOAD)
    source.execute(TOGETHER)
    source.execute(
        "INSERT INTO by_key SELECT g, 'p', 'n', CASE g % 3 WHEN 0 THEN repeat('x', 4000) END"
        " FROM generate_series(1, 60) g; UPDATE by_key SET note = 'm'; INSERT INTO bare VALUES (1, 'b')"
    )
    printed = beside.ran(**options).stdout
    ours = OBJECT.findall(printed)
    assert printed == "".join(f"{one}\n" for one in ours)
    assert all(json.loads(one) for one in ours)
    assert objects(ours) == objects(beside.theirs(**options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pretty-print": "on", "include-typmod": "off"},
        {"pretty-print": "on", "include-types": "off", "write-in-chunks": "on"},
    ],
    ids=" ".join,
)
def test_version_1_has_the_primary_key_where_it_is_the_identity(source, options):
    beside, options = Beside(source), {"format-version": "1", "include-pk": "on", **options}
    script = """INSERT INTO by_key VALUES (1, 'a', 'x'), (2, 'b', NULL); UPDATE by_key SET note = 'y';
        UPDATE by_key SET id = id + 10; DELETE FROM by_key; INSERT INTO added VALUES (1, 'n');
        INSERT INTO "odd ""näme""\t"."T" VALUES (DEFAULT, 'ok'); DELETE FROM "odd ""näme""\t"."T\""""
    source.execute(script)
    assert beside.ran(**options).stdout == "".join(f"{line}\n" for line in beside.theirs(**options))


def test_version_1_has_the_primary_key_where_the_identity_is_another(source):
    """As in wal2json since 2.6; 2.5 has it in version 2 only."""
    beside = Beside(source)
    execute(
        source,
        "INSERT INTO whole VALUES (1);\nINSERT INTO by_index VALUES (1, 'c');\nINSERT INTO bare VALUES (1)",
    )
    objects = map(json.loads, beside.ours(**{"format-version": "1", "include-pk": "on"}))
    found = [change.get("pk") for one in objects for change in one["change"]]
    id_alone = {"pknames": ["id"], "pktypes": ["integer"]}
    assert found == [id_alone, id_alone, None]


@pytest.mark.parametrize("pretty", ["off", "on"])
def test_version_1_in_chunks_is_the_plugins_lines(source, pretty):
    """Except for empty transactions, which the plugin prints in two lines."""
    beside = Beside(source)
    options = {"format-version": "1", "write-in-chunks": "on", "include-xids": "on", "pretty-print": pretty}
    source.execute(TOGETHER)
    source.execute("ANALYZE bare")
    source.execute("INSERT INTO bare VALUES (1, 'x'), (2, 'y')")
    chunks = without_empty_objects(beside.theirs(**options))
    assert beside.ran(**options).stdout == "".join(f"{chunk}\n" for chunk in chunks)


@pytest.mark.parametrize("streaming", ["on", "off"])
def test_an_object_of_many_rows_is_written_in_pieces(source, tmp_path, streaming):
    """With commas between the pieces, too, even if some changes of a piece are left out."""
    beside, file = Beside(source), tmp_path / "lines.jsonl"
    for script in ("INSERT INTO {0} SELECT g, 'n' || g FROM generate_series(1, 40000) g",):
        source.execute("; ".join(script.format(table) for table in ("bare", "whole", "bare")))
    given = {"format-version": "1", "filter-tables": "public.bare"}
    options = [word for pair in given.items() for word in ("--wal2json-option", "=".join(pair))]
    arguments = ("--format", "wal2json", "-f", str(file), "--streaming", streaming, *options, *NOW)
    assert stream(source.uri, beside.ours_slot, *arguments).returncode == 0
    assert lines_of(file.read_text()) == beside.theirs(**given)


def test_version_1_goes_on_in_a_directory_of_one_stream(source, tmp_path):
    beside = Beside(source)
    given = ("--format", "wal2json", "-D", str(tmp_path), "--wal2json-option", "format-version=1", *NOW)
    refused = stream(source.uri, beside.ours_slot, *given)
    assert (refused.returncode, "--layout stream" in refused.stderr) == (2, True)
    for number in (1, 2):
        source.execute(f"INSERT INTO bare VALUES ({number}, 'x'), ({number}, 'y')")
        assert stream(source.uri, beside.ours_slot, *given, "--layout", "stream").returncode == 0
    found = [line.decode() for line in contents(tmp_path)[None]]
    assert found == beside.theirs(**{"format-version": "1"})
