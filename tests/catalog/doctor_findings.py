"""What `pgcdc doctor` finds in a database, and the statements that it prints, run."""

import psycopg
from processes import wait_until

from pgcdc_cli.catalog import Catalog


def findings(database, *publications, slot=None, user=None):
    uri = database.uri if user is None else database.server.uri(database.name, user=user)
    with Catalog(uri) as catalog:
        return catalog.diagnose(slot, publications)


def finding_of(database, check, *publications, **options):
    """The only finding of this kind."""
    [found] = [one for one in findings(database, *publications, **options) if one.check == check]
    return found


def problems(*arguments, **options):
    found = findings(*arguments, **options)
    return [(one.check, one.level, one.subject) for one in found if one.level != "ok"]


def mend(database, check, *publications, restart=False, **options):
    """Run the statements of the only finding of this kind, and check that it is gone."""
    found = [one for one in findings(database, *publications, **options) if one.check == check]
    [problem] = [one for one in found if one.level != "ok"]
    assert problem.statements
    with psycopg.connect(database.uri, autocommit=True) as connection:
        for statement in problem.statements:
            connection.execute(statement)
    if restart:
        assert "restart" in problem.advice
        database.server.pg_ctl("restart", "-m", "fast")
    # A new setting takes a moment to reach every process.
    wait_until(lambda: check not in [one for one, _, _ in problems(database, *publications, **options)])
    return problem


def publish(database, *statements, objects="FOR ALL TABLES"):
    for statement in statements:
        database.execute(statement)
    database.execute(f"CREATE PUBLICATION p {objects}")


KEY = "id int PRIMARY KEY"

FULL = 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL;'
