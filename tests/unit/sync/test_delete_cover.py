"""A delete of a sender covers exactly its own devices that it matches."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.sync import delete_cover
from headrace.consumers.sync.delete_cover import cover, matching
from headrace.schemas.message_bodies import ProducerPosition
from headrace.schemas.messages import MESSAGE_BYTES_MAX, Delete, Message, encode_message

TAGS = ("host", "pump", "site")
VALUES = ("", "a", "b", "c")
ALL = [
    {name: value for name, value in zip(TAGS, values, strict=True) if value}
    for values in product(VALUES, repeat=len(TAGS))
]


@given(st.lists(st.sampled_from(ALL), unique_by=lambda each: tuple(sorted(each.items()))))
def test_boxes_match_the_devices_and_no_other(devices: list[dict[str, str]]) -> None:
    """Of all devices that the table could have the boxes match those of the sender, each once; equal for equal ones."""
    boxes = cover(devices, TAGS)
    matched = [device for box in boxes for device in matching(ALL, box)]
    ordered = sorted(map(sorted, (each.items() for each in matched)))
    assert sorted(map(sorted, (each.items() for each in devices))) == ordered
    assert boxes == cover(reversed(devices), TAGS)


def test_devices_that_differ_in_one_tag_are_one_box() -> None:
    """The usual case, one device a value of one tag, is one record and not one a device."""
    devices = [{"pump": f"p{number}", "site": "north"} for number in range(1_000)]
    assert 1 == len(cover(devices, TAGS))


def test_a_box_has_a_limit() -> None:
    """A message of a forward log has a size: many devices are several boxes."""
    devices = [{"pump": f"p{number}"} for number in range(delete_cover.VALUES_MAX + 1)]
    assert [delete_cover.VALUES_MAX, 1] == [len(box["pump"]) for box in cover(devices, ("pump",))]


def test_a_box_has_a_limit_of_bytes() -> None:
    """Tags may be long, as a URL is: one box of them all would fit no forward log, and its sender wait for ever."""
    sites = ("north", "ü" * 500)
    devices = [{"pump": f"{number:04}" * 400, "site": site} for number in range(6_000) for site in sites]
    boxes = cover(devices, TAGS)
    records = [
        encode_message(Message(ProducerPosition("sync/s1/n1/1", 1, 0), Delete("plant", "pumps", box))) for box in boxes
    ]
    assert max(map(len, records)) <= MESSAGE_BYTES_MAX
    assert 3 >= len(boxes), "no more than the bytes need"
    matched = [(pump, site) for box in boxes for pump, site in product(box["pump"], box["site"])]
    assert sorted((each["pump"], each["site"]) for each in devices) == sorted(matched)


def test_a_table_without_tags_has_one_device() -> None:
    """It is the sender's, or not: then there is nothing to delete."""
    assert [{}] == cover([{}], ())
    assert [] == cover([], ())
