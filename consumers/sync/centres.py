"""The centres that a store sends its rows to, and how far each has decided about them.

`{data}/sync/{centre}.json` has one centre. Nothing else counts: merges, retention and the deletes of users wait for
the lowest progress in these files. They are replaced durably, and before anyone relies on the change.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.connectors.files import create_directories, unlink_durably, write_atomically
from headrace.consumers.replication.group import Group
from headrace.consumers.store.segment_files import path_component
from headrace.schemas.errors import HeadraceError

SYNC_DIRECTORY = "sync"
CENTRE_FORMAT = 1
CENTRES_MAX = 64
_SUFFIX = ".json"


class CentreTaken(HeadraceError):
    """A centre that another sender sends to from this store."""


class CentreUnknown(HeadraceError):
    """A centre that was never registered here, or that was forgotten."""


class CentresFull(HeadraceError):
    """More centres than a store sends to."""


class CentreFileDamaged(HeadraceError):
    """A file of a centre that cannot be read."""


class CentreUnwritable(HeadraceError):
    """A file of a centre that cannot be written now; nothing has changed."""


@dataclass(frozen=True, slots=True)
class Centre:
    """One centre. `centre` is the topic id of its membership log: a centre made again is another one.

    `sender` is the UUID of the only sender from this store, `groups` the progress by name of a group's store.
    """

    centre: str
    cluster: str
    sender: str
    name: str
    groups: Mapping[str, int] = field(default_factory=dict)

    def progress(self, group: str) -> int:
        """The version up to which it has decided about all rows of a group, 0 before the first."""
        return self.groups.get(group, 0)


class Centres:
    """Owns the files `{data}/sync/*.json`. Safe for any thread. See CentreProgress and WaitingCentres."""

    def __init__(self, data_directory: Path) -> None:
        """Reads them. Raises CentreFileDamaged."""
        self.directory = data_directory / SYNC_DIRECTORY
        self._planning = threading.RLock()
        self._centres: dict[str, Centre] = {}
        for path in sorted(self.directory.glob(f"*{_SUFFIX}")):
            read = _read(path)
            self._centres[read.centre] = read

    def all(self) -> list[Centre]:
        """Every centre, in order of its cluster's name."""
        return sorted(self._centres.values(), key=lambda each: (each.cluster, each.centre))

    def lowest(self, group: str) -> int | None:
        """See CentreProgress."""
        return min((each.progress(group) for each in tuple(self._centres.values())), default=None)

    def progress(self, group: Group) -> int | None:
        """See WaitingCentres."""
        return self.lowest(group.key)

    @contextmanager
    def planning(self) -> Iterator[None]:
        """See WaitingCentres."""
        with self._planning:
            yield

    def get(self, centre: str, sender: str) -> Centre:
        """A centre as its sender knows it. Raises CentreUnknown, CentreTaken."""
        found = self._centres.get(centre)
        if found is None:
            raise CentreUnknown(f"no centre {centre!r} is registered here", action="register it again", retriable=True)
        if found.sender != sender:
            raise CentreTaken(
                f"sender {found.sender} ({found.name or 'without a name'}) sends from this store to cluster "
                f"{found.cluster}, and not {sender}",
                action="use the state directory of that sender, or headrace sync forget if it is gone for good",
            )
        return found

    def register(self, centre: str, cluster: str, sender: str, name: str) -> Centre:
        """The centre, new with progress 0 or as it is known. Raises CentreTaken, CentresFull, CentreUnwritable."""
        # Behind a running plan: merges that it appends were planned without this centre.
        with self._planning:
            if centre not in self._centres:
                if len(self._centres) >= CENTRES_MAX:
                    raise CentresFull(f"this store sends to {CENTRES_MAX} centres already", action="forget one of them")
                self._put(Centre(centre, cluster, sender, name))
            known = self.get(centre, sender)
            if (known.cluster, known.name) != (cluster, name):
                self._put(replace(known, cluster=cluster, name=name))
            return self._centres[centre]

    def set_progress(self, centre: str, sender: str, progress: Mapping[str, int], *, lower: bool = False) -> Centre:
        """Raise the progress of groups; a lower one changes nothing, unless the operator sends files again (`lower`).

        Raises CentreUnknown, CentreTaken, CentreUnwritable.
        """
        with self._planning:
            known = self.get(centre, sender)
            wanted = {
                group: version
                for group, version in progress.items()
                if (version < known.progress(group) if lower else version > known.progress(group))
            }
            if wanted:
                self._put(replace(known, groups={**known.groups, **wanted}))
            return self._centres[centre]

    def forget(self, centre: str) -> None:
        """Send to a centre no more: nothing waits for it any longer. Raises CentreUnknown, CentreUnwritable."""
        with self._planning:
            if centre not in self._centres:
                raise CentreUnknown(
                    f"no centre {centre!r} is registered here", action="GET /api/v1/sync/centres lists them"
                )
            try:
                unlink_durably(self._path(centre))
            except OSError as error:
                raise _unwritable(self._path(centre), error) from error
            del self._centres[centre]

    def _path(self, centre: str) -> Path:
        return self.directory / f"{path_component(centre)}{_SUFFIX}"

    def _put(self, centre: Centre) -> None:
        path = self._path(centre.centre)
        content = {"format": CENTRE_FORMAT, **asdict(centre)}
        try:
            create_directories(self.directory)
            write_atomically(path, json.dumps(content, indent=1, sort_keys=True))
        except OSError as error:
            raise _unwritable(path, error) from error
        self._centres[centre.centre] = centre


def _unwritable(path: Path, error: OSError) -> CentreUnwritable:
    return CentreUnwritable(
        f"{path} cannot be written: {error.strerror or error}", action="free space or repair the disk", retriable=True
    )


def _read(path: Path) -> Centre:
    # Never left out: without it rows that the centre does not have would be merged and dropped.
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        if content.pop("format") != CENTRE_FORMAT:
            raise ValueError("a format of another build")
        groups = {str(group): int(version) for group, version in content.pop("groups").items()}
        return Centre(**content, groups=groups)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CentreFileDamaged(
            f"{path} cannot be read: {error!r}",
            action="restore it; or remove it, and nothing waits for that centre any more",
        ) from error
