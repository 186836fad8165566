"""The canonical key of a series: its table and its tags, escaped as in the line protocol.

Tags are in order of name; null and empty tags are left out, so a new tag column moves no series without that
tag. The key determines the bucket of a series and so its data group: its form is part of the wire format and
never changes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

_TABLE_SPECIAL = r"[\\, \n]"
_TAG_SPECIAL = r"[\\,= \n]"
# The canonical form, as a pattern of both `re` and RE2 (Arrow): special characters are escaped, and no others.
_TABLE_TEXT, _TAG_TEXT = r"(?:[^\\, \n]|\\[\\, n])+", r"(?:[^\\,= \n]|\\[\\,= n])+"
_KEY = rf"{_TABLE_TEXT}(?:,{_TAG_TEXT}={_TAG_TEXT})*"
_TAG_PAIR = re.compile(rf",({_TAG_TEXT})={_TAG_TEXT}")
# Tables have few shapes of keys; RE2 compiles patterns up to some size.
_SHAPES_MAX = 16
_PATTERN_CHARACTERS_MAX = 16_384
_UNESCAPE = re.compile(r"\\(.)", re.DOTALL)


def escape_table(name: str) -> str:
    """A table name as part of a series key."""
    return re.sub(r"([\\, ])", r"\\\1", name).replace("\n", "\\n")


def escape_tag(text: str) -> str:
    """A tag name or value as part of a series key."""
    return re.sub(r"([\\,= ])", r"\\\1", text).replace("\n", "\\n")


def series_key(table: str, tags: Mapping[str, str | None]) -> str:
    """The key of one series."""
    pairs = (f",{escape_tag(name)}={escape_tag(value)}" for name, value in sorted(tags.items()) if value)
    return escape_table(table) + "".join(pairs)


def series_keys(table: str, tags: Mapping[str, pa.Array]) -> pa.StringArray:
    """Keys of many series at once; `tags` maps each tag name to a string array, all of one length (at least
    one tag).
    """
    parts: list[pa.Array | pa.Scalar] = [pa.scalar(escape_table(table))]
    for name, values in sorted(tags.items()):
        escaped = _escape_values(values)
        present = pc.and_(pc.is_valid(values), pc.not_equal(pc.fill_null(values, ""), ""))
        pairs = pc.binary_join_element_wise(pa.scalar(f",{escape_tag(name)}="), pc.fill_null(escaped, ""), "")
        parts.append(pc.if_else(present, pairs, pa.scalar("")))
    return pc.binary_join_element_wise(*parts, "")


def _escape_values(values: pa.Array) -> pa.Array:
    # The check is far cheaper than the replacement, and hardly any tag needs escaping.
    if not pc.any(pc.match_substring_regex(values, _TAG_SPECIAL)).as_py():
        return values
    return pc.replace_substring(pc.replace_substring_regex(values, r"([\\,= ])", r"\\\1"), "\n", "\\n")


def parse_series_key(key: str) -> tuple[str, dict[str, str]]:
    """Table and tags of a series key; the inverse of `series_key`."""
    head, *pairs = re.findall(r"(?:\\.|[^\\,])+", key, re.DOTALL)
    tags: dict[str, str] = {}
    for pair in pairs:
        match = re.fullmatch(r"((?:\\.|[^\\=])*)=(.*)", pair, re.DOTALL)
        if match is None:
            raise ValueError(f"{key!r} is not a series key")
        tags[_unescape(match[1])] = _unescape(match[2])
    return _unescape(head), tags


class SeriesInvalid(ValueError):
    """A series key that `series_key` would not give for any tags of the table."""


def check_series_keys(table: str, tags: Collection[str], keys: pa.StringArray) -> None:
    """Raises SeriesInvalid unless each key is that of some series of a table with these tags."""
    # One pass over all keys of one shape, which costs a tenth of finding the shape of each.
    for _ in range(_SHAPES_MAX):
        if not len(keys):
            return
        pattern = _shape_pattern(table, tags, keys[0].as_py())
        if len(pattern) > _PATTERN_CHARACTERS_MAX:
            break
        keys = keys.filter(pc.invert(pc.match_substring_regex(keys, pattern)))
    if not pc.all(pc.match_substring_regex(keys, rf"^{_KEY}\z"), min_count=0).as_py():
        raise SeriesInvalid("a series key is not in the canonical form")
    # Any value will do: the keys of one shape become equal.
    for key in pc.unique(pc.replace_substring_regex(keys, rf"(,{_TAG_TEXT}=){_TAG_TEXT}", r"\1v")).to_pylist():
        _shape_pattern(table, tags, key)


def _shape_pattern(table: str, tags: Collection[str], key: str) -> str:
    """A pattern of RE2 for the keys that have the same tags as this one, which is checked."""
    if re.fullmatch(_KEY, key) is None:
        raise SeriesInvalid(f"{key[:200]!r} is not a canonical series key")
    head = escape_table(table)
    names = _TAG_PAIR.findall(key, len(head))
    tag_names = [_unescape(name) for name in names]
    known = tag_names == sorted(set(tag_names)) and set(tags).issuperset(tag_names)
    if not key.startswith(head) or key[len(head) :][:1] not in ("", ",") or not known:
        raise SeriesInvalid(f"{key[:200]!r} is no series of table {table!r}")
    return "^" + _quoted(head) + "".join(f",{_quoted(name)}={_TAG_TEXT}" for name in names) + r"\z"


def _quoted(text: str) -> str:
    """A text as a pattern of RE2 that matches it."""
    return re.sub(r"[^A-Za-z0-9_\u0080-\U0010ffff]", lambda found: f"\\x{ord(found[0]):02x}", text)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _UNESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text)


def tag_columns(keys: Iterable[str], tags: Sequence[str]) -> dict[str, pa.StringArray]:
    """The tag columns of a list of series keys: one string array per tag, null where a series does not have
    it.
    """
    parsed = [parse_series_key(key)[1] for key in keys]
    return {tag: pa.array([values.get(tag) for values in parsed], pa.string()) for tag in tags}


def bucket_of(key: str, buckets: int) -> int:
    """The bucket of a series: `xxh3_64(series key) % buckets`."""
    # Buckets spread the series of one slice over several groups: a single busy database still uses the whole
    # cluster.
    return int(xxhash.xxh3_64_intdigest(key.encode())) % buckets


def slot_of(database: str, bucket: int, slice_number: int, slots: int) -> int:
    """The slot of one bucket of one time slice of a database."""
    # The slice is part of the hash, so the history of a bucket is spread over the groups too.
    return int(xxhash.xxh3_64_intdigest(f"{database}/{bucket}/{slice_number}".encode())) % slots
