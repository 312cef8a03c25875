"""A connector's configuration: both file formats, checked values, warnings about unsupported properties."""

import json
import logging
import re
from contextlib import suppress

import pytest

from pgcdc_cli.directory.checkpoint import changed_lists, check_options
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.debezium.configuration_file import as_connector, read_properties
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.properties import PROPERTIES, connector_config

MAY_CHANGE = {"snapshot.mode": "always", "table.include.list": "public.b", "heartbeat.interval.ms": "5"}


def config(**properties):
    return connector_config({"topic.prefix": "srv"} | {k.replace("_", "."): v for k, v in properties.items()})


@pytest.mark.parametrize("known", PROPERTIES, ids=lambda known: known.name)
def test_the_documented_default_is_the_one_that_holds(known):
    given = {"topic.prefix": "srv"} | ({known.name: known.default} if known.default else {})
    assert connector_config(given) == connector_config({"topic.prefix": "srv"})
    assert hasattr(connector_config(given), known.attribute)


def test_json_is_read_bare_and_as_kafka_connect_takes_it(tmp_path):
    content = {"topic.prefix": "srv", "tombstones.on.delete": False, "_note": 1}
    for name, data in (("bare", content), ("whole", {"name": "c", "config": content})):
        file = tmp_path / name
        file.write_text(json.dumps(data))
        assert read_properties(file) == {"topic.prefix": "srv", "tombstones.on.delete": "false"}


def test_properties_files_are_read_as_java_does(tmp_path):
    file = tmp_path / "c.properties"
    file.write_text(
        "# comment\n! another\ntopic.prefix=srv\n  a : b c\nlist=x,\\\n    y\n"
        "escaped\\=name = \\u00e9\\t\nempty\n"
    )
    assert read_properties(file) == {
        "topic.prefix": "srv", "a": "b c", "list": "x,y", "escaped=name": "\u00e9\t", "empty": "",
    }  # fmt: skip


def test_a_comment_does_not_go_on_and_only_line_breaks_end_a_line(tmp_path):
    file = tmp_path / "c.properties"
    file.write_bytes("\ufeff# comment \\\r\na = x\u2028y\x0bz\rb=1\\\\\r\nc=2\\\r\n  , 3\\".encode())
    assert read_properties(file) == {"a": "x\u2028y\x0bz", "b": "1\\", "c": "2, 3"}


def test_two_escapes_of_a_properties_file_may_be_one_character(tmp_path):
    file = tmp_path / "c.properties"
    file.write_text("topic.delimiter=\\ud83d\\ude00")
    assert read_properties(file) == {"topic.delimiter": "\U0001f600"}


DEEP, LONG = '{"a":' + "[" * 200_000, '{"a": ' + "1" * 5000 + "}"


@pytest.mark.parametrize("text", ["{", "[]", '{"a": [1]}', '{"a": ', DEEP, LONG], ids=len)
def test_a_file_that_is_no_configuration_is_a_usage_error(tmp_path, text):
    file = tmp_path / "c.json"
    file.write_text(text)
    with pytest.raises(PgcdcError) as error:
        read_properties(file)
    assert error.value.kind is ErrorKind.USAGE


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("decimal.handling.mode", "exact", "not one of precise, string, double"),
        ("tombstones.on.delete", "yes", "true nor false"),
        ("heartbeat.interval.ms", "-1", "whole number"),
        ("table.include.list", "a(", "regular expression"),
        ("table.include.list", "[[ab]c]", "regular expression"),
        ("topic.prefix", "my srv", "ASCII"),
        ("topic.delimiter", "/", "ASCII"),
        ("topic.transaction", "a b", "ASCII"),
        ("topic.heartbeat.prefix", "a:b", "ASCII"),
        ("skipped.operations", "c,x", "not one of c, u, d, t, r, none"),
        ("skipped.operations", "none,t", "has other values besides none"),
        ("message.key.columns", "public.t", "TABLE:COLUMN"),
        ("heartbeat.interval.ms", "2147483648", "is more than 2147483647"),
        pytest.param("heartbeat.interval.ms", "1" * 5000, "is more than 2147483647", id="5000 digits"),
        ("money.fraction.digits", "32768", "is more than 32767"),
        ("unavailable.value.placeholder", "hex:zz", "no hexadecimal digits"),
        ("unavailable.value.placeholder", "\ud800", "not valid text"),
        ("column.mask.with.2147483648.chars", "a", "more than 2147483647 characters"),
        ("transforms", "a,b,a", 'names "a" twice'),
        ("transforms", "unwrap", "a transform without transforms.unwrap.type"),
        ("column.mask.hash.ROT13.with.salt.***", "a", '"ROT13" is no hash algorithm'),
    ],
)
def test_a_wrong_value_is_a_usage_error_that_names_property_value_and_what_is_allowed(name, value, allowed):
    with pytest.raises(PgcdcError) as error:
        connector_config({"topic.prefix": "srv", name: value})
    assert error.value.kind is ErrorKind.USAGE
    assert name in error.value.message
    assert allowed in error.value.message


@pytest.mark.parametrize(
    ("name", "value"), [("time.precision.mode", "isostring"), ("column.truncate.to.0.chars", ".*")]
)
def test_what_came_with_3_4_needs_it(name, value):
    with pytest.raises(PgcdcError, match=r"debezium\.version=3\.4"):
        connector_config({"topic.prefix": "srv", name: value})
    assert connector_config({"topic.prefix": "srv", name: value, "debezium.version": "3.4"})


def test_blanks_around_a_value_are_left_out_unless_they_may_be_meant():
    kept = config(unavailable_value_placeholder=" n/a ", database_password="a ")
    assert (kept.placeholder, kept.database_password) == (" n/a ", "a ")
    assert config(time_precision_mode=" connect ").time_precision_mode == "connect"


def test_no_row_of_a_snapshot_is_skipped():
    assert config(skipped_operations="r").skipped_operations == ()
    assert config(skipped_operations="d, r").skipped_operations == ("d",)


def test_what_says_nothing_about_events_is_not_warned_of(caplog):
    with caplog.at_level(logging.WARNING, "pgcdc"):
        connector_config({"topic.prefix": "s", "include.schema.comments": "true", "query.fetch.size": "5"})
        connector_config({"topic.prefix": "s", "snapshot.fetch.size": "5", "offset.storage.topic": "t"})
        connector_config({"topic.prefix": "s", "skip.messages.without.change": "true"})
    [not_done] = caplog.messages
    assert '"skip.messages.without.change" is not supported' in not_done


def test_properties_of_kafka_connect_itself_are_known(caplog):
    connect = {
        "errors.tolerance": "all",
        "topic.creation.default.partitions": "3",
        "transaction.boundary": "poll",
    }
    with caplog.at_level(logging.WARNING, "pgcdc"):
        connector_config({"topic.prefix": "s", **connect, "header.converter.schemas.enable": "false"})
        connector_config({"topic.prefix": "s", "snapshot.select.statement.overrides.public.t": "SELECT 1"})
    headers, statements = caplog.messages
    assert '"header.converter.schemas.enable" is not supported' in headers
    assert '"snapshot.select.statement.overrides.public.t" is not supported' in statements


def test_another_converter_than_json_is_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "pgcdc"):
        connector_config(
            {
                "topic.prefix": "s",
                "key.converter": "org.apache.kafka.connect.json.JsonConverter",
                "value.converter": "io.confluent.connect.avro.AvroConverter",
            }
        )
    [warning] = caplog.messages
    assert "value.converter" in warning
    assert "AvroConverter" in warning


def test_what_is_unknown_or_not_followed_is_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "pgcdc"):
        connector_config({"topic.prefix": "s", "table.includelist": "a", "driver.x": "x", "tasks.max": "1"})
    unknown, not_done = caplog.messages
    assert "table.includelist" in unknown
    assert "table.include.list" in unknown
    assert "driver.x" in not_done


def test_a_warning_says_what_to_use_in_place_of_signals(caplog):
    with caplog.at_level(logging.WARNING, "pgcdc"):
        connector_config({"topic.prefix": "s", "signal.data.collection": "public.signals"})
    message = 'property "signal.data.collection" is not supported: --resnapshot reads a table again'
    assert caplog.messages == [message]


@pytest.mark.parametrize(
    ("earlier", "now"), [("database.server.name", "topic.prefix"), ("table.blacklist", "table.exclude.list")]
)
def test_debezium_1s_names_lead_to_todays(caplog, earlier, now):
    with caplog.at_level(logging.WARNING, "pgcdc"), suppress(PgcdcError):
        connector_config({earlier: "old"})
    assert caplog.messages == [f'property "{earlier}" is unknown: did you mean "{now}"?']


def test_debezium_servers_file_is_read_as_it_passes_it_to_the_connector(tmp_path):
    file = tmp_path / "application.properties"
    file.write_text(
        "debezium.sink.type=kinesis\nquarkus.log.level=INFO\n"
        "debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector\n"
        "debezium.source.topic.prefix=srv\n"
        "debezium.format.key.schemas.enable=true\ndebezium.format.schemas.enable=false\n"
        "debezium.format.value=json\ndebezium.format.key=avro\n"
        "debezium.transforms=unwrap\ndebezium.transforms.unwrap.predicate=p\ndebezium.predicates=p\n"
        "debezium.predicates.p.pattern=x\ndebezium.version=3.4\n"
    )
    assert as_connector(read_properties(file)) == {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "srv",
        "key.converter.schemas.enable": "true",
        "value.converter.schemas.enable": "false",
        "key.converter": "avro",
        "transforms": "unwrap",
        "transforms.unwrap.predicate": "p",
        "predicates": "p",
        "predicates.p.pattern": "x",
        "debezium.version": "3.4",
    }


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("table.include.list", "${env:TABLES}", "-c table.include.list=VALUE"),
        ("topic.prefix", "${file:/etc/c.properties:prefix}_1", "-c topic.prefix=VALUE"),
        ("database.hostname", "${DB_HOST}", "-c database.hostname=VALUE"),
        (
            "database.password",
            "${vault:db:password}",
            "PGPASSWORD or ~/.pgpass in its place, and -c database",
        ),
        ("transforms.unwrap.add.fields", "${env:FIELDS}", "-c transforms.unwrap.add.fields=VALUE"),
    ],
)
def test_a_reference_that_kafka_connect_resolves_is_not_taken_for_the_value(name, value, hint):
    unwrap = {
        "transforms": "unwrap",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    }
    with pytest.raises(PgcdcError, match="is a reference") as refused:
        connector_config({"topic.prefix": "srv", **unwrap, name: value})
    assert (value in refused.value.message) == (name != "database.password")
    assert hint in str(refused.value.hint)


def test_a_group_of_a_replacement_is_no_reference():
    outbox = {
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.route.topic.replacement": "${routedByValue}",
    }
    assert connector_config({"topic.prefix": "srv", "database.password": "a${", **outbox})


def test_the_configuration_of_another_connector_is_refused():
    with pytest.raises(
        PgcdcError, match=r'"connector\.class": ".*MySqlConnector" is not a connector for Post'
    ):
        config(connector_class="io.debezium.connector.mysql.MySqlConnector")
    assert config(connector_class="io.debezium.connector.postgresql.PostgresConnector") == config()


def test_lists_match_whole_names_whatever_their_case():
    rules = config(table_include_list=r"public\.Order.*, s2\.t")
    assert rules.includes_table("public", "orders")
    assert rules.includes_table("S2", "T")
    assert not rules.includes_table("s2", "tt")
    assert not rules.includes_table("xpublic", "orders")


def test_java_spellings_are_understood():
    rules = config(table_exclude_list=r"public.\Qa.b\E,public.\p{Digit}+,(?<s>x)\.t")
    excluded = [("public", "a.b"), ("public", "12"), ("x", "t")]
    assert not any(rules.includes_table(*name) for name in excluded)
    assert rules.includes_table("public", "axb")


@pytest.mark.parametrize("kind", ["schema", "table", "column", "message.prefix"])
def test_of_two_opposite_lists_one_is_refused(kind):
    with pytest.raises(PgcdcError, match=f"{kind}.exclude.list"):
        connector_config({"topic.prefix": "s", f"{kind}.include.list": "a", f"{kind}.exclude.list": "b"})
    connector_config({"topic.prefix": "s", f"{kind}.include.list": "a", f"{kind}.exclude.list": ""})


def test_case_and_classes_of_characters_are_those_of_ascii():
    rules = config(table_include_list=r"public.ÜB,public.\w+")
    found = [rules.includes_table("public", table) for table in ("üb", "Üb", "ÜB", "AB", "é")]
    assert found == [False, True, True, True, False]


def test_schemas_columns_messages_and_keys_have_their_lists():
    rules = config(
        schema_exclude_list="private", column_exclude_list="public.t.secret",
        message_prefix_include_list="app.*", message_key_columns="public.(a|b):x, y;public.c:z",
    )  # fmt: skip
    assert not rules.includes_table("private", "t")
    assert [rules.includes_column("public", "t", name) for name in ("id", "secret")] == [True, False]
    assert [rules.includes_message(prefix) for prefix in ("app-1", "other")] == [True, False]
    found = [rules.key_columns("public", table, ("y", "x", "z")) for table in "abcd"]
    assert found == [("x", "y"), ("x", "y"), ("z",), ()]


def test_columns_of_keys_are_patterns_too_in_the_order_of_the_rules_then_of_the_table():
    rules = config(message_key_columns="public.t:N.*,id;public.t:nosuch;.*:note")
    assert rules.key_columns("public", "t", ("id", "note", "name", "x")) == ("note", "name", "id")
    assert rules.key_columns("public", "u", ("id", "x")) == ()


def test_a_password_is_in_no_message(caplog):
    with caplog.at_level(logging.DEBUG), pytest.raises(PgcdcError) as error:
        connector_config({"database.password": "hunter2", "database.passwrod": "hunter2"})
    assert "hunter2" not in caplog.text + str(error.value) + error.value.message


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("column.mask.hash.ROT13.with.salt.hun.ter2", "a", "column.mask.hash.ROT13.with.salt.***"),
        ("column.mask.hash.v2.MD5.with.salt.hunter2", "(", "column.mask.hash.v2.MD5.with.salt.***"),
        ("column.mask.hash.MD5.with.salt.hunter2", "${env:NAMES}", "column.mask.hash.MD5.with.salt.***"),
        ("column.mask.hash.MD5.hunter2", "a", "column.mask.hash.MD5.***"),
        ("column.mask.hsh.MD5.with.salt.hunter2", "a", "column.mask.hsh.MD5.with.salt.***"),
    ],
)
def test_a_salt_is_in_no_message(caplog, name, value, shown):
    """Also one in a name that is mistyped; whoever has it can find out what was hashed."""
    with pytest.raises(PgcdcError) as error:
        connector_config({name: value})
    told = caplog.text + error.value.message + error.value.hint
    assert f'"{shown}"' in told
    assert "ter2" not in told


def test_the_prefix_is_missed():
    with pytest.raises(PgcdcError, match=r"topic\.prefix"):
        connector_config({})
    assert isinstance(config(), ConnectorConfig)


@pytest.mark.parametrize(
    "name",
    ["column.include.list", "column.mask.with.3.chars", "message.key.columns", "predicates.p.pattern"],
)
def test_the_end_of_a_long_pattern_counts(name):
    plain = {
        "topic.prefix": "shop",
        "transforms": "unwrap",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.unwrap.predicate": "p",
        "predicates": "p",
        "predicates.p.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
        "predicates.p.pattern": "x",
    }
    long = f"public.({'|'.join(f'table{number}' for number in range(50))})"
    found = {connector_config(plain | {name: f"{long}{end}"}).fingerprint for end in (":a", ":b", ":b")}
    assert len(found) == 2


def test_a_checkpoint_has_the_properties_that_events_depend_on_and_no_secrets():
    given = {
        "topic.prefix": "shop",
        "column.include.list": "public.orders.id",
        "transforms": "unwrap",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "snapshot.mode": "never",
        "table.include.list": "public.orders",
        "database.password": "secret",
        "slot.name": "s",
        "column.mask.hash.SHA-256.with.salt.CzQMA": "public.a.b",
        "unknown.property": "secret",
    }
    config = connector_config(given)
    assert config.recorded == {
        "connector": config.fingerprint,
        "connector.topic.prefix": "shop",
        "connector.column.include.list": "public.orders.id",
        "connector.transforms": "unwrap",
        "connector.transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "connector.snapshot.mode": "never",
        "connector.table.include.list": "public.orders",
        "connector.column.mask.hash.SHA-256.with.salt.6dc43ac4": "public.a.b",
    }
    check_options("c", connector_config(given | MAY_CHANGE).recorded, config.recorded)


def test_another_salt_is_noticed_beside_what_may_change():
    salted = "column.mask.hash.SHA-256.with.salt."
    one, other = (
        connector_config({"topic.prefix": "shop", f"{salted}{salt}": "public.a.b"} | more).recorded
        for salt, more in (("CzQMA", {}), ("CzQMB", MAY_CHANGE))
    )
    with pytest.raises(PgcdcError, match=re.escape(salted)) as caught:
        check_options("c", other, one)
    assert "CzQM" not in caught.value.message


def test_lists_that_are_written_in_another_way_are_no_other_lists():
    given = {"topic.prefix": "shop", "table.include.list": "public.a,public.b"}
    spaced = given | {"table.include.list": "public.a, public.b", "schema.include.list": ""}
    one, other = (connector_config(properties).recorded for properties in (given, spaced))
    assert changed_lists(one, other) == []
    changed = connector_config(given | {"message.prefix.exclude.list": "x"}).recorded
    assert changed_lists(one, changed) == ["message.prefix.exclude.list"]


def test_a_directory_of_an_older_version_goes_on_with_other_lists():
    """It recorded neither transforms nor salts, and its fingerprint includes what may change."""
    plain = {"topic.prefix": "shop", "table.include.list": "public.a", "snapshot.mode": "never"}
    older = {"connector": "823e4e3da9394aac"} | {f"connector.{name}": text for name, text in plain.items()}
    assert connector_config(plain).recorded == older
    check_options("c", connector_config(plain | MAY_CHANGE).recorded, older)
