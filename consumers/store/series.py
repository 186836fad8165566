"""Tags read back out of many series keys at once, and the test of a tag predicate on them. Work per distinct series, never per row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.series import escape_tag, parse_series_key

Mask = npt.NDArray[np.bool_]


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
    """Which series carry for every tag of `tags` one of its values; "" stands for an absent tag. No tags: all series."""
    mask = np.ones(len(keys), np.bool_)
    for tag, allowed in tags.items():
        values = pc.fill_null(tag_values(keys, tag), "")
        found = pc.is_in(values, value_set=pa.array(sorted(set(allowed)), pa.string()))
        mask &= found.to_numpy(zero_copy_only=False)
    return mask


def tag_column(keys: pa.StringArray, tag: str, codes: npt.NDArray[np.integer]) -> pa.DictionaryArray:
    """One tag as a column: `codes` holds for each row the index of its series in `keys`."""
    encoded = tag_values(keys, tag).dictionary_encode()
    if encoded.indices.null_count:
        indices = encoded.indices.take(pa.array(codes))
    else:
        indices = pa.array(np.take(encoded.indices.to_numpy(zero_copy_only=True), codes, mode="clip"))
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary)
