"""Names of segments on disk.

`{database}/{table}/{slice}-{bucket}/{era}-{first}-{last}.parquet`, era in 6 digits, versions in 15, so that of two files in one directory the
later name holds the higher ranks. A file that was rewritten over the same version range carries `-{generation}` behind it; the one it replaces
is never in the catalogue with it. Database and table names are percent-encoded where a file system, a glob or Spark would trip over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

import xxhash

SEGMENT_SUFFIX = ".parquet"
COMPONENT_BYTES_MAX = 200


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """What the name of a segment says: where its rows belong and which ranks it holds."""

    database: str
    table: str
    slice_number: int
    bucket: int
    era: int
    first_version: int
    last_version: int
    generation: int = 0

    @property
    def directory(self) -> str:
        """Directory of the segment, relative to the segments of its group."""
        return f"{path_component(self.database)}/{path_component(self.table)}/{self.slice_number}-{self.bucket}"

    @property
    def relative(self) -> str:
        """Path of the segment, relative to the segments of its group; this is its name in the catalogue."""
        generation = f"-{self.generation}" if self.generation else ""
        ranks = f"{self.era:06}-{self.first_version:015}-{self.last_version:015}"
        return f"{self.directory}/{ranks}{generation}{SEGMENT_SUFFIX}"


def path_component(name: str) -> str:
    """`name` as one component of a path: unique, at most COMPONENT_BYTES_MAX bytes, without glob or hidden-file characters."""
    encoded = "".join(character if ord(character) > 0x7F else _encode_ascii(character) for character in name)
    if encoded[:1] in "._":
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    if len(encoded.encode()) <= COMPONENT_BYTES_MAX:
        return encoded
    head = encoded.encode()[:150].decode(errors="ignore")
    return f"{head}~{xxhash.xxh3_128_hexdigest(name.encode())}"


def _encode_ascii(character: str) -> str:
    return f"%{ord(character):02X}" if character == "~" else quote(character, safe="")
