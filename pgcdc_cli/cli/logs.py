"""Log records of the rooms below as lines on standard error."""

import logging

from pgcdc_cli.cli.printing import one_line, talk, write_error

LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}
"""The least level that is shown, by verbosity."""


class LineHandler(logging.Handler):
    """`pgcdc: warning: ...`, one line each, without passwords."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= LEVELS[min(talk.verbosity, 2)]:
            level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
            write_error(f"pgcdc: {level}{one_line(record.getMessage())}")
