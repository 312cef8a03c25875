"""Values that stop a merge: errors that Spark raises in the middle of a commit, and what they tell."""

import json
import re

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .errors import MergeError
from .lake import literal
from .segments import TableVersion

_MISSING, _UNFIT = "pgcdc-missing-value", "pgcdc-unfit-value"
_STRING = r'"(?:[^"\\]|\\.)*"'
_MISSING_FOUND = re.compile(rf"{_MISSING} ({_STRING}) \((.*?)\) {_MISSING}", re.DOTALL)
_UNFIT_FOUND = re.compile(rf"{_UNFIT} (\[.*?\]) {_UNFIT}", re.DOTALL)


def raise_missing(column: str, keys: list[str]) -> str:
    """SQL that stops for want of a value; `keys` are SQL, too."""
    name = json.dumps(column, ensure_ascii=False)
    start, end = literal(f"{_MISSING} {name} ("), literal(f") {_MISSING}")
    shown = ", ".join(f"CAST({key} AS STRING)" for key in keys)
    return f"raise_error(concat({start}, concat_ws(', ', {shown}), {end}))"


def raise_unfit(column: str, lake: str, key: Expression, value: Expression) -> Expression:
    """Stop where a value does not fit the column's type in the lake table."""
    told = F.to_json(F.array(F.lit(column), F.lit(lake), key, value))
    return F.raise_error(F.concat(F.lit(f"{_UNFIT} "), told, F.lit(f" {_UNFIT}")))


def stopped_by(version: TableVersion, raised: str) -> MergeError | None:
    """Read what Spark raised; None if it is another error."""
    missing, unfit = _MISSING_FOUND.search(raised), _UNFIT_FOUND.search(raised)
    if missing is not None:
        return missing_value(version, json.loads(missing[1]), missing[2])
    return None if unfit is None else _unfit_value(version, *json.loads(unfit[1]))


def missing_value(version: TableVersion, column: str, key: str) -> MergeError:
    """Say that neither the changes nor the table have a value that an update did not send."""
    return MergeError(
        f'could not merge "{version.display}": column "{column}" of {_row(version, key)}'
        " was not sent (unchanged TOAST), and nothing before it has the value",
        "take a new snapshot into a new directory and warehouse, or let it be NULL: --missing-toast null",
    )


def _unfit_value(version: TableVersion, column: str, lake: str, key: str, value: str) -> MergeError:
    if lake == "variant":
        why = "a variant has no key twice, and numbers of up to 38 digits"
        remedy = "leave out --variant"
    else:
        why = f"{lake} doesn't hold that exactly"
        remedy = "give a wider --decimal; as none holds NaN or infinity, for these leave it out"
    return MergeError(
        f'could not merge "{version.display}": column "{column}" of {_row(version, key)} is {value}: {why}',
        f"change the value at the source and stream again, or {remedy}, with a new warehouse",
    )


def _row(version: TableVersion, key: str) -> str:
    names = ", ".join(version.columns[place].name for place in version.key or ())
    return f"the row ({names}) = ({key})" if names else "a row"
