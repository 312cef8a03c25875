"""The command that is run for each finished segment (`--on-segment`): at least once, in order.

A file beside the manifest records the last segment for which it succeeded. It is written after the command
has ended, so that a run that is killed meanwhile hands the segment over again.
"""

import logging
import os
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress

from pgcdc_cli.directory import manifest
from pgcdc_cli.directory.disk import OpenFiles, damaged
from pgcdc_cli.directory.file_names import HANDED_OVER, MANIFEST
from pgcdc_cli.directory.json_fields import JsonFields, check_version, dump, load, unusable
from pgcdc_cli.directory.manifest import Segment
from pgcdc_cli.errors import ErrorKind, PgcdcError

log = logging.getLogger("pgcdc")

_FORMAT_VERSION = 1

_LOOK = 1.0
"""Seconds between checks whether the run must end; a command that ends sooner causes no warning."""


class SegmentCommand:
    """A command for `/bin/sh`, run with the manifest's line of a segment on standard input.

    The paths in that line are relative to `PGCDC_DIRECTORY` in its environment. `ends` tells whether the run
    was asked to end: even then it waits for the command, and a warning says so. The command's files are the
    user's: `umask` is the shell's, -1 for that of the process.
    """

    def __init__(self, files: OpenFiles, command: str, ends: Callable[[], bool], *, umask: int) -> None:
        self._files = files
        self._command = command
        self._ends = ends
        self._umask = umask
        self._said = False
        self._path = files.full(HANDED_OVER)

    def catch_up(self) -> None:
        """Hand over the segments that earlier runs left; none in a directory that never had a command.

        Raises OUTPUT if the command fails, CHECKPOINT if the record is damaged.
        """
        segments = manifest.read_manifest(self._files.full(MANIFEST), self._files.disk)
        last = segments[-1].segment if segments else 0
        done = self._read()
        if done is None:
            self._write(last)
        elif done > last:
            raise damaged(self._path, f"it names segment {done}, but the last one is {last}")
        else:
            self.hand_over(segment for segment in segments if segment.segment > done)

    def hand_over(self, segments: Iterable[Segment]) -> None:
        """Run the command for each segment, and wait for it. Raises OUTPUT if it fails."""
        for segment in segments:
            self._run(segment)
            self._write(segment.segment)

    def _run(self, segment: Segment) -> None:
        with subprocess.Popen(  # noqa: S602 - the command is the user's own
            self._command,
            shell=True,
            stdin=subprocess.PIPE,
            env={**os.environ, "PGCDC_DIRECTORY": os.path.abspath(self._files.root)},  # noqa: PTH100 - a text
            # Signals from the terminal go to pgcdc only, which waits for the command and then ends.
            process_group=0,
            umask=self._umask,
        ) as process:
            ended = self._wait(process, segment)
        if ended:
            how = f"signal {-ended} ended it" if ended < 0 else f"its exit status was {ended}"
            raise PgcdcError(
                ErrorKind.OUTPUT,
                f'could not hand over segment {segment.segment} to "{self._command}": {how}',
                hint="nothing is lost: the next run begins by handing over this segment",
            )

    def _wait(self, process: "subprocess.Popen[bytes]", segment: Segment) -> int:
        line: bytes | None = manifest.encode_segment(segment).encode()
        while process.returncode is None:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(line, timeout=_LOOK)
            line = None
            if process.returncode is None and self._ends() and not self._said:
                self._said = True
                log.warning(
                    'waiting for "%s" to finish with segment %d; a second signal ends it at once',
                    *(self._command, segment.segment),
                )
        return process.returncode

    def _read(self) -> int | None:
        if self._files.stat(HANDED_OVER) is None:
            return None
        try:
            content = load(self._files.disk.read(self._path))
            check_version(content, "the record of --on-segment", _FORMAT_VERSION)
            fields = JsonFields(content, "the file")
            fields.count("format_version")
            segment = fields.count("segment")
            fields.end()
        except ValueError as error:
            raise unusable(self._path, error) from error
        return segment

    def _write(self, segment: int) -> None:
        content = dump({"segment": segment, "format_version": _FORMAT_VERSION})
        self._files.disk.replace(self._path, content + b"\n")
        self._files.disk.fsync_folder(self._files.root)
