"""What a node lists for a sender: the files and deletes that a centre has not decided about, as values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_names import group_identity
from headrace.schemas.message_rules import ORDER_END
from headrace.schemas.messages import CarriedDelete
from headrace.schemas.sync_records import SyncDelete, SyncFile

# A sender reads listings and has no store: it starts without pyarrow and what else a store needs.
if TYPE_CHECKING:
    from headrace.consumers.store import SegmentEntry, Tombstone
    from headrace.consumers.store.undecided import Undecided, UndecidedFile


class ListingInvalid(HeadraceError):
    """A listing that no node of this build writes."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file to send. `version` is that of the edge's log up to which its rows came, by which it is decided about.

    `segment` and `series` are names in the directory of the listing. `body` has no chunks and no MD5 yet. `settles`: a
    file that comes to its location later has a higher order.
    """

    body: SyncFile
    version: int
    segment: str
    series: str
    settles: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """What came to a group above version `after` up to `through`. `group` names its store, `identity` is group/birth.

    The files exist as links in `directory` until snapshot `id` is released or expires.
    """

    id: str
    directory: str
    group: str
    identity: str
    after: int
    through: int
    files: tuple[ListedFile, ...]
    deletes: tuple[SyncDelete, ...]
    files_left: int = 0

    def document(self) -> dict[str, Any]:
        """The listing as JSON values."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        files = [{**asdict(each), "body": _body_document(each.body)} for each in self.files]
        deletes = [{**asdict(each), "tags": dict(each.tags)} for each in self.deletes]
        return {**plain, "files": files, "deletes": deletes}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Listing:
        """The inverse of `document`. Raises ListingInvalid."""
        try:
            files = tuple(_file(each) for each in document["files"])
            deletes = tuple(SyncDelete(**{**each, "tags": _tags(each["tags"])}) for each in document["deletes"])
            return cls(**{name: document[name] for name in _PLAIN}, files=files, deletes=deletes)
        except (KeyError, TypeError, ValueError) as error:
            raise ListingInvalid(
                f"the node's listing cannot be read: {error!r}", action="use one build for node and sender"
            ) from error


FIRST_ERA = 1
_PLAIN = ("id", "directory", "group", "identity", "after", "through", "files_left")
_BYTES = tuple(each.name for each in fields(SyncFile) if each.type == "bytes")
_NAMES = ("stores", "tags")


def sync_listing(
    name: str, directory: str, group: str, after: int, store: str, found: Undecided, *, takes_loads: bool
) -> Listing:
    """The listing of what a store has found; `store` is the identity of its cluster.

    `takes_loads`: the store has files of other logs, and a late one may rank below those that it has.
    """
    identity = group_identity(group)
    files = tuple(_listed(identity, store, each, takes_loads) for each in found.files)
    deletes = tuple(
        SyncDelete(each.era, each.version, each.database, each.table, dict(each.tags), each.start_ns, each.end_ns)
        for each in found.deletes
    )
    return Listing(name, directory, group, identity, after, found.through, files, deletes, found.files_left)


def file_order(era: int, first_version: int, own: str = "") -> str:
    """The order of a file among those of its sender and location; `own` is the one that it has in its store."""
    # The end of an order of its own is no character of another one's; a dash sorts below all that may follow.
    return f"{era:06}-{first_version:015}" + (f".{own.replace(ORDER_END, '-')}" if own else "")


def _listed(identity: str, store: str, found: UndecidedFile, takes_loads: bool) -> ListedFile:
    entry, schema = found.entry, found.schema
    series_bytes, series_digest = found.series_bytes, found.series_digest
    # A file that was loaded here has an order of its own among those of one version, and the stores that it passed.
    own, passed = getattr(entry, "order", ""), tuple(getattr(entry, "stores", ()))
    body = SyncFile(
        file=f"{identity}/{entry.name}",
        stores=(*(each for each in passed if each != store), store),
        database=entry.database,
        table=entry.table,
        slice_ns=found.database.slice_ns,
        buckets=found.database.buckets,
        slice_number=entry.slice_number,
        bucket=entry.bucket,
        era=entry.era,
        first_version=entry.first_version,
        last_version=entry.last_version,
        generation=entry.generation,
        order=file_order(entry.era, entry.first_version, own),
        rows=entry.rows,
        min_time_ns=entry.min_time_ns,
        max_time_ns=entry.max_time_ns,
        tags=schema.tags,
        fields=tuple((name, str(kind)) for name, kind in schema.fields),
        resolution=str(schema.resolution),
        content_digest=bytes.fromhex(entry.content_digest),
        segment_bytes=entry.size_bytes,
        segment_digest=bytes.fromhex(entry.file_digest),
        segment_md5=b"",
        series_bytes=series_bytes,
        series_digest=series_digest,
        chunk_bytes=0,
        chunks=0,
        deletes=tuple(_carried(entry, each) for each in found.deletes),
    )
    # In the first era no slot has moved, so a location has had one log.
    settles = entry.era == FIRST_ERA and not takes_loads
    return ListedFile(body, entry.rows_version, found.segment.name, found.series.name, settles)


def _carried(entry: SegmentEntry, delete: Tombstone) -> CarriedDelete:
    # All of them delete whatever they match in the file, also those of an earlier log.
    rank = max((delete.era, delete.version), (entry.era, entry.last_version + 1))
    return CarriedDelete(*rank, delete.tags, delete.start_ns, delete.end_ns)


def _body_document(body: SyncFile) -> dict[str, Any]:
    document = asdict(body)
    return {**document, **{name: document[name].hex() for name in _BYTES}}


def _file(document: Mapping[str, Any]) -> ListedFile:
    body = dict(document["body"])
    body |= {name: bytes.fromhex(body[name]) for name in _BYTES}
    body |= {name: tuple(body[name]) for name in _NAMES}
    body["fields"] = tuple((name, kind) for name, kind in body["fields"])
    body["deletes"] = tuple(
        CarriedDelete(**{**each, "tags": tuple((name, tuple(values)) for name, values in each["tags"])})
        for each in body["deletes"]
    )
    names = document["segment"], document["series"]
    for name in names:
        # They are joined to a path; a node gives plain names.
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is no name of a file")
    return ListedFile(SyncFile(**body), int(document["version"]), *names, document["settles"] is True)


def _tags(tags: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(values) for name, values in tags.items()}
