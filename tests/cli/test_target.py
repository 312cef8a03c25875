"""The options of a stream become its format."""

from pathlib import Path

import pytest

from pgcdc_cli.cli.target import StreamTarget, format_for, read_config
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.arrow import ArrowFormat
from pgcdc_cli.formats.debezium.debezium_format import DebeziumFormat
from pgcdc_cli.formats.jsonl import JsonlFormat
from pgcdc_cli.formats.pretty import PrettyFormat
from pgcdc_cli.formats.raw import RawFormat
from pgcdc_cli.formats.wal2json.wal2json_format import Wal2jsonFormat
from pgcdc_cli.formats.wal2json.wal2json_options import Wal2jsonOptions

CONFIG = read_config(None, ["topic.prefix=shop"])
PRETTY_PRINT = Wal2jsonOptions(pretty_print=True)


def target(form, **options):
    defaults = {
        "file": None,
        "directory": None,
        "layout": "table",
        "compression": "none",
        "numeric": "string",
        "transactions": False,
        "rotate_size": None,
        "rotate_interval": None,
        "fsync_interval": 0,
        "status_interval": 0,
        "file_mode": 0o600,
    }
    return StreamTarget(format=form, **defaults | options)


IN_FILE, IN_DIRECTORY = {"file": "changes"}, {"directory": Path("changes")}


@pytest.mark.parametrize(
    ("form", "options", "made"),
    [
        (
            "jsonl",
            {**IN_DIRECTORY, "compression": "zstd", "numeric": "number"},
            JsonlFormat("table", "zstd", "number"),
        ),
        ("jsonl", {**IN_FILE, "transactions": True}, JsonlFormat("stream", transactions=True)),
        ("jsonl", {**IN_FILE, "at_prepare": True}, JsonlFormat("stream", transactions=True)),
        ("arrow", {**IN_DIRECTORY, "compression": "zstd"}, ArrowFormat("zstd")),
        (
            "wal2json",
            {**IN_FILE, "compression": "gzip", "wal2json": PRETTY_PRINT},
            Wal2jsonFormat("stream", "gzip", PRETTY_PRINT),
        ),
        ("pretty", {**IN_FILE, "transactions": True}, PrettyFormat()),
        ("raw", IN_FILE, RawFormat()),
    ],
)
def test_a_name_and_its_options_make_the_format(form, options, made):
    assert format_for(target(form, **options)) == made


def test_debezium_servers_names_are_the_connectors_in_a_file_and_on_the_command_line(tmp_path):
    file = tmp_path / "application.properties"
    file.write_text("debezium.sink.type=kinesis\ndebezium.source.topic.prefix=file\n")
    read = [read_config(file, given).topic_prefix for given in ([], ["topic.prefix=line"])]
    assert read == ["file", "line"]
    assert read_config(None, ["debezium.source.topic.prefix=shop"], "never").snapshot_mode == "never"


def test_a_connector_makes_debeziums_format():
    made = format_for(
        target("debezium", **IN_DIRECTORY, compression="gzip", connector=CONFIG, values_only=True)
    )
    assert isinstance(made, DebeziumFormat)
    assert (made.config, made.layout, made.compression, made.values_only) == (CONFIG, "table", "gzip", True)


@pytest.mark.parametrize(
    ("options", "refused"), [({"numeric": "number"}, "--numeric"), ({"transactions": True}, "--transactions")]
)
def test_options_that_a_connector_has_as_properties_are_refused(options, refused):
    with pytest.raises(PgcdcError, match=f"could not use {refused} with format") as error:
        format_for(target("debezium", **IN_FILE, connector=CONFIG, **options))
    assert error.value.kind is ErrorKind.USAGE
