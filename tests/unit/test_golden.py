"""Golden files: this version reads what every released version wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.consumers.store.segment import METADATA_PREFIX
from headrace.consumers.store.segment_reader import digest_of_file
from headrace.schemas.framing import HEADER_BYTES, codec
from headrace.schemas.records import Status
from tests.golden_values import DIGEST, DIRECTORY, VERSION, Golden, goldens

VERSIONS = sorted(path.name for path in DIRECTORY.iterdir() if path.is_dir())
GOLDENS = {golden.name: golden for golden in goldens()}


def same(one: object, other: object) -> bool:
    """Equality, also of record batches with NaN-free content."""
    if isinstance(one, pa.RecordBatch):
        return isinstance(other, pa.RecordBatch) and one.equals(other)
    return one == other


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("golden", GOLDENS.values(), ids=lambda golden: golden.name)
def test_what_was_released_is_read(golden: Golden, version: str) -> None:
    """The code decodes the bytes of a released version to the value that was encoded."""
    path = DIRECTORY / version / f"{golden.name}.bin"
    if not path.exists():
        assert version != VERSION, f"{path.name} is missing: python -m tests.golden_values"
        return
    assert same(golden.value, golden.decode(path.read_bytes()))


@pytest.mark.parametrize("golden", GOLDENS.values(), ids=lambda golden: golden.name)
def test_what_is_written_today_is_what_was_released(golden: Golden) -> None:
    """The same value gives the same bytes, so a changed format cannot go out without a golden file of its own.

    Rows are left out: their bytes depend on the version of Arrow, their content does not.
    """
    if golden.name == "rows":
        assert same(golden.value, golden.decode(golden.encode(golden.value)))
        return
    assert (DIRECTORY / VERSION / f"{golden.name}.bin").read_bytes() == golden.encode(golden.value)


def test_every_schema_has_a_golden_file() -> None:
    """Each schema, as it is today, is one that a golden file was written with."""
    names = [entry.name.removesuffix(".avsc") for entry in resources.files("headrace.schemas").iterdir()]
    names = [name for name in names if resources.files("headrace.schemas").joinpath(f"{name}.avsc").is_file()]
    assert {golden.schema for golden in GOLDENS.values() if golden.schema} == set(names)
    prefixes = {path.read_bytes()[:HEADER_BYTES] for path in DIRECTORY.glob("*/*.bin")}
    assert {name for name in names if codec(name).prefix in prefixes} == set(names)


def test_every_kind_of_message_has_a_golden_file() -> None:
    """Every branch of the two unions, and each kind that has a schema of its own, is written once."""
    written = {name.removeprefix("forward-") for name in GOLDENS if name.startswith("forward-")}
    kinds = [kind["name"].lower() for name in ("forward", "group_change") for kind in body_of(name)]
    assert {*kinds, "load", "synced-load", "fenced-load"} == written


def body_of(name: str) -> list[dict[str, str]]:
    """The union of the bodies of a schema."""
    schema = json.loads(resources.files("headrace.schemas").joinpath(f"{name}.avsc").read_text("utf-8"))
    found: list[dict[str, str]] = next(field["type"] for field in schema["fields"] if field["name"] == "body")
    return found


def test_states_without_the_tables_of_takeovers_are_read() -> None:
    """States of groups that were written before a takeover noted its table: it counts as one of long ago."""
    state = GOLDENS["state-changes"].decode((DIRECTORY / "state-before-takeovers.bin").read_bytes())
    (origin,) = state.changes.origins.values()
    assert 0 == origin.table_version
    origin.table_version = 4
    assert same(GOLDENS["state-changes"].value, state)


def test_statuses_without_the_tables_of_takeovers_are_read() -> None:
    """Statuses from before that: a receiver waits for a newer one, as nothing shows that slots have come."""
    status = GOLDENS["status-changes"].decode((DIRECTORY / "status-before-tables.bin").read_bytes())
    value = GOLDENS["status-changes"].value
    assert isinstance(value, Status)
    assert same(replace(value, accepted=tuple(replace(each, table_version=0) for each in value.accepted)), status)


def test_loads_of_senders_without_a_number_are_read() -> None:
    """Records that were written before deletes of a sender were a fence keep their value, and so their digest."""
    golden = GOLDENS["forward-synced-load"]
    assert same(golden.value, golden.decode((DIRECTORY / "unfenced-load.bin").read_bytes()))


def test_every_kind_of_membership_change_has_a_golden_file() -> None:
    """Every branch of the union is written once."""
    schema = json.loads(resources.files("headrace.schemas").joinpath("membership_change.avsc").read_text("utf-8"))
    union = next(field["type"] for field in schema["fields"] if field["name"] == "change")
    written = {golden.name for golden in GOLDENS.values() if golden.schema == "membership_change"}
    assert {f"membership-{kind['name'].lower()}" for kind in union} == written


@pytest.mark.parametrize("version", VERSIONS)
def test_a_released_segment_keeps_its_content(version: str) -> None:
    """Its rows are read as they were written, and give the digest in its footer, by which replicas are compared."""
    path: Path = DIRECTORY / version / DIGEST
    metadata = pq.read_metadata(path).metadata
    assert digest_of_file(path) == metadata[f"{METADATA_PREFIX}content_digest".encode()].decode()
    table = pq.read_table(path)
    assert ["pump", "site", "time", "flow", "note", "running", "starts"] == table.column_names
    assert [("p 2", None), ("p1", "north"), ("p1", "north")] == list(
        zip(table.column("pump").to_pylist(), table.column("site").to_pylist(), strict=True)
    )
    assert [float("inf"), 12.5, None] == table.column("flow").to_pylist()
    assert [None, 2**62, -1] == table.column("starts").to_pylist()
