"""Literals of every built-in type that has a reader, at the type's limits."""

LONG = "x" * 5000
NUMBERS = [
    *("0", "-0", "1", "-1", "0.1", "1e10", "1e-5", "9999999999.999998", "1e14", "123456789012345.6"),
    *("999999999999999.9", "1e15", "1e16", "9007199254740993", "1e22", "1e23", "8.41e21", "2e44", "5e-324"),
    *("1e-4", "0.00012345", "1.5e-5", "1.5e-6", "1e-6", "1e-7", "1.7976931348623157e308", "1e100", "1e-100"),
    *("NaN", "Infinity", "-Infinity", "4503599627370497.5", "-12345678901234.5"),
]
SINGLES = [
    *("0", "-0", "1", "-1.5", "0.1", "999999", "1e6", "1234567", "-1234567.5", "16777216", "33554432", "1e7"),
    *(
        "1e9",
        "12345678",
        "1e10",
        "1e15",
        "1e-4",
        "1e-5",
        "1.5e-6",
        "1e-45",
        "3.4028235e38",
        "NaN",
        "Infinity",
    ),
    *("-Infinity", "8388608.5", "99999.99", "1e20", "8.589973e9"),
]
TEXTS = [
    "",
    "a",
    "NULL",
    "null",
    'q"uote',
    "back\\slash",
    "{brace}",
    "com,ma",
    "semi;colon",
    " blank ",
    "é🎉",
]
TEXTS += ["\t", "\n", "\v", "line\nbreak", LONG, "(", "[", "'"]
TIMES = ["00:00", "23:59:59.999999", "24:00", "01:02:03.5", "01:02:03.000001", "12:34:56", "00:00:00.1"]
ZONES = ["+00", "-03:30", "+05:30:15", "+15:59:59", "-15"]
STAMPS = [
    *("2024-02-29 23:59:59.999999", "1970-01-01", "1969-12-31 23:59:59.5", "2000-01-01", "0001-01-01"),
    *(
        "0001-12-31 12:00:00 BC",
        "4714-11-24 BC",
        "9999-12-31 23:59:59",
        "10000-01-01",
        "infinity",
        "-infinity",
    ),
    *("294276-12-31 23:59:59.999999", "0044-03-15 01:02:03.004 BC", "12345-06-07 08:09:10.1", "1999-12-31"),
]
DATES = [stamp.split()[0] + (" BC" if "BC" in stamp else "") for stamp in STAMPS] + ["5874897-12-31"]
INTERVALS = [
    *("0", "1 year", "-1 year", "1 mon", "13 mons", "-13 mons", "1 day", "-1 day", "2 days", "01:02:03.456"),
    *(
        "-01:02:03.000001",
        "-1 year +2 days",
        "1 year -2 days",
        "-1 mon 1 day",
        "-1 day 02:00",
        "1 day -02:00",
    ),
    *("-1 year 03:04:05", "1 year 2 mons -3 days 04:05:06.7", "178956970 years 7 mons 2147483647 days"),
    *(
        "-178956970 years -8 mons",
        "2562047788:00:54.775807",
        "-2562047788:00:54.775807",
        "100:00",
        "0.000001 s",
    ),
    *("-2147483648 days", "1 mon -1 day +00:00:01", "-1 day +00:00:00.5", "12 mons", "-11 mons"),
]
NUMERICS = [
    *("0", "0.0", "0.000", "1", "-1", "10", "9999", "10000", "10000.0001", "-0.0001", "0.1", "1e-5", "1.50"),
    *(
        "12345678901234567890.123456789",
        "-99999999999999999999999999999999.9",
        "1e31",
        "1e32",
        "1e-32",
        "1e-33",
    ),
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "1e500",
        "1e-500",
        "-1.5e200",
        "9" * 1000,
        "0." + "0" * 200 + "1",
        "100",
    ),
    *("0.00010002", "1000000000000", "123456.7890", "1e131071", "0.0000000000000000", "5000.00005"),
]
ADDRESSES = [
    "10.1.2.3",
    "10.1.2.3/8",
    "0.0.0.0/0",
    "255.255.255.255",
    "1.2.3.4/32",
    "1.2.3.4/31",
    "::1",
    "::",
]
ADDRESSES += [
    "2001:db8::1/32",
    "::ffff:1.2.3.4",
    "::1.2.3.4",
    "1:2:3:4:5:6:7:8",
    "1:0:0:2:0:0:0:3",
    "fe80::/10",
]
ADDRESSES += [
    "1:0:2:3:4:5:6:7",
    "0:0:1::",
    "::2",
    "::1:2",
    "1::",
    "a:0:b:0:c:0:d:0/128",
    "::ffff:0:0/96",
    "0:1::",
]
NETWORKS = ["10.0.0.0/8", "10.1.2.3", "0.0.0.0/0", "2001:db8::/32", "::1", "::/0", "1.2.3.4/32", "fe80::/10"]
POINTS = ["(0,0)", "(1,-2.5)", "(1e-5,1e15)", "(NaN,Infinity)", "(1e300,-0)"]

VALUES = {
    "bool": ["t", "f"],
    "int2": ["-32768", "0", "32767"],
    "int4": ["-2147483648", "-1", "0", "2147483647"],
    "int8": ["-9223372036854775808", "0", "9223372036854775807"],
    "oid": ["0", "1", "4294967295"],
    "xid": ["3", "4294967295"],
    "cid": ["0", "4294967295"],
    "xid8": ["0", "18446744073709551615"],
    "float4": SINGLES,
    "float8": NUMBERS,
    "numeric": NUMERICS,
    '"char"': ["a", "", "\\200", "\\377", "\\001", "\\", "é"],
    "name": ["n", "a b", ""],
    "text": TEXTS,
    "varchar": TEXTS,
    "bpchar": TEXTS,
    "char(5)": ["ab", "", "abcde"],
    "json": ['{"a": 1,\n "a": 2}', "1e400", " null "],
    "jsonb": ['{"a": [1, null]}', "null", '"x"'],
    "jsonpath": ["$.a", 'strict $."b c"[*] ? (@ > 1)'],
    "refcursor": ["c", ""],
    "bytea": ["\\x", "\\x00ff5c78", "\\x" + "ab" * 5000, "\\x0a"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "0" * 32, "f" * 32],
    "bit(3)": ["101", "000"],
    "bit(9)": ["101010101"],
    "varbit": ["", "1", "10101", "1" * 8, "1" * 1000],
    "date": DATES,
    "time": TIMES,
    "timetz": [f"{time}{zone}" for time in TIMES for zone in ZONES],
    "timestamp": STAMPS,
    "timestamptz": STAMPS,
    "interval": INTERVALS,
    "inet": ADDRESSES,
    "cidr": NETWORKS,
    "macaddr": ["08:00:2b:01:02:03", "ff:ff:ff:ff:ff:ff"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "point": POINTS,
    "lseg": ["[(1,2),(3,4.5)]"],
    "box": ["(1,1),(0,0)", "(1e20,3),(2,-4)"],
    "line": ["{1,2,3}", "{0,-1,1e-7}"],
    "circle": ["<(1,2),3>", "<(0,0),0.1>"],
    "path": ["((0,0),(1,1))", "[(0,0),(1,1),(2,1e-9)]", "[(1,2)]"],
    "polygon": ["((0,0),(1,1),(2,0))", "((1,2))"],
    "pg_lsn": ["16/B374D848", "0/0", "FFFFFFFF/FFFFFFFF", "0/1"],
    "tid": ["(0,1)", "(4294967294,65535)"],
    "pg_snapshot": ["10:20:", "10:20:10,14,15"],
    "txid_snapshot": ["10:20:10,14,15"],
    "int2vector": ["1 2 3", "", "-1"],
    "oidvector": ["1 4294967295", ""],
    "tsvector": ["'a':1 'b c':2A,3B,4C", "", "'it''s' 'back\\\\slash':16383"],
    "tsquery": [
        *("'a' & 'b'", "'a' | !'b'", "!('a' & 'b')", "a <-> b <-> c", "a <-> (b <-> c)", "a <3> b", ""),
        *("(a | b) & c", "a | b & c", "!!a", "!(a <-> b) & 'it''s'", "(a & b) <-> c", "a & b & c & d"),
        *("a <-> !b <-> (c | d)", "a:*AB", "a:ABCD"),
    ],
    "int4range": ["empty", "[1,5)", "(,5)", "[1,)", "(,)"],
    "int8range": ["[-9223372036854775808,5)"],
    "numrange": ["[1.5,2.50]", "(1,2)", "[0,NaN]", "(-Infinity,Infinity)"],
    "tsrange": ["[2024-01-01,2024-01-02 03:04:05.6)", "(,infinity]", "empty", "[0044-03-15 BC,)"],
    "tstzrange": ["[2024-01-01,)", "empty"],
    "daterange": ["[2024-01-01,infinity)", "empty"],
    "int4multirange": ["{}", "{[1,2),[5,6)}", "{(,)}"],
    "int8multirange": ["{[1,2)}"],
    "nummultirange": ["{[1.0,2.0],(5,6)}"],
    "tsmultirange": ["{[2024-01-01,2024-01-02),[2025-01-01,)}"],
    "tstzmultirange": ["{[2024-01-01,2024-01-02)}", "{}"],
    "datemultirange": ["{[2024-01-01,2024-01-02)}"],
}  # fmt: skip

# Python refuses to convert a number of 131,072 digits to an integer, which Debezium's events need.
STREAMED = {name: [value for value in values if value != "1e131071"] for name, values in VALUES.items()}
VECTORS = {"int2vector", "oidvector"}


def fill(database) -> None:
    """Create a table with a column of each type, one with a column of each array, and the publication."""
    declared = ", ".join(f"c{place} {name}" for place, name in enumerate(STREAMED))
    arrays = ", ".join(f"c{place} {name}[]" for place, name in enumerate(STREAMED) if name not in VECTORS)
    database.execute(
        "CREATE TYPE mood AS ENUM ('ok', 'so so');"
        "CREATE DOMAIN tag AS varchar(9); CREATE DOMAIN tags AS tag[]; CREATE DOMAIN square AS box;"
        f"CREATE TABLE single (id int PRIMARY KEY, {declared}, m mood, d tag);"
        f"CREATE TABLE several (id int PRIMARY KEY, {arrays},"
        " m mood[], d tag[], t tags, u tags[], s square[]);"
        "ALTER TABLE single ALTER c14 SET STORAGE EXTERNAL; ALTER TABLE several REPLICA IDENTITY FULL;"
        "CREATE PUBLICATION pub FOR TABLE single, several"
    )


def insert(database) -> None:
    """Insert a row for each value, then rows with all values of a type as arrays."""
    rows = max(map(len, STREAMED.values()))
    names = list(STREAMED)
    for row in range(rows):
        values = [STREAMED[name][row] if row < len(STREAMED[name]) else None for name in names]
        casts = ", ".join(f"%s::{name}" for name in names)
        database.execute(f"INSERT INTO single VALUES (%s, {casts}, 'so so', 'tag')", (row, *values))
    lists = ", ".join(
        f"(SELECT array_agg(c{place} ORDER BY id) FROM single WHERE id % 3 = g)"
        for place, name in enumerate(names)
        if name not in VECTORS
    )
    database.execute(
        f"INSERT INTO several SELECT g, {lists}, '{{ok,\"so so\",NULL}}', '{{a,b}}', '{{c}}',"
        r""" '{"{a,NULL}","{\"b c\"}"}', '{(1,1),(0,0);NULL}'"""
        " FROM generate_series(0, 3) g"
    )


def change(database) -> None:
    """Insert, update keys and other columns, delete, leave TOAST unchanged, and alter a table."""
    insert(database)
    database.execute("UPDATE single SET id = -id - 1, c1 = 5 WHERE id < 5")
    database.execute("UPDATE single SET m = 'ok'")
    database.execute("UPDATE several SET m = NULL WHERE id = 1")
    database.execute("DELETE FROM several WHERE id = 0")
    database.execute("ALTER TABLE single ADD extra numeric(9,3) DEFAULT 7")
    database.execute("UPDATE single SET extra = id")
    database.execute("DELETE FROM single WHERE id > 3")
