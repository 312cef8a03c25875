"""The options of `pgcdc recvlogical` are those of pg_recvlogical, and refused in its words."""

import re

import pytest
from recvlogical_programs import BOTH, run_program

TRY_HELP = 'pg_recvlogical: hint: Try "pg_recvlogical --help" for more information.\n'

REFUSED = {
    "no slot": ([], "no slot specified"),
    "no database": (["-S", "s"], "no database specified"),
    "no action": (["-S", "s", "-d", "d"], "at least one action needs to be specified"),
    "no file": (["-S", "s", "-d", "d", "--start"], "no target file specified"),
    "drop and start": (
        ["-S", "s", "-d", "d", "--drop-slot", "--start", "-f", "-"],
        "cannot use --create-slot or --start together with --drop-slot",
    ),
    "startpos and create": (
        ["-S", "s", "-d", "d", "--create-slot", "-I", "0/1"],
        "cannot use --create-slot or --drop-slot together with --startpos",
    ),
    "endpos without start": (
        ["-S", "s", "-d", "d", "--create-slot", "--endpos=0/1"],
        "--endpos may only be specified with --start",
    ),
    "two-phase without create": (
        ["-S", "s", "-d", "d", "--start", "-f", "-", "-t"],
        "--enable-two-phase may only be specified with --create-slot",
    ),
    "failover without create": (
        ["-S", "s", "-d", "d", "--start", "-f", "-", "--enable-failover"],
        "--enable-failover may only be specified with --create-slot",
    ),
    "an argument": (["-S", "s", "extra"], 'too many command-line arguments (first is "extra")'),
}


@BOTH
@pytest.mark.parametrize(("arguments", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_pg_recvlogical_refuses_is_refused_in_its_words(arguments, reason, whose, link, server18):
    program = link if whose == "ours" else server18.bin / "pg_recvlogical"
    ran = run_program(program, *arguments)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"pg_recvlogical: error: {reason}\n{TRY_HELP}"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-F", "soon"], 'invalid value "soon" for option -F/--fsync-interval'),
        (["-F", "1_0"], 'invalid value "1_0" for option -F/--fsync-interval'),
        (["-S", "s", "--drop-slot", "-p", "abc"], '-p/--port: "abc" is not a port number (1 to 65535)'),
        (["-s", "-1"], "-s/--status-interval must be in range 0..2147483"),
        (["-I", "nowhere"], 'could not parse start position "nowhere"'),
        (["-E", "0/1x"], 'could not parse end position "0/1x"'),
        (["--nothing"], "option --nothing not recognized"),
        (
            ["--en"],
            "option '--en' is ambiguous; possibilities: '--enable-two-phase' '--enable-failover' '--endpos'",
        ),
        (["--start=1"], "option --start must not have an argument"),
        (["-S"], "option -S requires argument"),
        # It is not an abbreviation of --file and --fsync-interval.
        (["-f"], "option -f requires argument"),
    ],
)
def test_what_cannot_be_read_is_said_with_the_way_to_help(arguments, reason, link):
    ran = run_program(link, *arguments)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"pg_recvlogical: error: {reason}\n{TRY_HELP}"


@BOTH
@pytest.mark.parametrize("option", ["--help", "-?", "--version", "-V"])
def test_help_and_version_are_on_standard_output(option, whose, link, server18):
    program = link if whose == "ours" else server18.bin / "pg_recvlogical"
    # Arguments after the first one are ignored.
    ran = run_program(program, option, "--nothing")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "pg_recvlogical" in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 95


def test_help_may_be_abbreviated(link):
    ran = run_program(link, "-v", "--hel")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("Usage: pg_recvlogical")


@BOTH
def test_of_two_that_exclude_each_other_the_last_counts(whose, link, server18, tmp_path):
    program = link if whose == "ours" else server18.bin / "pg_recvlogical"
    options = ("-S", "s", "--create-slot", "-W", "--no-password")
    ran = run_program(program, "-d", "d", "-h", tmp_path, *options)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert re.match("pg_recvlogical: error: (could not connect|connection to server)", ran.stderr)


def test_as_a_command_of_pgcdc_it_has_that_name(pgcdc):
    ran = pgcdc("recvlogical", "--slot", "s")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == (
        "pgcdc recvlogical: error: no database specified\n"
        'pgcdc recvlogical: hint: Try "pgcdc recvlogical --help" for more information.\n'
    )


def test_nothing_of_pgcdcs_environment_decides_over_it(pgcdc):
    ran = pgcdc("recvlogical", "--drop-slot", env={"PGCDC_SLOT": "s", "PGCDC_CREATE_SLOT": "1"})
    assert (ran.status, ran.err.splitlines()[0]) == (1, "pgcdc recvlogical: error: no slot specified")
