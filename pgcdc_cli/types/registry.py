"""PostgreSQL's types by OID: which ones pgcdc knows, and what becomes of their values."""

from dataclasses import dataclass, field
from typing import Any, Literal

from pgcdc_cli.types.oids import TYPES


@dataclass(frozen=True, slots=True)
class PgType:
    """A type after domains are resolved to their base type.

    `name` is `pg_type.typname` of the base type (`int4`, `numeric`; an array's is its element's with `[]`);
    `category` is `base`, `array`, `enum`, or `other` for what stays PostgreSQL's text; `element` is an
    array's element type. `sends` tells of a type that is not built in what its values are in binary: `text`
    (as they are printed), `nothing` (it has no send function) or something of their `own`.
    """

    oid: int
    typmod: int
    name: str
    category: str = "base"
    element: "PgType | None" = None
    sends: Literal["own", "text", "nothing"] = field(default="own", compare=False)

    def to_json(self) -> dict[str, Any]:
        element = None if self.element is None else self.element.to_json()
        return {
            "oid": self.oid,
            "typmod": self.typmod,
            "name": self.name,
            "category": self.category,
            "element": element,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "PgType":
        element = None if data["element"] is None else cls.from_json(data["element"])
        return cls(data["oid"], data["typmod"], data["name"], data["category"], element)


_SCALARS = {oid: (name, category) for name, category, oid, _ in TYPES}
_ELEMENTS = {array: oid for _, _, oid, array in TYPES if array}


def builtin(oid: int, typmod: int) -> PgType | None:
    """Find the built-in type (or array of one) with this OID; None for any other.

    Built-in is what has the same OID on every server: below 10000. An array's typmod is its elements'.
    Ranges, multiranges and row types have the category `other`.
    """
    if oid in _SCALARS:
        name, category = _SCALARS[oid]
        return PgType(oid, typmod, name, category)
    if oid in _ELEMENTS:
        element = builtin(_ELEMENTS[oid], typmod)
        assert element is not None
        return PgType(oid, typmod, f"{element.name}[]", "array", element)
    return None
