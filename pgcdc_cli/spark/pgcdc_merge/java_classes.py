"""Java's classes, found once a session: py4j asks for them each time, and then Java may search every jar.

`jvm.org.apache.hadoop.fs.Path` makes it look for classes `org`, `org.apache`, and so on, and a name without
its package for a class in each package that PySpark imports.
"""

from typing import Any

from pyspark.sql import SparkSession

_FUNCTIONS = "org.apache.spark.sql.functions"
_COMMON = ("col", "lit", "when")
"""The functions that most expressions consist of."""


def java_class(session: SparkSession, name: str) -> Any:  # noqa: ANN401 - Java's
    """Return the class with this full name."""
    jvm: Any = session._jvm  # noqa: SLF001 - PySpark has no public access to Java
    if name not in vars(jvm):
        setattr(jvm, name, getattr(jvm, name))
    return getattr(jvm, name)


def keep_what_expressions_need(session: SparkSession) -> None:
    """Find what PySpark itself asks for with each column, so that it finds it in Python."""
    functions = java_class(session, _FUNCTIONS)
    for name in _COMMON:
        setattr(functions, name, getattr(functions, name))
    session._jvm.functions = functions  # type: ignore[union-attr]  # noqa: SLF001 - as in `java_class`
    java_class(session, "PythonUtils")
