"""Connection options, environment and configuration file, without any server."""

import re

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgcdc_cli.cli.connection_options import connection_string
from pgcdc_cli.cli.printing import one_line
from pgcdc_cli.errors import PgcdcError, mask
from pgcdc_cli.formats.terminal import safe

SECRET = "s3cr3t"


def options(**given):
    names = ("dbname", "host", "port", "username", "password")
    return connection_string(**{name: given.get(name) for name in names})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "fallback_application_name=pgcdc"),
        ({"dbname": "shop"}, "fallback_application_name=pgcdc dbname=shop"),
        # So PGHOST and the others apply, as in psql.
        ({"host": "", "port": "", "username": "", "dbname": ""}, "fallback_application_name=pgcdc"),
        ({"dbname": "o'hara x"}, r"fallback_application_name=pgcdc dbname='o\'hara x'"),
        (
            {"host": "a,b", "port": "5432,5433", "username": "me", "dbname": "shop"},
            "host=a,b port=5432,5433 user=me fallback_application_name=pgcdc dbname=shop",
        ),
        (
            {"dbname": "service=shop connect_timeout=3"},
            "fallback_application_name=pgcdc service=shop connect_timeout=3",
        ),
        (
            {"dbname": "postgresql://me@h:1/shop?sslmode=require"},
            "host=h port=1 user=me fallback_application_name=pgcdc dbname=shop sslmode=require",
        ),
        (
            {"dbname": "host=theirs", "host": "ours"},
            "host=theirs fallback_application_name=pgcdc",
        ),
    ],
)
def test_options_become_one_conninfo_string(given, expected):
    assert conninfo_to_dict(options(**given)) == conninfo_to_dict(expected)


def test_a_password_in_a_connection_string_reaches_libpq():
    assert f"password={SECRET}" in options(dbname=f"postgresql://me:{SECRET}@h/shop")


@pytest.mark.parametrize(
    "dbname",
    [
        "postgresql://h/shop@prod",
        "postgresql:///shop@prod",
        "host=h dbname=shop application_name=http://a:b/c@d",
        "host=h password='x:y://z/w@v'",
    ],
)
def test_what_libpq_takes_without_a_password_to_cut_is_taken(dbname):
    taken = conninfo_to_dict(options(dbname=dbname))
    assert taken == {"fallback_application_name": "pgcdc", **conninfo_to_dict(dbname)}


def test_a_password_that_was_asked_for_wins():
    assert f"password={SECRET}" in options(dbname="password=other", password=SECRET)


@pytest.mark.parametrize(
    "dbname",
    [
        f"postgresql://me:{SECRET}%zz@h/shop",
        f"password={SECRET} x{SECRET} host=h",
        f"password='{SECRET}",
        f"postgresql://me:1/{SECRET}@h/shop",
        f"postgresql://me:{SECRET}/x@h/shop",
        f"postgresql://me:x@{SECRET}@h/shop",
        f"host=h pasword {SECRET} password={SECRET}",
        f"postgresql://me:{SECRET}@h/shop?x={SECRET}",
        f'password=a"b"{SECRET} c"d"{SECRET} host=h',
    ],
)
def test_no_malformed_connection_string_is_quoted_with_its_password(dbname):
    with pytest.raises(PgcdcError) as raised:
        options(dbname=dbname)
    assert raised.value.kind.rule.exit_status == 2
    assert raised.value.message.startswith("could not read the connection string: ")
    assert SECRET not in raised.value.message + raised.value.hint


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://me:{SECRET}@h/shop",
        f"could not reach POSTGRES://me:{SECRET}@h and postgres://:{SECRET}@/x",
        f"postgresql://me@h/shop?password={SECRET}&x=1",
        f"host=h password={SECRET} user=me",
        f"password = '{SECRET} and \\' {SECRET}' user=me",
        f"sslpassword={SECRET}",
    ],
)
def test_passwords_are_masked(text):
    assert SECRET not in mask(text)
    assert "***" in mask(text)


@pytest.mark.parametrize("text", ["host=h user=me dbname=passwords", "postgresql://me@h:5432/shop", "a: b@c"])
def test_what_is_no_password_stays(text):
    assert mask(text) == text


def test_control_characters_are_shown_not_obeyed():
    assert safe("a\x1b[31mb\x9b0m\r\n\u202e") == "a\\u001b[31mb\\u009b0m\\r\\n\\u202e"
    assert safe("Grüße 漢字") == "Grüße 漢字"
    assert one_line("a\n\tb\x07") == "a b\\u0007"


@pytest.mark.parametrize(
    ("arguments", "reason", "where"),
    [
        (["slot", "list", "--nope"], "no such option: --nope", "slot list"),
        (["slot", "list", "-p", "5x"], '-p/--port: "5x" is not a port number (1 to 65535)', "slot list"),
        (
            ["slot", "list", "-d", "postgresql://localhost/shop", "-p", "5x"],
            '-p/--port: "5x" is not a port number (1 to 65535)',
            "slot list",
        ),
        (
            ["slot", "list", "-p", "70000"],
            '-p/--port: "70000" is not a port number (1 to 65535)',
            "slot list",
        ),
        (["slot", "peek", "s", "--limit", "x"], '--limit: "x" is not a whole number', "slot peek"),
        (
            ["slot", "advance", "s", "--to", "end"],
            '--to: "end" is neither now nor an LSN, such as 0/1A2B3C8',
            "slot advance",
        ),
        (["slot", "peek", "s", "--limit", "0"], '--limit: "0" is below 1', "slot peek"),
        (["stream", "--proto-version", "9"], '--proto-version: "9" is above 4', "stream"),
        (["demo", "--seconds", "x"], '--seconds: "x" is not a number', "demo"),
        (["slot", "list", "-h", "\udcff"], "the connection options are not UTF-8", "slot list"),
        (["slot", "list", "-d"], 'option "-d" requires an argument', "slot list"),
        (["slot", "list", "-w", "-W"], "-w and -W exclude each other", "slot list"),
        (["slot", "list", "a", "b"], "got unexpected extra argument(s) (a b)", "slot list"),
        (["slot", "list", "-d", "a", "b"], "got unexpected extra argument(s) (b)", "slot list"),
        (["slot", "drop", "a", "b"], "got unexpected extra argument(s) (b)", "slot drop"),
        (["slot", "show"], "NAME is missing", "slot show"),
        (["slto"], 'no such command "slto". Did you mean "slot"?', ""),
        (["slot", "lst"], 'no such command "lst". Did you mean "list"?', "slot"),
        (["pub"], 'no such command "pub". Did you mean "publication"?', ""),
        (["peek"], 'no such command "peek". Did you mean "slot peek"?', ""),
        (["s"], 'no such command "s"', ""),
        (["list"], 'no such command "list"', ""),
        (["--nope"], "no such option: --nope", ""),
        (["slot", "list", "--jsno"], 'no such option: --jsno. Did you mean "--json"?', "slot list"),
        (
            ["stream", "--directroy", "d"],
            'no such option: --directroy. Did you mean "--directory"?',
            "stream",
        ),
        (["help", "slto"], 'no such command "slto". Did you mean "slot"?', ""),
        (["help", "slot", "nope"], 'no such command "nope"', "slot"),
        (["help", "show", "more"], 'no such command "show more"', "show"),
        (["--json", "slot", "list"], "--json goes after a command's name, or with --version", ""),
        (["demo", "--format", "csv"], '--format: "csv" is not one of "jsonl", "arrow"', "demo"),
        (
            ["show", ".", "--limit", "x"],
            '--limit: "x" is not a whole number above 0, of at most 18 digits',
            "show",
        ),
        (
            ["show", ".", "--tail", "9" * 19],
            f'--tail: "{"9" * 19}" is not a whole number above 0, of at most 18 digits',
            "show",
        ),
        (
            ["slot", "list", "-p", "5" * 5000],
            f'-p/--port: "{"5" * 5000}" is not a port number (1 to 65535)',
            "slot list",
        ),
        (
            ["show", ".", "--limit", "0"],
            '--limit: "0" is not a whole number above 0, of at most 18 digits',
            "show",
        ),
    ],
)
def test_a_malformed_command_line_is_one_line_and_a_hint(refused, arguments, reason, where):
    command = f"pgcdc {where}".strip()
    refused(
        *arguments, status=2, error=f"could not read the command line: {reason}", hint=f"see {command} --help"
    )


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("pgcdc", "no such option: -h"),
        ("pgcdc slot", "no such option: -h"),
        ("pgcdc show d", "no such option: -h"),
        ("pgcdc stream", 'option "-h" requires an argument'),
    ],
)
def test_h_leads_to_the_help(refused, command, reason):
    where = command.removesuffix(" d")
    refused(
        *command.split()[1:],
        "-h",
        status=2,
        error=f"could not read the command line: {reason}",
        hint=f"-h is the server's host; help is at: {where} -? or {where} --help",
    )


@pytest.mark.parametrize("command", ["slot list", "publication list"])
def test_a_word_too_many_may_be_the_database(refused, command):
    refused(
        *command.split(),
        "shop",
        status=2,
        error="could not read the command line: got unexpected extra argument(s) (shop)",
        hint=f"if it is the database: -d shop; see pgcdc {command} --help",
    )


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("stream s1 --publication p", "if it is the slot: -S s1; if it is the database: -d s1; "),
        ("stream -S s1 shop", "if it is the database: -d shop; "),
        ("publication create p a b", "if it is a table: --table a --table b; "),
        ("publication alter p a", "if it is a table: --add-table a; "),
        ("slot drop s1 s2", ""),
        ("slot create -S s1", "the slot's name needs no option: pgcdc slot create NAME; "),
        ("slot peek --slot s1", "the slot's name needs no option: pgcdc slot peek NAME; "),
    ],
)
def test_what_is_given_with_or_without_an_option_by_mistake(pgcdc, line, hint):
    ended = pgcdc(*line.split())
    command = re.match(r"stream|\w+ \w+", line).group()
    assert ended.status == 2
    assert f"\nhint: {hint}see pgcdc {command} --help\n" in ended.err


def test_a_commands_options_go_after_its_name(refused):
    refused(
        *("-d", "shop", "slot", "list"),
        status=2,
        error="could not read the command line: no such option: -d",
        hint="it goes after the command's name: pgcdc COMMAND -d; see pgcdc --help",
    )


@pytest.mark.parametrize(
    ("line", "wrong", "meant"),
    [
        (["merge"], 'command "merge"', "that is pgcdc spark-submit; see pgcdc --help"),
        (["version"], 'command "version"', "that is pgcdc --version; see pgcdc --help"),
        (
            ["slot", "list", "--format", "json"],
            "option: --format",
            "--json prints JSON; see pgcdc slot list --help",
        ),
    ],
)
def test_words_of_other_programs_lead_to_those_of_pgcdc(refused, line, wrong, meant):
    refused(*line, status=2, error=f"could not read the command line: no such {wrong}", hint=meant)


@pytest.mark.parametrize(
    ("option", "meant"),
    [("--start", ""), ("--drop-slot", ""), ("-P", "a publication is given by --publication; ")],
)
def test_options_of_pg_recvlogical_lead_to_the_command_that_takes_them(refused, option, meant):
    refused(
        *("stream", "-S", "s", option),
        status=2,
        error=f"could not read the command line: no such option: {option}",
        hint=f"{meant}pgcdc recvlogical takes pg_recvlogical's options; for those of pgcdc stream,"
        " see pgcdc stream --help",
    )


def test_a_malformed_connection_string_is_named_without_quoting_it(refused):
    refused(
        "slot",
        "list",
        "-d",
        "host=h nope=1",
        status=2,
        error='could not read the connection string: invalid connection option "nope"',
        hint='as in -d "host=localhost dbname=shop" or -d postgresql://user@localhost/shop',
    )


def test_a_mistyped_variable_is_a_warning(pgcdc):
    """One of another command's option, an empty one, and one of a service in Kubernetes are not.

    And recvlogical, which takes none, doesn't look at them.
    """
    variables = {"PGCDC_FROMAT": "arrow", "PGCDC_ROTATE_SIZE": "1MB", "PGCDC_COMPLETION_SECONDS": "1"}
    variables |= {
        "PGCDC_DBNAM": "",
        "PGCDC_SERVICE_HOST": "10.0.0.1",
        "PGCDC_PORT_80_TCP": "tcp://10.0.0.1:80",
    }
    warning = (
        "pgcdc: warning: environment variable PGCDC_FROMAT is of no option, and has no effect;"
        " did you mean PGCDC_FORMAT?\n"
    )
    assert pgcdc("help", "slot", env=variables).err == warning
    assert pgcdc("help", "slot", "-q", env=variables).err == ""
    assert "FROMAT" not in pgcdc("recvlogical", "--start", env=variables).err


@pytest.mark.parametrize(
    ("conninfo", "reason", "meant"),
    [
        (f"hots=h password={SECRET}", 'invalid connection option "..."', "host"),
        (f"postgresql://me:{SECRET}@h/x?sslmod=require", 'invalid URI query parameter: "..."', "sslmode"),
        ("hots=h", 'invalid connection option "hots"', "host"),
    ],
)
def test_a_mistyped_parameter_is_told_by_the_one_that_it_resembles(refused, conninfo, reason, meant):
    refused(
        *("slot", "list", "-d", conninfo),
        status=2,
        error=f"could not read the connection string: {reason}",
        hint=f'did you mean "{meant}"? as in -d "host=localhost dbname=shop" or -d postgresql://user@localhost/shop',
    )


def test_a_value_that_is_none_is_looked_for_in_the_environment_too(pgcdc):
    ran = pgcdc("slot", "list", "-d", "host=h", env={"PGCONNECT_TIMEOUT": "soon"})
    assert ran.status == 2
    error, hint = ran.err.splitlines()
    assert "connect_timeout" in error
    assert "PG* variables" in hint


def test_a_password_without_a_terminal_is_refused_with_the_ways_that_work(refused):
    refused(
        "slot",
        "list",
        "-W",
        status=2,
        error="could not ask for the password: standard input is not a terminal",
        hint="set PGPASSWORD, or put it into ~/.pgpass",
    )


@pytest.mark.parametrize(
    "arguments", [[f"postgresql://me:{SECRET}@h/x"], ["-d", f"postgresql://me:{SECRET}%@h"]]
)
def test_a_password_on_the_command_line_is_never_printed(pgcdc, arguments):
    for debug in ([], ["--debug"]):
        ran = pgcdc("slot", "list", *arguments, *debug)
        assert ran.status == 2
        assert SECRET not in ran.out + ran.err


def test_an_environment_variable_gives_a_default(refused):
    refused(
        "demo",
        env={"PGCDC_FORMAT": "csv"},
        status=2,
        error='could not read the environment: PGCDC_FORMAT: "csv" is not one of "jsonl", "arrow"',
        hint="see pgcdc demo --help",
    )


def test_a_flag_in_the_environment_is_true_or_false(refused):
    refused(
        *("slot", "list"),
        env={"PGCDC_JSON": "maybe"},
        status=2,
        error='could not read the environment: PGCDC_JSON: "maybe" is neither true nor false',
        hint="see pgcdc slot list --help",
    )


def test_no_environment_variable_takes_a_password(pgcdc):
    ran = pgcdc("slot", "list", "-h", "/nowhere", env={"PGCDC_PASSWORD": SECRET})
    assert ran.status == 3
    assert SECRET not in ran.err


def nowhere(ran):
    """The server that a command tried, which isn't there."""
    assert ran.status == 3
    return ran.err


def test_a_flag_wins_over_environment_over_section_over_head_of_the_file(pgcdc, tmp_path):
    (tmp_path / "c.toml").write_text(
        'host = "/head"\n[slot]\nhost = "/group"\n[slot.list]\nhost = "/section"\n'
    )
    config = ["--config", "c.toml"]
    assert '"/head/' in nowhere(pgcdc(*config, "publication", "list"))
    assert '"/group/' in nowhere(pgcdc(*config, "slot", "show", "x"))
    assert '"/section/' in nowhere(pgcdc(*config, "slot", "list"))
    assert '"/env/' in nowhere(pgcdc(*config, "slot", "list", env={"PGCDC_HOST": "/env"}))
    assert '"/flag/' in nowhere(pgcdc(*config, "slot", "list", "-h", "/flag", env={"PGCDC_HOST": "/env"}))


def test_the_configuration_file_may_be_named_behind_the_command_or_in_the_environment(pgcdc, tmp_path):
    (tmp_path / "c.toml").write_text('host = "/file"\n')
    assert '"/file/' in nowhere(pgcdc("slot", "list", "--config", "c.toml"))
    assert '"/file/' in nowhere(pgcdc("slot", "list", env={"PGCDC_CONFIG": "c.toml"}))
    assert pgcdc("help", "--config", "c.toml").status == 0


@pytest.mark.parametrize("publication", ['"p"', '["p"]'])
def test_an_option_that_may_be_repeated_has_one_value_or_a_list(pgcdc, tmp_path, publication):
    (tmp_path / "c.toml").write_text(f'host = "/file"\n[stream]\nslot = "s"\npublication = {publication}\n')
    assert '"/file/' in nowhere(pgcdc("stream", "--config", "c.toml"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("hots = 'x'", 'no such option: "hots"'),
        ("[slot.list]\nlimit = 3", 'no such option: "slot.list.limit"'),
        ("[slto]\nhost = 'x'", 'no such command: "slto"'),
        ("host = true", '"host" must be text or a number'),
        ("host = ['a']", '"host" must be text or a number'),
        ("[slot.create]\nif-not-exists = 'yes'", '"slot.create.if-not-exists" must be true or false'),
        ("[show]\ntable = true", '"show.table" must be text or a number'),
        ("password = 'x'", 'no such option: "password"'),
        ("host = ", "Invalid value (at end of document)"),
        ("host = " + "9" * 5000, "a number has thousands of digits"),
        ("host = " + "[" * 5000 + "]" * 5000, "it is nested too deeply"),
        ('host = "a\\u0000b"', '"host" has a NUL, which no name and no path can have'),
    ],
)
def test_a_wrong_key_or_value_in_the_configuration_file_is_named(refused, tmp_path, content, reason):
    (tmp_path / "c.toml").write_text(content)
    refused(
        "--config",
        "c.toml",
        "slot",
        "list",
        status=2,
        error=f'could not read "c.toml": {reason}',
        hint="options have their long names there, a command's own under [command]: see pgcdc(1)",
    )


def test_a_value_of_the_configuration_file_that_the_option_refuses_is_named(refused, tmp_path):
    (tmp_path / "c.toml").write_text("[demo]\nformat = 'csv'\n")
    refused(
        "--config",
        "c.toml",
        "demo",
        status=2,
        error='could not read the configuration file: "format": "csv" is not one of "jsonl", "arrow"',
        hint="see pgcdc demo --help",
    )


def test_a_missing_configuration_file_is_named(refused):
    refused(
        "--config",
        "nope.toml",
        "slot",
        "list",
        status=2,
        error='could not read "nope.toml": No such file or directory',
        hint="check --config, and the file's permissions",
    )


@pytest.mark.parametrize("option", ["--config", "--connector-config"])
def test_a_configuration_file_without_end_is_refused(pgcdc, option):
    ran = pgcdc("stream", "-S", "s", "-f", "out", "--format", "debezium", option, "/dev/zero")
    assert (ran.status, ran.out) == (2, "")
    limit = "1 MB" if option == "--config" else "16 MB"
    assert f'"/dev/zero": it has more than {limit}\n' in ran.err


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (["stream", "-S", "s", "--publication", "p", "-D", ""], "-D/--directory"),
        (["stream", "-S", "s", "--publication", "p", "-f", ""], "-f/--file"),
        (["stream", "-S", "", "--publication", "p"], "-S/--slot"),
        (["stream", "-S", "s", "--publication", ""], "--publication"),
        (["snapshot", "--table", "a.b", "-D", ""], "-D/--directory"),
        (["slot", "create", ""], "NAME"),
        (["show", "changes", ""], "PATH"),
        (["status", "changes", "--warehouse", ""], "--warehouse"),
    ],
)
def test_an_empty_name_is_none(pgcdc, tmp_path, line, name):
    """Such a name is the result of `-D "$UNSET"`."""
    ran = pgcdc(*line, env={"PGHOST": "/nowhere"})
    assert (ran.status, ran.out, list(tmp_path.iterdir())) == (2, "", [])
    assert ran.err.startswith(f"pgcdc: error: could not read the command line: {name}: the name is empty\n")


def test_an_empty_user_is_libpqs_default(pgcdc):
    assert pgcdc("slot", "list", "-U", "", "-h", "/nowhere").status == 3
