"""Columns of row batches: series and fields of several batches as one column, and tags decoded from series
keys.

Tag functions work once for each distinct series, never for each row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.schemas.series import escape_tag, parse_series_key
from headrace.schemas.tables import FieldType

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_NUMERIC = (pa.float64(), pa.int64())

TEXT_CHUNK_BYTES = 1 << 30
"""Most text of one string array, whose 32-bit offsets end at 2 GiB."""
TEXT_ROWS_MIN = 1 << 16
"""Rows from which on a tag with as many values as rows is no dictionary."""
SOUGHT_MAX = 2
"""Values of a tag that are looked for as texts in series keys."""
SOUGHT_KEYS_MIN = 64
"""Keys in which they are: to decode the tags of fewer takes no longer."""
KEYS_BYTES_MAX = 16 << 20
"""Dictionaries that are looked at together, copied and encoded: no query reserves memory for that."""


def unify_series(batches: Sequence[pa.RecordBatch]) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
    """The distinct series keys of all batches, and the key index of each row of the concatenated batches."""
    # Concatenation merges the dictionaries of the batches in
    # C++; only a dictionary with repeated keys needs more.
    parts = [batch.column(0) for batch in batches]
    column: pa.DictionaryArray = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    codes = column.indices.to_numpy(zero_copy_only=True)
    if len(column.dictionary) <= 1:
        return column.dictionary, codes
    # A merge of unequal dictionaries has no key twice.
    if len(column.dictionary) != len(parts[0].dictionary):
        return column.dictionary, codes
    encoded = column.dictionary.dictionary_encode()
    if len(encoded.dictionary) == len(encoded):
        return column.dictionary, codes
    return encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=True)[codes]


def field_column(batches: Sequence[pa.RecordBatch], name: str, kind: FieldType) -> pa.Array:
    """One field of the concatenated batches: null where a batch lacks it, int64 widened to float64.

    Strings become large_string.
    """
    arrow_type = pa.large_string() if kind is FieldType.STRING else kind.arrow
    chunks = []
    for batch in batches:
        index = batch.schema.get_field_index(name)
        chunk = batch.column(index) if index >= 0 else pa.nulls(len(batch), arrow_type)
        chunks.append(chunk if chunk.type == arrow_type else widen(chunk, arrow_type))
    return pa.concat_arrays(chunks) if len(chunks) != 1 else chunks[0]


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array, text as large_string."""
    # A string array has 32-bit offsets and ends at 2 GiB, which the text of one file, seal or scan can exceed.
    if pa.types.is_string(column.type):
        column = pc.cast(column, pa.large_string())
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def narrow_text(column: pa.Array, chunk_bytes: int = TEXT_CHUNK_BYTES) -> pa.Array | pa.ChunkedArray:
    """A large_string column as string arrays of at most `chunk_bytes` of text each; others unchanged."""
    if column.type != pa.large_string():
        return column
    if column.nbytes <= chunk_bytes:
        return pc.cast(column, pa.string())
    ends = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    chunks, start = [], 0
    while start < len(column):
        stop = max(start + 1, int(np.searchsorted(ends, ends[start] + chunk_bytes, "right")) - 1)
        chunks.append(_narrow_slice(column, ends, start, stop))
        start = stop
    return pa.chunked_array(chunks, pa.string())


def _narrow_slice(column: pa.Array, ends: Int64s, start: int, stop: int) -> pa.StringArray:
    # From buffers, since a cast looks at the offsets of the whole column and not at those of a slice of it.
    offsets = (ends[start : stop + 1] - ends[start]).astype(np.int32)
    text = column.buffers()[2]
    text = None if text is None else text.slice(int(ends[start]), int(ends[stop] - ends[start]))
    valid = column.slice(start, stop - start).is_valid() if column.null_count else None
    bitmap = None if valid is None else pa.array(valid.to_numpy(zero_copy_only=False)).buffers()[1]
    return pa.StringArray.from_buffers(stop - start, pa.py_buffer(offsets), text, bitmap)


def widen(values: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """`values` as `arrow_type`.

    An int64 above 2**53 becomes the nearest float64; widening guarantees no more.
    """
    # A safe cast would raise on such a value, and one reading must not stop a seal.
    return pc.cast(values, arrow_type, safe=False)


def gather(column: pa.Array, rows: Int64s) -> pa.Array:
    """The values of `column` at `rows`, which are all in range."""
    # For numbers `np.take` is several times faster than
    # `Array.take`. `clip` replaces NumPy's check of every index.
    if column.type not in _NUMERIC:
        return column.take(pa.array(rows))
    values = _numbers(column)
    taken = np.take(values, rows, mode="clip")
    if not column.null_count:
        return pa.array(taken, column.type)
    # Bits of the wanted rows alone: a seal gathers a column once for each of its files.
    places = rows + column.offset
    found = np.take(np.frombuffer(column.buffers()[0], np.uint8), places >> 3, mode="clip")
    valid = (found >> (places & 7).astype(np.uint8)) & 1
    bitmap = np.packbits(valid, bitorder="little")
    return pa.Array.from_buffers(column.type, len(rows), [pa.py_buffer(bitmap), pa.py_buffer(taken)])


def tag_values(keys: pa.StringArray, tag: str) -> pa.StringArray:
    """The value of one tag in each series key, null where the series does not carry it."""
    if not len(keys):
        return pa.array([], pa.string())
    escaped = pc.match_substring(keys, "\\")
    if not pc.any(escaped).as_py() and escape_tag(tag) == tag:
        # Without a backslash no character is escaped, so ",tag=" can only be the start of that pair.
        found = pc.extract_regex(keys, f",{re.escape(tag)}=(?P<value>[^,]*)")
        return pc.struct_field(found, "value")
    return pa.array([parse_series_key(key)[1].get(tag) for key in keys.to_pylist()], pa.string())


def series_mask(keys: pa.StringArray, tags: Mapping[str, Sequence[str]]) -> Mask:
    """Which series match: each tag of `tags` has one of its values, "" for an absent tag.

    No tags match all series.
    """
    possible = _possible(keys, tags)
    if possible is None:
        return _mask_of_each(keys, tags)
    mask = np.zeros(len(keys), np.bool_)
    mask[possible] = _mask_of_each(keys.take(pa.array(possible)), tags)
    return mask


def _possible(keys: pa.StringArray, tags: Mapping[str, Sequence[str]]) -> Int64s | None:
    """The places of the keys with the text of a wanted pair; None where many values are wanted, or of few keys."""
    # To find a text takes a fifth of the time that it takes to decode a tag.
    sought = [tag for tag, allowed in tags.items() if len(allowed) <= SOUGHT_MAX and all(allowed)]
    if len(keys) < SOUGHT_KEYS_MIN or not sought:
        return None
    tag = min(sought, key=lambda each: len(tags[each]))
    mask = np.zeros(len(keys), np.bool_)
    for value in tags[tag]:
        pair = f",{escape_tag(tag)}={escape_tag(value)}"
        mask |= pc.match_substring(keys, pair).to_numpy(zero_copy_only=False)
    return np.flatnonzero(mask)


def _mask_of_each(keys: pa.StringArray, tags: Mapping[str, Sequence[str]]) -> Mask:
    mask = np.ones(len(keys), np.bool_)
    for tag, allowed in tags.items():
        values = pc.fill_null(tag_values(keys, tag), "")
        found = pc.is_in(values, value_set=pa.array(sorted(set(allowed)), pa.string()))
        mask &= found.to_numpy(zero_copy_only=False)
    return mask


def with_tags(batches: Sequence[pa.RecordBatch], tags: Mapping[str, Sequence[str]]) -> list[pa.RecordBatch]:
    """The rows of each batch whose series match, see `series_mask`."""
    if not tags:
        return list(batches)
    # Batches of one writer mostly have equal dictionaries. Those of many writers are small: a kernel takes longer to
    # begin with one of them than with all.
    dictionaries: list[pa.StringArray] = []
    numbers = []
    for batch in batches:
        keys = batch.column(0).dictionary
        if not dictionaries or not dictionaries[-1].equals(keys):
            dictionaries.append(keys)
        numbers.append(len(dictionaries) - 1)
    masks = _masks_of(dictionaries, tags)
    return [_with_series(batch, masks[number]) for batch, number in zip(batches, numbers, strict=True)]


def _masks_of(dictionaries: Sequence[pa.StringArray], tags: Mapping[str, Sequence[str]]) -> list[Mask]:
    masks: list[Mask] = []
    together: list[pa.StringArray] = []
    size_bytes = 0
    for keys in dictionaries:
        if together and size_bytes + keys.nbytes > KEYS_BYTES_MAX:
            masks += _masks_together(together, tags)
            together, size_bytes = [], 0
        together.append(keys)
        size_bytes += keys.nbytes
    return masks + _masks_together(together, tags)


def _masks_together(dictionaries: Sequence[pa.StringArray], tags: Mapping[str, Sequence[str]]) -> list[Mask]:
    if len(dictionaries) <= 1:
        return [series_mask(keys, tags) for keys in dictionaries]
    distinct = pa.concat_arrays(dictionaries).dictionary_encode()
    mask = series_mask(distinct.dictionary, tags)[distinct.indices.to_numpy(zero_copy_only=True)]
    return np.split(mask, np.cumsum([len(keys) for keys in dictionaries])[:-1])


def _with_series(rows: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    if not mask.any():
        return rows.slice(0, 0)
    return rows.filter(pa.array(mask[rows.column(0).indices.to_numpy(zero_copy_only=True)]))


def tag_columns(
    keys: pa.StringArray, tags: Sequence[str], codes: npt.NDArray[np.integer] | None = None, *, texts: bool = True
) -> dict[str, pa.Array]:
    """Tags as columns: `codes` holds for each row the index of its series in `keys`; without it each has one row.

    They are dictionaries (int32), or, with `texts`, plain text where many series have one row each and most of them a
    value of their own.
    """
    return {tag: _tag_column(values, codes, texts) for tag, values in values_of_tags(keys, tags).items()}


def _tag_column(values: pa.StringArray, codes: npt.NDArray[np.integer] | None, texts: bool) -> pa.Array:
    encoded = values.dictionary_encode()
    # DuckDB takes rows in batches, and with each of them the whole dictionary.
    rows = len(values) if codes is None else len(codes)
    if texts and TEXT_ROWS_MIN <= rows <= len(values) and 2 * len(encoded.dictionary) > rows:
        return values if codes is None else values.take(pa.array(codes))
    if codes is None:
        return encoded
    if encoded.indices.null_count:
        indices = encoded.indices.take(pa.array(codes))
    else:
        indices = pa.array(np.take(encoded.indices.to_numpy(zero_copy_only=True), codes, mode="clip"))
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary)


def tag_texts(keys: pa.StringArray, tags: Sequence[str], codes: pa.Array) -> dict[str, pa.StringArray]:
    """Each tag as plain text of each row: `codes` holds for each row the index of its series in `keys`."""
    return {tag: values.take(codes) for tag, values in values_of_tags(keys, tags).items()}


def repeated_tags(values: Mapping[str, pa.StringArray], lengths: Int64s) -> dict[str, pa.DictionaryArray]:
    """Tags of series as columns of sorted rows: series i has the next `lengths[i]` rows."""
    return {tag: _repeated(each, lengths) for tag, each in values.items()}


def values_of_tags(keys: pa.StringArray, tags: Sequence[str]) -> dict[str, pa.StringArray]:
    """`tag_values` of several tags, for the price of about one."""
    if not tags or not len(keys) or pc.any(pc.match_substring(keys, "\\")).as_py():
        return {tag: tag_values(keys, tag) for tag in tags}
    # Without a backslash no character is escaped: each comma begins a pair, and the first piece is the table.
    split = pc.split_pattern(keys, ",")
    pieces, owners = split.flatten(), np.asarray(pc.list_parent_indices(split))
    in_pair = np.ones(len(pieces), np.bool_)
    in_pair[np.asarray(split.offsets)[:-1]] = False
    return {tag: _values_of(pieces, owners, in_pair, tag, len(keys)) for tag in tags}


def _values_of(pieces: pa.StringArray, owners: Int64s, in_pair: Mask, tag: str, keys: int) -> pa.StringArray:
    """The values of one tag among the pieces of keys, null for each of the keys that has no such piece."""
    found = np.flatnonzero(np.asarray(pc.starts_with(pieces, f"{tag}=")) & in_pair)
    values = pc.utf8_slice_codeunits(pieces.take(pa.array(found)), len(tag) + 1)
    if len(found) == keys:
        return values
    places = np.full(keys, -1, np.int64)
    places[owners[found]] = np.arange(len(found))
    return values.take(pa.array(places, mask=places < 0))


def _repeated(values: pa.StringArray, lengths: Int64s) -> pa.DictionaryArray:
    encoded = values.dictionary_encode()
    indices, mask = encoded.indices, None
    if indices.null_count:
        mask = np.repeat(indices.is_null().to_numpy(zero_copy_only=False), lengths)
        indices = indices.fill_null(0)
    repeated = pa.array(np.repeat(indices.to_numpy(zero_copy_only=True), lengths), mask=mask)
    # The encoding above gave these indices: a check of each would cost as much as all the rest.
    return pa.DictionaryArray.from_arrays(repeated, encoded.dictionary, safe=False)


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    # Read from the buffer, since `to_numpy` copies a column with nulls and turns integers into floats.
    values: npt.NDArray[Any] = np.frombuffer(column.buffers()[1], np.int64 if column.type == pa.int64() else np.float64)
    return values[column.offset : column.offset + len(column)]
