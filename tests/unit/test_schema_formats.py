"""A schema that other builds must read changes only with the number by which they refuse it or wait for it.

`golden/formats.json` has what each number stood for: fingerprints of the schemas of topics and of the stored state, names
of the fields of what the index has as JSON. An entry of a released number never changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from importlib import resources
from typing import Any

import pytest

from headrace.consumers.node.data_directory import DIRECTORY_FORMAT, Identity
from headrace.consumers.store.index import SYNCED_FORMAT
from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.tombstones import Tombstone
from headrace.schemas import framing
from headrace.schemas.framing import FORMAT, MAGIC, Codec, codec
from headrace.schemas.tables import DatabaseSchema, TableSchema
from tests.golden_values import DIRECTORY

STORED = ("state",)
"""Schemas of values that only a data directory has."""
TABLE: dict[str, dict[str, dict[str, str]]] = json.loads((DIRECTORY / "formats.json").read_text("utf-8"))
NEWEST = {"topics": FORMAT, "index": int(SYNCED_FORMAT), "directory": DIRECTORY_FORMAT}
WHERE = {
    "topics": "FORMAT in schemas/framing.py",
    "index": "the format in consumers/store/index.py",
    "directory": "DIRECTORY_FORMAT in consumers/node/data_directory.py",
}


def fingerprint(name: str) -> str:
    """Of the schema that this build writes."""
    return Codec(name).prefix[len(MAGIC) :].hex()


def names_of(*kinds: type[Any]) -> str:
    """The names of the fields of records that are stored as JSON."""
    return " ".join(sorted(each.name for kind in kinds for each in fields(kind)))


def written() -> dict[str, dict[str, str]]:
    """What this build writes, by the number that stands for it."""
    schemas = resources.files("headrace.schemas")
    kinds = sorted(entry.name.removesuffix(".avsc") for entry in schemas.iterdir() if entry.name.endswith(".avsc"))
    topics = {name: fingerprint(name) for name in kinds if name not in STORED}
    index = {name: fingerprint(name) for name in STORED} | {
        "segment": names_of(SegmentEntry),
        "table": names_of(DatabaseSchema, TableSchema),
        "tombstone": names_of(Tombstone),
    }
    return {"topics": topics, "index": index, "directory": {"node.json": names_of(Identity)}}


def complaint(area: str, recorded: Mapping[str, str], found: Mapping[str, str]) -> str:
    """What differs from the record of a number and what a developer is to do; empty when nothing does."""
    kinds = sorted(kind for kind in recorded.keys() | found.keys() if recorded.get(kind) != found.get(kind))
    if not kinds:
        return ""
    shown = "".join(f"\n  {kind}: {recorded.get(kind, 'not there')} -> {found.get(kind, 'gone')}" for kind in kinds)
    return (
        f"builds of {area} {NEWEST[area]} cannot read what this one writes:{shown}\n"
        f"Either raise {WHERE[area]}, write the new kind only when every status shows a build that understands it, "
        "and add an entry to tests/unit/golden/formats.json (the old schema goes to schemas/released/).\n"
        "Or write the old schema meanwhile: a new kind beside it, which only newer builds read, changes nothing for them."
    )


@pytest.mark.parametrize("area", NEWEST)
def test_what_is_written_is_what_its_number_stands_for(area: str) -> None:
    """Builds of one number are mixed in a rolling upgrade: each reads what the others write."""
    recorded = TABLE[area].get(str(NEWEST[area]))
    assert recorded is not None, f"{WHERE[area]} was raised: add {NEWEST[area]} with {json.dumps(written()[area])}"
    assert not (found := complaint(area, recorded, written()[area])), found


@pytest.mark.parametrize("area", NEWEST)
def test_no_number_is_left_out(area: str) -> None:
    """The newest one is that of this build, and no recorded number was taken back."""
    numbers = sorted(map(int, TABLE[area]))
    assert list(range(numbers[0], NEWEST[area] + 1)) == numbers


def test_every_recorded_schema_is_read() -> None:
    """Users have values of each on topics and disks."""
    recorded = [
        (kind, value)
        for area, kinds in (("topics", None), ("index", STORED))
        for number in TABLE[area].values()
        for kind, value in number.items()
        if kinds is None or kind in kinds
    ]
    assert [] == [(kind, value) for kind, value in recorded if not codec(kind).reads(MAGIC + bytes.fromhex(value))]


def test_a_field_more_without_a_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a status and a state got one once. The message has the kinds, and both ways out."""
    original = framing.schema_of

    def changed(name: str) -> dict[str, Any]:
        schema = original(name)
        more = {"name": "colour", "type": "int", "default": 0}
        return {**schema, "fields": [*schema["fields"], more]} if name in ("status", "state") else schema

    monkeypatch.setattr(framing, "schema_of", changed)
    found = written()
    for area, kind in (("topics", "status"), ("index", "state")):
        text = complaint(area, TABLE[area][str(NEWEST[area])], found[area])
        assert [kind] == [line.split(":")[0].strip() for line in text.splitlines()[1:-2]]
        assert f"Either raise {WHERE[area]}" in text
        assert "Or write the old schema meanwhile" in text


def test_a_new_kind_needs_a_number() -> None:
    """A build that does not know it must know that it does not."""
    assert "shape: not there -> 00" in complaint("topics", {}, {"shape": "00"})
    assert "shape: 00 -> gone" in complaint("topics", {"shape": "00"}, {})
