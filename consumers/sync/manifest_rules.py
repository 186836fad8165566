"""What a manifest of a sender may hold; whoever breaks a rule is not believed in anything else. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from headrace.schemas.errors import HeadraceError
from headrace.schemas.message_rules import CARRIED_DELETES_MAX, ERA_MAX, VERSION_MAX
from headrace.schemas.messages import MANIFEST_NUMBER_MAX
from headrace.schemas.sync_records import SyncDeletes, SyncFile, SyncManifest
from headrace.schemas.tables import BUCKETS_MAX, FieldType, TimeResolution, check_name

CHUNK_BYTES_MAX = 1 << 20
NAME_BYTES_MAX = 1_024
STORES_MAX = 64
DIGEST_BYTES = 16
_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")
_ORDER = re.compile(r"[0-9A-Za-z._-]{1,120}")
_FILE = re.compile(r"[^\x00-\x1f\x7f]+")


class ManifestInvalid(HeadraceError):
    """A manifest that no store could have written, or whose file is another one."""


class FormatTooNew(HeadraceError):
    """A file of a build that writes what this one cannot read."""


class SyncLoop(HeadraceError):
    """A file whose rows have passed this cluster before."""


class DatabaseDiffers(HeadraceError):
    """A database that is divided in another way here: no file of the sender fits."""


def is_sender(text: str) -> bool:
    """Whether a text is the UUID of a sender."""
    return _UUID.fullmatch(text) is not None


def is_answerable(manifest: SyncManifest) -> bool:
    """Whether a sender may have sent a manifest, and would find its verdict: one of any other is for nobody."""
    body = manifest.body
    name = body.file if isinstance(body, SyncFile) else body.group
    # A verdict has the name twice: it would not fit into its topic, and be tried again for ever.
    fits = len(name.encode()) <= NAME_BYTES_MAX
    return fits and is_sender(manifest.sender) and 0 < manifest.number <= MANIFEST_NUMBER_MAX


def check_manifest(manifest: SyncManifest, format_max: int) -> None:
    """Raises ManifestInvalid, FormatTooNew or SchemaError for a manifest that breaks a rule."""
    _check(is_sender(manifest.sender), "its sender is no UUID")
    _check(0 < len(manifest.store.encode()) <= NAME_BYTES_MAX, "it names no store")
    _check(len(manifest.name.encode()) <= NAME_BYTES_MAX, "the sender's name is too long")
    _check(manifest.session > 0 and manifest.number > 0, "sessions and numbers begin with 1")
    _check(manifest.number <= MANIFEST_NUMBER_MAX, f"its number is above {MANIFEST_NUMBER_MAX}")
    if manifest.format > format_max:
        raise FormatTooNew(
            f"the sender's store writes format {manifest.format}; this build reads up to {format_max}",
            action="upgrade the centre first",
        )
    if isinstance(manifest.body, SyncFile):
        _check_file(manifest.body)
    else:
        _check_deletes(manifest.body)


def check_loop(body: SyncFile, identity: str) -> None:
    """Raises SyncLoop for a file that has passed the cluster with this identity."""
    if identity in body.stores:
        raise SyncLoop(
            f"the rows of {body.file} have passed this cluster before",
            action="do not send to a cluster from which the rows come",
        )


def check_database(body: SyncFile, slice_ns: int, buckets: int) -> None:
    """Raises DatabaseDiffers unless the database is divided here as at the sender."""
    differing = [
        f"{name} is {here} here and {there} at the sender"
        for name, here, there in (
            ("slice", f"{slice_ns} ns", f"{body.slice_ns} ns"),
            ("buckets", buckets, body.buckets),
        )
        if here != there
    ]
    if differing:
        raise DatabaseDiffers(
            f"database {body.database}: {'; '.join(differing)}",
            action="send into another database, or make this one anew: both are fixed by its first record",
        )


def _check_file(body: SyncFile) -> None:
    parts = body.file.split("/")
    _check(len(body.file.encode()) <= NAME_BYTES_MAX and _FILE.fullmatch(body.file) is not None, "its file has no name")
    _check(len(parts) >= 3 and not {"", ".", ".."} & set(parts), f"{body.file!r} is the path of no segment")
    _check(0 < len(body.stores) <= STORES_MAX, f"it names 1 to {STORES_MAX} stores")
    for kind, name in (("database", body.database), ("table", body.table)):
        check_name(kind, name)
    _check(
        body.slice_ns > 0 and 0 <= body.bucket < body.buckets <= BUCKETS_MAX, "it has a slice or bucket of no database"
    )
    slices = {time // body.slice_ns for time in (body.min_time_ns, body.max_time_ns)}
    _check(body.min_time_ns <= body.max_time_ns and slices == {body.slice_number}, "its times are not in its slice")
    ranks = 0 <= body.era <= ERA_MAX and 0 < body.first_version <= body.last_version <= VERSION_MAX
    _check(ranks and body.generation >= 0, "it has a rank that no log gives")
    orders = (body.order, *([body.settled] if body.settled else []))
    _check(all(_ORDER.fullmatch(each) is not None for each in orders), "it has an order that no store gives")
    sizes = body.rows > 0 and body.segment_bytes > 0 and body.series_bytes > 0
    _check(sizes and 0 < body.chunk_bytes <= CHUNK_BYTES_MAX, "it has a size that no file has")
    chunks = -(-(body.segment_bytes + body.series_bytes) // body.chunk_bytes)
    _check(body.chunks == chunks, f"its {chunks} chunks are announced as {body.chunks}")
    digests = {len(each) for each in (body.content_digest, body.segment_digest, body.series_digest)}
    _check(
        digests == {DIGEST_BYTES} and len(body.segment_md5) in (0, DIGEST_BYTES), "it has a digest of another length"
    )
    _check_columns(body.tags, dict(body.fields), len(body.fields), body.resolution)
    _check(len(body.deletes) <= CARRIED_DELETES_MAX, "it brings too many deletes")
    for each in body.deletes:
        _check((each.era, each.version) > (body.era, body.last_version), "it brings a delete that does not outrank it")
        _check_predicate(dict(each.tags), each.start_ns, each.end_ns)


def _check_columns(tags: Collection[str], fields: Mapping[str, str], count: int, resolution: str) -> None:
    for kind, names in (("tag", tags), ("field", fields)):
        for name in names:
            check_name(kind, name)
    _check(len(set(tags)) == len(tags) and len(fields) == count and not set(tags) & set(fields), "a column comes twice")
    _check(set(fields.values()) <= set(FieldType), "it has a type of field that no table has")
    _check(resolution in set(TimeResolution), "it has a resolution that no table has")


def _check_deletes(body: SyncDeletes) -> None:
    _check(
        0 < len(body.group.encode()) <= NAME_BYTES_MAX and _FILE.fullmatch(body.group) is not None, "it has no group"
    )
    _check(0 < len(body.deletes) <= CARRIED_DELETES_MAX, "it has no deletes, or too many")
    for each in body.deletes:
        _check(0 <= each.era <= ERA_MAX and 0 < each.version <= VERSION_MAX, "it has a rank that no log gives")
        for kind, name in (("database", each.database), ("table", each.table)):
            check_name(kind, name)
        _check_predicate(each.tags, each.start_ns, each.end_ns)
    versions = [each.version for each in body.deletes]
    _check(versions == sorted(versions), "its deletes are not in order")


def _check_predicate(tags: Mapping[str, Any], start_ns: int | None, end_ns: int | None) -> None:
    for name, values in tags.items():
        check_name("tag", name)
        _check(bool(values), "a delete names a tag without a value")
    _check(start_ns is None or end_ns is None or start_ns < end_ns, "a delete has an empty range of time")


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise ManifestInvalid(f"the manifest is no manifest of a sealed file: {what}")
