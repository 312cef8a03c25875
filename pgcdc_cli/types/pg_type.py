"""PostgreSQL's types: what is known of one, and the built-in ones by OID."""

from dataclasses import dataclass, field
from typing import Any, Literal


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


# From `src/include/catalog/pg_type.dat`, the same for PostgreSQL 15 to 18: name, category (see `PgType`),
# OID, OID of its array type or 0. Made by tests/types/update_oids.py.
# --- generated table ---
TYPES = (
    ("bool", "base", 16, 1000),
    ("bytea", "base", 17, 1001),
    ("char", "base", 18, 1002),
    ("name", "base", 19, 1003),
    ("int8", "base", 20, 1016),
    ("int2", "base", 21, 1005),
    ("int2vector", "base", 22, 1006),
    ("int4", "base", 23, 1007),
    ("regproc", "base", 24, 1008),
    ("text", "base", 25, 1009),
    ("oid", "base", 26, 1028),
    ("tid", "base", 27, 1010),
    ("xid", "base", 28, 1011),
    ("cid", "base", 29, 1012),
    ("oidvector", "base", 30, 1013),
    ("pg_type", "other", 71, 210),
    ("pg_attribute", "other", 75, 270),
    ("pg_proc", "other", 81, 272),
    ("pg_class", "other", 83, 273),
    ("json", "base", 114, 199),
    ("xml", "base", 142, 143),
    ("pg_node_tree", "base", 194, 0),
    ("point", "base", 600, 1017),
    ("lseg", "base", 601, 1018),
    ("path", "base", 602, 1019),
    ("box", "base", 603, 1020),
    ("polygon", "base", 604, 1027),
    ("line", "base", 628, 629),
    ("cidr", "base", 650, 651),
    ("float4", "base", 700, 1021),
    ("float8", "base", 701, 1022),
    ("circle", "base", 718, 719),
    ("macaddr8", "base", 774, 775),
    ("money", "base", 790, 791),
    ("macaddr", "base", 829, 1040),
    ("inet", "base", 869, 1041),
    ("aclitem", "base", 1033, 1034),
    ("bpchar", "base", 1042, 1014),
    ("varchar", "base", 1043, 1015),
    ("date", "base", 1082, 1182),
    ("time", "base", 1083, 1183),
    ("timestamp", "base", 1114, 1115),
    ("timestamptz", "base", 1184, 1185),
    ("interval", "base", 1186, 1187),
    ("pg_database", "other", 1248, 0),
    ("timetz", "base", 1266, 1270),
    ("bit", "base", 1560, 1561),
    ("varbit", "base", 1562, 1563),
    ("numeric", "base", 1700, 1231),
    ("refcursor", "base", 1790, 2201),
    ("regprocedure", "base", 2202, 2207),
    ("regoper", "base", 2203, 2208),
    ("regoperator", "base", 2204, 2209),
    ("regclass", "base", 2205, 2210),
    ("regtype", "base", 2206, 2211),
    ("pg_authid", "other", 2842, 0),
    ("pg_auth_members", "other", 2843, 0),
    ("uuid", "base", 2950, 2951),
    ("txid_snapshot", "base", 2970, 2949),
    ("pg_lsn", "base", 3220, 3221),
    ("pg_ndistinct", "base", 3361, 0),
    ("pg_dependencies", "base", 3402, 0),
    ("tsvector", "base", 3614, 3643),
    ("tsquery", "base", 3615, 3645),
    ("gtsvector", "base", 3642, 3644),
    ("regconfig", "base", 3734, 3735),
    ("regdictionary", "base", 3769, 3770),
    ("jsonb", "base", 3802, 3807),
    ("int4range", "other", 3904, 3905),
    ("numrange", "other", 3906, 3907),
    ("tsrange", "other", 3908, 3909),
    ("tstzrange", "other", 3910, 3911),
    ("daterange", "other", 3912, 3913),
    ("int8range", "other", 3926, 3927),
    ("pg_shseclabel", "other", 4066, 0),
    ("jsonpath", "base", 4072, 4073),
    ("regnamespace", "base", 4089, 4090),
    ("regrole", "base", 4096, 4097),
    ("regcollation", "base", 4191, 4192),
    ("int4multirange", "other", 4451, 6150),
    ("nummultirange", "other", 4532, 6151),
    ("tsmultirange", "other", 4533, 6152),
    ("tstzmultirange", "other", 4534, 6153),
    ("datemultirange", "other", 4535, 6155),
    ("int8multirange", "other", 4536, 6157),
    ("pg_brin_bloom_summary", "base", 4600, 0),
    ("pg_brin_minmax_multi_summary", "base", 4601, 0),
    ("pg_mcv_list", "base", 5017, 0),
    ("pg_snapshot", "base", 5038, 5039),
    ("xid8", "base", 5069, 271),
    ("pg_subscription", "other", 6101, 0),
)
# --- end of generated table ---
_SCALARS = {oid: (name, category) for name, category, oid, _ in TYPES}
_ELEMENTS = {array: oid for _, _, oid, array in TYPES if array}
