"""Java's regular expressions mean in Python what Java 17 makes of them, or are refused.

The expected results are those of `Pattern.compile(text, CASE_INSENSITIVE).matcher(name).matches()`.
"""

import re

import pytest

from pgcdc_cli.formats.debezium.java_regex import compile_java


@pytest.mark.parametrize(
    ("text", "name", "matches"),
    [
        (r"public\.[_\p{Alnum}]+", "public.a_1", True),
        (r"[\p{Alpha}_]+", "A_b", True),
        (r"[^\p{Digit}]+", "a[]", True),
        (r"[^\p{Digit}]+", "a1", False),
        (r"[a\p{Upper}]", "q", True),
        (r"\p{Digit}+\.t", "12.t", True),
        (r"[a\]b]+", "a]b", True),
        (r"[]a]+", "]a", True),
        (r"[^]a]+", "b", True),
        (r"[a||b]+", "|", True),
        (r"\\z", r"\z", True),
        (r"a\z", "a", True),
        (r"\Qa.[b\E.", "a.[bc", True),
        (r"\Qa.b", "axb", False),
        (r"(?<x>a)\1", "aa", True),
        ("(?-i:a)b", "aB", True),
        ("(?-i:a)b", "Ab", False),
        ("(?>a+)b", "aab", True),
        ("a++b", "aab", True),
    ],
)
def test_an_expression_matches_what_it_matches_in_java(text, name, matches):
    compiled = compile_java(text, re.ASCII | re.IGNORECASE)
    assert (compiled.fullmatch(name) is not None) is matches


@pytest.mark.parametrize(
    "text",
    ["[op-z[w]]+", "[_[ab]]", "[a-z&&[^b]]", "[a&&b]", "[[ab]c]", "(?u)x", "(?iu)x", "(?x)a b",
     r"\p{Punct}", r"[\p{L}]", r"a\R"],
)  # fmt: skip
def test_what_only_java_has_is_refused(text):
    with pytest.raises(ValueError, match=r"not supported|bad escape"):
        compile_java(text, re.ASCII)


@pytest.mark.parametrize(
    "text",
    ["(?P<a>x)", "(?P<a>x)(?P=a)", "(?#c)x", "(?a)x", "(?L)x", "(a)?(?(1)b|c)", r"[\1]", r"\08", r"[\b]",
     r"\101", "a(", "[ab", "(?", "a{99999999999999}", pytest.param("(" * 3000 + ")" * 3000, id="deep")],
)  # fmt: skip
def test_what_java_refuses_or_reads_otherwise_is_refused(text):
    """Java matches 3,000 groups within each other, and `\\101` with nothing."""
    with pytest.raises(ValueError):  # noqa: PT011 - each has words of its own
        compile_java(text, re.ASCII)
