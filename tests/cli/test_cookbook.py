"""The commands of docs/cookbook.md print what it shows, except for positions, times and transactions."""

import json
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
