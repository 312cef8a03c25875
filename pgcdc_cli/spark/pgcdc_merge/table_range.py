"""A table's files of changes that a run merges, and what they go on from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from .control import NOBODY, ControlRow, KnownColumn
from .identity import KeptRows
from .schema_evolution import Goal
from .segments import ChangeFile, TableVersion


@dataclass(frozen=True)
class TableRange:
    """A table's files beyond what the control table says is merged; `versions` by schema file.

    `losses` are the files of all tables that say what these don't hold. The range is of one `oid`, unless it
    is a changelog's, and goes on from the rows of `base`. The lake table has those of `held` (None if there
    is none), `met` says in which segments its name was which OID's, and `gone` are the ranges of others that
    had it before within this one. `anew` says that the lake table has other rows than these go on from.
    `called` says what columns of the rows before are called now, where that is otherwise (None: they are
    gone), and `columns` what is known of the lake table's columns after the range.
    """

    table: str
    path: str
    row: ControlRow | None
    files: Sequence[ChangeFile]
    versions: Mapping[str, TableVersion]
    losses: Sequence[ChangeFile] = ()
    planned: Goal | None = None
    oid: int = NOBODY
    base: KeptRows | None = None
    held: int | None = None
    met: Sequence[tuple[int, int]] = ()
    gone: tuple["TableRange", ...] = ()
    anew: bool = False
    called: Mapping[str, str | None] = field(default_factory=dict)
    columns: tuple[KnownColumn, ...] = ()

    @property
    def merged(self) -> int:
        """The segment up to which these changes are merged; 0 for none."""
        row = self.row if self.oid == NOBODY else self.base
        return 0 if row is None else row.segment

    @property
    def followed(self) -> int | None:
        """The segment up to which its changes were looked at; None where there may have been none."""
        if self.oid != NOBODY and self.base is not None and self.base.current:
            return self.base.segment
        waits = self.row is not None and (self.oid == NOBODY or self.row.version is None)
        return self.row.segment if self.row is not None and waits else None

    def onto(self, done: int) -> "TableRange":
        """Say whether its rows go on from others than the lake table's, which is merged up to a segment."""
        known = [oid for segment, oid in self.met if segment <= done]
        held = self.held if self.held is not None or not known else known[-1]
        elsewhere = self.base is not None and self.base.path != self.path
        return replace(self, held=held, anew=self.anew or elsewhere or held not in (None, self.oid))

    def has_name_at(self, segment: int) -> bool:
        """Say whether its name was its own at the end of a segment."""
        return [oid for number, oid in self.met if number <= segment][-1:] == [self.oid]

    def beyond(self, done: int, last: int) -> "TableRange":
        """Leave out what the lake table has, which is merged up to a segment, of a range up to the last."""
        if self.anew and done < last:
            return self
        return replace(self, files=[file for file in self.files if file.segment > done])

    @property
    def lacks_rows(self) -> bool:
        """Say whether the source may have rows of which nothing came: those from before it was published."""
        return self.anew and self.base is None and self.held is not None and self.version.listed

    @property
    def rewrites(self) -> bool:
        """Say whether the lake table is written anew, from the rows before, in one commit."""
        return self.anew or bool(self.called)

    @property
    def goal(self) -> Goal:
        """What all rows are brought to, once the lake table is known."""
        assert self.planned is not None
        return self.planned

    @property
    def history(self) -> list[TableVersion]:
        """The versions, oldest first."""
        last = {file.schema: number for number, file in enumerate(self.files)}
        return [self.versions[path] for path in sorted(last, key=lambda path: last[path])]

    @property
    def spans(self) -> list["TableRange"]:
        """Cut the range where the key changes."""
        runs = [
            list(run)
            for _, run in groupby(self.files, key=lambda file: self.versions[file.schema].key_in_lake)
        ]
        return [replace(self, files=run, planned=self._goal_of(run[-1])) for run in runs]

    def _goal_of(self, file: ChangeFile) -> Goal:
        key = self.versions[file.schema].key_in_lake
        names: list[str | None] = [column.name for column in self.goal.version.columns]
        return replace(self.goal, version=replace(self.goal.version, key=tuple(map(names.index, key))))

    @property
    def version(self) -> TableVersion:
        """The newest."""
        return self.versions[self.files[-1].schema]
