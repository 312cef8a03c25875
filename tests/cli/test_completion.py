"""Completion in bash, zsh and fish: of pgcdc's words, and of names in a server or a directory."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import stream_command

from pgcdc_cli.cli.command_tree import walk
from pgcdc_cli.cli.root_command import root_command

PROJECT = Path(__file__).parents[2]
TREE = list(walk(root_command()))
IDS = ["-".join(path) for path, _ in TREE]
EVERY = pytest.mark.parametrize(("path", "command"), TREE, ids=IDS)
PATIENT = {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PGCDC_COMPLETION_SECONDS": "60",
}

BASH = """
source {script}
complete -p pgcdc >/dev/null || exit 1
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${{#COMP_LINE}}; _pgcdc
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

ZSH = """
_describe() {{ shift; [[ $1 == options || $1 == members ]] || shift
    print -rl -- "${{(@)${{(@P)1}}%%:*}}" }}
_files() {{ print -rl -- $1 }}; compadd() {{ shift ${{argv[(i)--]}}; print -rl -- "$@" }}
compset() {{ : }}; _message() {{ : }}
words=("$@"); CURRENT=$#
source {script}
"""

FISH = """
source {script}
complete -C (string join ' ' -- $argv) | string split -f 1 (printf '\\t')
true
"""


def complete(shell, words, cwd, **environment):
    names = {"bash": "pgcdc.bash", "zsh": "_pgcdc", "fish": "pgcdc.fish"}
    program = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell].format(
        script=PROJECT / "completions" / names[shell]
    )
    arguments = ["fish", "--no-config", "-c", program] if shell == "fish" else [shell, "-c", program, shell]
    if shell == "zsh":
        arguments = ["zsh", "-f", "-c", program, shell]
    ran = subprocess.run(
        [shutil.which(shell), *arguments[1:], *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=True,
        env={**os.environ, "HOME": str(cwd), **environment},
    )
    assert ran.stderr == ""
    return {word for word in ran.stdout.split("\n") if word}


SHELLS = pytest.mark.parametrize(
    "shell",
    [
        pytest.param(s, marks=pytest.mark.skipif(shutil.which(s) is None, reason=f"{s} isn't installed"))
        for s in ("bash", "zsh", "fish")
    ],
)


@SHELLS
@EVERY
def test_a_shell_completes_every_command_and_option(shell, path, command, tmp_path):
    members = set(getattr(command, "commands", {}))
    if members:
        assert complete(shell, [*path, ""], tmp_path) == members
    options = {name for p in command.params if p.param_type_name == "option" for name in p.opts}
    if shell == "fish":
        # After a single dash, fish itself offers both short and long names.
        assert options <= complete(shell, [*path, "-"], tmp_path)
    else:
        assert options | {"-?", "--help"} <= complete(shell, [*path, "-"], tmp_path)


@SHELLS
def test_a_shell_completes_the_values_of_an_option(shell, tmp_path):
    assert complete(shell, ["pgcdc", "demo", "--format", ""], tmp_path) == {"jsonl", "arrow"}
    assert complete(shell, ["pgcdc", "--debug", "demo", "--format", ""], tmp_path) == {"jsonl", "arrow"}
    assert complete(shell, ["pgcdc", "slot", "create", "--plugin", ""], tmp_path) == set()
    assert complete(shell, ["pgcdc", "show", "--op", ""], tmp_path) == set("IUDTMR")
    assert complete(shell, ["pgcdc", "stream", "--endpos", ""], tmp_path) == {"now"}
    formats = {"jsonl", "arrow", "debezium", "pretty"}
    assert complete(shell, ["pgcdc", "snapshot", "--format", ""], tmp_path) == formats
    assert complete(shell, ["pgcdc", "stream", "--format", ""], tmp_path) == formats | {"wal2json", "raw"}


@SHELLS
def test_a_shell_completes_the_names_of_properties_and_of_the_plugins_options(shell, tmp_path):
    properties = complete(shell, ["pgcdc", "stream", "-c", ""], tmp_path)
    assert {"decimal.handling.mode=", "transforms=", "transforms.unwrap.add.fields="} <= properties
    assert properties <= complete(shell, ["pgcdc", "show", "--connector-property", ""], tmp_path)
    options = complete(shell, ["pgcdc", "stream", "--wal2json-option", ""], tmp_path)
    assert {"format-version=", "include-xids="} <= options


def test_bash_completes_what_is_begun(tmp_path):
    assert complete("bash", ["pgcdc", "stream", "-c", "decimal"], tmp_path) == {"decimal.handling.mode="}
    assert complete("bash", ["pgcdc", "sl"], tmp_path) == {"slot"}
    assert complete("bash", ["pgcdc", "slot", "create", "--if"], tmp_path) == {"--if-not-exists"}
    assert complete("bash", ["pgcdc", "demo", "--format", "=", "a"], tmp_path) == {"arrow"}


def test_bash_completes_files_with_blanks_in_their_names(tmp_path):
    (tmp_path / "a b").mkdir()
    (tmp_path / "a.jsonl").touch()
    assert complete("bash", ["pgcdc", "show", "a"], tmp_path) == {"a b", "a.jsonl"}
    assert complete("bash", ["pgcdc", "demo", "--keep", "a"], tmp_path) == {"a b"}


def test_bash_starts_no_program_to_complete(tmp_path):
    empty = str(tmp_path)
    assert complete("bash", ["pgcdc", "sl"], tmp_path, PATH=empty) == {"slot"}
    assert complete("bash", ["pgcdc", "demo", "--format", ""], tmp_path, PATH=empty) == {"jsonl", "arrow"}


WEIRD = "a $(touch b)"


@pytest.fixture
def shop(database18):
    """A database with a publication and a few tables, some with strange names."""
    database18.execute("CREATE SCHEMA depot; CREATE TABLE depot.orders (id int); CREATE PUBLICATION news")
    database18.execute(f'CREATE TABLE "{WEIRD}" (id int); CREATE TABLE "two\nlines" (id int)')
    database18.execute('CREATE TABLE "Users" (id int)')
    return database18


@SHELLS
def test_a_shell_offers_what_the_server_has(shell, shop, tmp_path):
    def offered(*words):
        return complete(shell, ["pgcdc", *words], tmp_path, PGCDC_DBNAME=shop.uri, **PATIENT)

    slot = shop.create_slot()
    for words in (["stream", "-S"], ["slot", "drop"], ["slot", "copy"], ["doctor", "--slot"]):
        assert slot in offered(*words, "")
    assert offered("stream", "--publication", "") == offered("publication", "show", "") == {"news"}
    assert offered("publication", "create", "--schema", "") == {"depot", "public"}
    assert shop.name in offered("status", "-d", "")
    # Names are quoted as a pattern needs it, and for bash once more.
    quoted = [f'public."{WEIRD}"', 'public."Users"']
    if shell == "bash":
        quoted = [name.translate({ord(one): f"\\{one}" for one in ' $()"'}) for name in quoted]
    assert offered("stream", "--table", "") == {"depot.orders", *quoted}
    assert offered("slot", "create", "") == offered("publication", "create", "") == set()
    assert not list(tmp_path.glob("b*"))


def test_bash_completes_a_begun_quote(shop, tmp_path):
    """Bash itself keeps the quote, and ends it."""
    shop.execute("""CREATE TABLE "it's" (id int)""")

    def offered(*words):
        return complete("bash", ["pgcdc", *words], tmp_path, PGCDC_DBNAME=shop.uri, **PATIENT)

    assert offered("stream", "--table", "'dep") == offered("stream", "--table", "=", "'d") == {"depot.orders"}
    assert offered("stream", "--table", "'public.\"") == {
        f'public."{WEIRD}"',
        'public."Users"',
        """public."it'\\''s\"""",
    }


@SHELLS
def test_a_shell_offers_the_tables_of_a_directory(shell, shop, tmp_path):
    shop.execute("CREATE PUBLICATION all_of_it FOR ALL TABLES")
    slot = shop.create_slot()
    shop.execute("INSERT INTO depot.orders VALUES (1)")
    line = stream_command(shop.uri, slot, "-D", "d", "--endpos", "now", publications=["all_of_it"])
    subprocess.run(line, cwd=tmp_path, check=True, capture_output=True)
    assert complete(shell, ["pgcdc", "show", "d", "--table", ""], tmp_path, **PATIENT) == {"depot.orders"}
    submit = ["pgcdc", "spark-submit", "--input", "d", "--table", ""]
    assert complete(shell, submit, tmp_path, **PATIENT) == {"depot.orders"}


def test_the_connection_is_the_lines_own(shop, pgcdc, tmp_path):
    (tmp_path / "config.toml").write_text(f'dbname = "{shop.uri}"\n')
    for given in (f"-d '{shop.uri}'", f"--dbname={shop.uri}", "--config config.toml"):
        for line in (f"pgcdc stream {given} --publication ", f"pgcdc stream {given} --publication=ne"):
            assert pgcdc("__complete", "publications", line, env=PATIENT).out == "news\n"


@pytest.mark.parametrize(
    "line", ["pgcdc stream -d 'host=", "pgcdc nope ", "", "pgcdc stream -h 192.0.2.1 -S "]
)
def test_where_nothing_can_be_asked_nothing_is_said(line, pgcdc):
    ran = pgcdc("__complete", "slots", line, env={"PGHOST": "/nowhere"})
    assert (ran.status, ran.out, ran.err) == (0, "", "")
