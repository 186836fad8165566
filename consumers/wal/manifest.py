"""The manifest: a small text file that names every file the log needs, so that a missing file is detected."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from headrace.consumers.wal.wal_errors import ForeignLog, LogDamaged

MANIFEST_NAME = "manifest"
_TITLE = "headrace-write-ahead-log"
MANIFEST_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files that must exist: `journals` as (number, partition) in order of number, and the snapshot.

    `snapshot` is the lowest `replay_from` that the snapshot may have; 0 = there is none yet.
    """

    # A lower bound, since a crash between the rename of a
    # snapshot and the next manifest leaves a newer snapshot.

    identity: bytes
    serde_name: str
    serde_version: int
    snapshot: int = 0
    journals: tuple[tuple[int, int], ...] = ()


def encode_manifest(manifest: Manifest) -> bytes:
    """Returns the file: one fact a line, the last line the CRC of all before it."""
    lines = [
        f"{_TITLE} {MANIFEST_FORMAT}",
        f"identity {manifest.identity.hex()}",
        f"serde {manifest.serde_version} {json.dumps(manifest.serde_name)}",
        f"snapshot {manifest.snapshot}",
        *(f"journal {number} {partition}" for number, partition in manifest.journals),
    ]
    text = "".join(line + "\n" for line in lines).encode()
    return text + f"checksum {crc32c(text):08x}\n".encode()


def decode_manifest(path: Path, data: bytes) -> Manifest:
    """The inverse; raises `LogDamaged` for any wrong byte, `ForeignLog` for the format of a later build."""
    # The file is replaced in one step, so no crash leaves a partial one: every mismatch is damage.
    body, mark, checksum = data.rpartition(b"checksum ")
    if not mark or checksum != f"{crc32c(body):08x}\n".encode():
        raise LogDamaged(path, len(body) if mark else 0, "the manifest fails its CRC")
    lines = body.decode().splitlines()
    title, _, version = lines[0].rpartition(" ")
    if title != _TITLE or version != str(MANIFEST_FORMAT):
        raise ForeignLog(
            f"{path} has manifest format {lines[0]!r}, which this build does not know",
            action="open it with a newer build",
        )
    facts = dict(line.split(" ", 1) for line in lines[1:4])
    serde_version, _, name = facts["serde"].partition(" ")
    journals = [line.split(" ") for line in lines[4:]]
    return Manifest(
        bytes.fromhex(facts["identity"]),
        json.loads(name),
        int(serde_version),
        int(facts["snapshot"]),
        tuple((int(number), int(partition)) for _, number, partition in journals),
    )
