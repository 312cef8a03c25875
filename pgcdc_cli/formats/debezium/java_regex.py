"""Java's regular expressions, in Python's spelling (`java.util.regex.Pattern` in Java's API)."""

import re
import warnings

_ASCII_CLASSES = {"Alpha": "a-zA-Z", "Digit": "0-9", "Alnum": "a-zA-Z0-9", "Lower": "a-z", "Upper": "A-Z"}
_ASCII_CLASS = rf"\\p\{{(?P<ascii_class>{'|'.join(_ASCII_CLASSES)})\}}"

_TOKEN = re.compile(
    rf"""\\Q(?P<quoted>.*?)(?:\\E|\Z)
    | {_ASCII_CLASS}
    | (?P<end>\\z)
    | (?P<octal>\\(?:0|\d\d)\d*)
    | \\.
    | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])
    | (?P<named>\(\?<)(?=[A-Za-z])
    | (?P<extension>\(\?(?![:=!>]|<[=!]|[ims-]+[:)])(?:\w+|.?))
    """,
    re.DOTALL | re.VERBOSE,
)
"""What the two spell differently, or only one of them has; and what must be taken as a whole."""

_TOKEN_IN_SET = re.compile(rf"{_ASCII_CLASS}|(?P<escape>\\[\db])|\\.|(?P<nested>(?<!^)\[|&&)", re.DOTALL)


def compile_java(text: str, flags: re.RegexFlag) -> re.Pattern[str]:
    """Compile a Java regular expression.

    Raises ValueError for an invalid one, and for one with what Python hasn't: nested sets, some flags.
    """
    try:
        # Python warns of what may mean a nested set one day. In Java these are characters, or refused here.
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            return re.compile(_TOKEN.sub(_in_python, text), flags)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (re.error, OverflowError) as error:
        raise ValueError(str(error)) from error


def _in_python(token: re.Match[str]) -> str:
    found = token[0]
    match token.lastgroup:
        case "quoted":
            return re.escape(token["quoted"])
        case "ascii_class":
            return f"[{_ASCII_CLASSES[token['ascii_class']]}]"
        case "end":
            return r"\Z"
        case "set":
            return _TOKEN_IN_SET.sub(_in_python_set, found)
        case "named":
            return "(?P<"
        case "octal" | "extension":
            raise ValueError(f"{found} is not supported")
    return found


def _in_python_set(token: re.Match[str]) -> str:
    if token.lastgroup == "ascii_class":
        return _ASCII_CLASSES[token["ascii_class"]]
    if token.lastgroup == "nested":
        raise ValueError("sets within sets are not supported")
    if token.lastgroup == "escape":
        raise ValueError(f"{token[0]} in a set is not supported")
    return token[0]
