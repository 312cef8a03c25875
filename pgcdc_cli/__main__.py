"""The console script; `python -m pgcdc_cli` is `pgcdc`, too."""

import signal


def main() -> None:
    """Run `pgcdc`. SIGINT ends it without a traceback even while Python still imports the rest.

    SIGHUP doesn't end it yet: the command may be one that reopens its file.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pgcdc_cli.ending_signals import early_hangup  # noqa: PLC0415 - SIGINT may come meanwhile

    early_hangup.note()
    from pgcdc_cli.cli import app  # noqa: PLC0415 - the import takes long

    app.main()


if __name__ == "__main__":
    main()
