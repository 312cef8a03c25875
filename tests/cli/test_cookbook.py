"""The commands of docs/cookbook.md print what it shows, except for positions, times and transactions."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from processes import PGCDC, stream_command
from servers import Database

ROOT = Path(__file__).parents[2]
COOKBOOK = (ROOT / "docs" / "cookbook.md").read_text()
CHANGES = [
    "INSERT INTO orders VALUES (1, 'Ada', 19.90), (2, 'Grace', 5.00)",
    "UPDATE orders SET total = 25.00 WHERE id = 1",
    "DELETE FROM orders WHERE id = 2",
    "INSERT INTO orders VALUES (3, 'Edsger', 7.50)",
]
SHELL = re.findall(r"^    \$ (pgcdc .*)\n((?:    .*\n)+)", COOKBOOK, re.MULTILINE)
PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", COOKBOOK, re.DOTALL)
OF_THIS_RUN = re.compile(r"\b[0-9A-F]+/[0-9A-F]+\b|\d{4}-\d\d-\d\dT[\d:.]+Z|(?<=^\d )\d+", re.MULTILINE)

KAFKA = """
import json, os


class KafkaException(Exception):
    pass


class Producer(list):
    \"\"\"Sends to a file, as confluent_kafka does to a broker; the first time, the last record is lost.\"\"\"

    def __init__(self, settings):
        self.file = settings["bootstrap.servers"]

    def produce(self, topic, value, key, *, headers, on_delivery):
        self.append((on_delivery, [topic, key, value, headers]))

    def flush(self):
        fails = not os.path.exists(self.file)
        with open(self.file, "a") as sent:
            for number, (on_delivery, record) in enumerate(self, 1):
                lost = fails and number == len(self)
                print("" if lost else json.dumps(record), file=sent)
                on_delivery("lost" if lost else None, record)
        self.clear()
"""


def of_any_run(text):
    """A command's output without what differs in each run, and without the blanks that depend on it."""
    return OF_THIS_RUN.sub("-", re.sub(r"^ +|(?<= ) +", "", text.rstrip(), flags=re.MULTILINE))


@pytest.fixture(scope="module")
def kitchen(servers, tmp_path_factory):
    """A folder with both of the cookbook's directories."""
    folder = tmp_path_factory.mktemp("kitchen")
    shop = Database(servers[18])
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, customer text, total numeric(10,2))")
    shop.execute("ALTER TABLE orders REPLICA IDENTITY FULL; CREATE PUBLICATION pub FOR TABLE orders")
    slots = {"changes": ("jsonl", shop.create_slot()), "columns": ("arrow", shop.create_slot())}
    for statement in CHANGES:
        shop.execute(statement)
    for name, (form, slot) in slots.items():
        line = stream_command(shop.uri, slot, "-D", folder / name, "--format", form, "--endpos", "now")
        subprocess.run(line, check=True)
    shop.drop()
    return folder


def test_there_is_something_to_try():
    assert (len(SHELL), len(PROGRAMS)) == (2, 3)


@pytest.mark.parametrize(("command", "printed"), SHELL)
def test_commands(kitchen, command, printed):
    words = command.replace("'", "").split()[1:]
    found = subprocess.run([*PGCDC, *words], cwd=kitchen, capture_output=True, text=True, check=True).stdout
    assert of_any_run(found) == of_any_run(printed)


@pytest.mark.parametrize(("program", "printed"), PROGRAMS)
def test_programs(kitchen, program, printed):
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=kitchen, capture_output=True, text=True, check=False
    )
    assert (ran.stderr, ran.stdout) == ("", printed)


def test_polars_reads_a_table_that_was_altered_and_truncated(servers, tmp_path):
    shop = Database(servers[18])
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, customer text, total numeric(10,2))")
    shop.execute("ALTER TABLE orders REPLICA IDENTITY FULL; CREATE PUBLICATION pub FOR TABLE orders")
    slot = shop.create_slot()
    for statement in (
        *CHANGES,
        "TRUNCATE orders",
        "INSERT INTO orders VALUES (4, 'Barbara', 1.50)",
        "ALTER TABLE orders ADD note text, ALTER total TYPE numeric(12,4)",
        "INSERT INTO orders VALUES (5, 'Edsger', 7.5, 'more')",
    ):
        shop.execute(statement)
    line = stream_command(shop.uri, slot, "-D", tmp_path / "columns", "--format", "arrow", "--endpos", "now")
    subprocess.run(line, check=True)
    shop.drop()
    (program,) = (program for program, _ in PROGRAMS if "polars" in program)
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ran.stderr, ran.stdout) == ("", "4 Barbara 1.5000\n5 Edsger 7.5000\n")


def test_duckdb_sorts_positions_of_any_length(tmp_path):
    (program,) = (program for program, _ in PROGRAMS if "duckdb" in program)
    lines = [
        {"op": "I", "commit_lsn": lsn, "seq": 0, "new": {"id": number, "total": "1"}}
        for number, lsn in enumerate(["0/F000000", "0/10000000", "F/FFFFFFFF", "10/0"])
    ]
    folder = tmp_path / "changes" / "public.orders"
    folder.mkdir(parents=True)
    (folder / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in reversed(lines)))
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "I 0 1\nI 1 1\nI 2 1\nI 3 1\n"


def test_the_file_of_defaults_is_one(servers, tmp_path):
    (defaults,) = re.findall(r"```toml\n(.*?)```", COOKBOOK, re.DOTALL)
    (tmp_path / "shop.toml").write_text(defaults)
    line = [*PGCDC, "--config", "shop.toml", "slot", "list", "-d", servers[18].uri()]
    ran = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_completions_are_installed_where_it_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"].values()
    said = re.findall(r"/opt/pgcdc/(share/[\w./-]+)", COOKBOOK)
    assert [place for place in said if not any(path.startswith(place) for path in installed)] == []
    assert len(said) == 3


def test_events_are_sent_to_kafka_as_they_were_written(servers, tmp_path):
    (program,) = re.findall(r"```python\n(#!/usr.*?)```", COOKBOOK, re.DOTALL)
    (tmp_path / "to-kafka").write_text(program)
    (tmp_path / "confluent_kafka.py").write_text(KAFKA)
    shop = Database(servers[18])
    shop.execute("CREATE TABLE orders (id bigint PRIMARY KEY, total float8, price numeric, note text)")
    shop.execute("CREATE PUBLICATION pub FOR TABLE orders")
    slot = shop.create_slot()
    shop.execute(
        "INSERT INTO orders SELECT 9007199254740993 + n, 1e10, 1.10, E'\\t,\\u2028'"
        " FROM generate_series(1, 1001) n"
    )
    shop.execute("UPDATE orders SET id = 1 WHERE id = 9007199254740994; DELETE FROM orders WHERE id = 1")
    command = f"{sys.executable} {tmp_path / 'to-kafka'}"
    options = ["--format", "debezium", "-c", "topic.prefix=x", "-c", "snapshot.mode=never", "--endpos", "now"]
    line = stream_command(shop.uri, slot, "-D", "events", *options, "--on-segment", command)
    environment = {**os.environ, "BROKERS": str(tmp_path / "sent"), "PYTHONPATH": str(tmp_path)}
    for status in (9, 0):
        ran = subprocess.run(
            line, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, check=False
        )
        assert (ran.returncode, "KafkaException: lost" in ran.stderr) == (status, status == 9)
    shop.drop()
    sent = (tmp_path / "sent").read_text().partition("\n\n")[2].splitlines()
    assert (tmp_path / "events" / "_losses").exists()
    (events,) = (tmp_path / "events" / "public.orders").iterdir()
    records = events.read_text().split("\n")[:-1]
    assert len(sent) == len(records) == 1006
    for record, (topic, key, value, headers) in zip(records, map(json.loads, sent), strict=True):
        assert record.startswith(f'{{"topic":"{topic}","key":{key},"value":{value or "null"},"headers":')
        told = json.loads(record)["headers"]
        assert {name: json.loads(header) for name, header in headers.items()} == told
    assert sum(value is None for _, _, value, _ in map(json.loads, sent)) == 2
