"""A delete of a sender as deletes of its own devices alone: an exact cover by values of tags. Pure.

At the sender a delete may name no tag and so match every device. Here it must hide no row of another sender. So the
devices of the sender that it matches are covered by boxes: for each tag of the table some values, the empty one for a
tag that a device does not have. A box matches the product of its values and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from headrace.schemas.messages import MESSAGE_BYTES_MAX

VALUES_MAX = 10_000
"""Values of one tag in one box: more make another box."""
BYTES_MAX = MESSAGE_BYTES_MAX // 2
"""Of the values of all tags in one box, unless it is one device: a forward log takes no record above its limit."""
_LENGTH_BYTES = 4
"""What a record has before each value."""
Device = Mapping[str, str]
"""Tags of a device; those that it does not have are left out."""
Box = Mapping[str, tuple[str, ...]]
_Values = tuple[tuple[str, ...], ...]


def matching(devices: Iterable[Device], tags: Mapping[str, Collection[str]]) -> list[Device]:
    """The devices that a delete matches: each tag has one of its values, the empty one if it is absent."""
    return [each for each in devices if all(each.get(name, "") in values for name, values in tags.items())]


def cover(devices: Iterable[Device], tags: Sequence[str]) -> list[Box]:
    """Boxes that match these devices and no other one of a table with these tags. Equal for equal devices.

    A table without tags has one device, and one box without tags.
    """
    names = sorted(tags)
    boxes: list[_Values] = sorted({tuple((each.get(name, ""),) for name in names) for each in devices})
    # Boxes that differ in one tag alone are one box with the values of both. The tag with the most values comes
    # first: it mostly names the device, and then one pass is all.
    counts = [len({box[place] for box in boxes}) for place in range(len(names))]
    for place in sorted(range(len(names)), key=lambda each: -counts[each]):
        boxes = _merged(boxes, place)
    return [dict(zip(names, box, strict=True)) for box in boxes]


def box_bytes(box: Box) -> int:
    """What the values of a box take in a record."""
    return sum(map(_bytes, box.values()))


def _bytes(values: Iterable[str]) -> int:
    return sum(_LENGTH_BYTES + len(each.encode()) for each in values)


def _merged(boxes: Iterable[_Values], place: int) -> list[_Values]:
    groups: dict[_Values, set[str]] = {}
    for box in boxes:
        groups.setdefault(box[:place] + box[place + 1 :], set()).update(box[place])
    found: list[_Values] = []
    for rest, values in groups.items():
        # Devices that differ in two tags are all alone, and nothing is to be measured.
        parts = _parts(sorted(values), BYTES_MAX - sum(map(_bytes, rest))) if len(values) > 1 else [tuple(values)]
        found += [(*rest[:place], part, *rest[place:]) for part in parts]
    return sorted(found)


def _parts(values: Iterable[str], room_bytes: int) -> Iterator[tuple[str, ...]]:
    """Values in parts of what one box has room for, of one value at least."""
    part, size_bytes = list[str](), 0
    for each in values:
        value_bytes = _bytes([each])
        if part and (len(part) == VALUES_MAX or size_bytes + value_bytes > room_bytes):
            yield tuple(part)
            part, size_bytes = [], 0
        part.append(each)
        size_bytes += value_bytes
    yield tuple(part)
