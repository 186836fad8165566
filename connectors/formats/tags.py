"""Tag columns of formats that give every tag as a column of text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.formats.parsed import TAG_TYPE, FormatOptions
from connectors.formats.pieces import Columns


def encoded(texts: pa.Array, absent: str = "") -> pa.Array:
    """Text (plain or as a dictionary) as dictionary<int32, string>; the text `absent` becomes null."""
    found = texts if pa.types.is_dictionary(texts.type) else pc.dictionary_encode(texts)
    dictionary = found.dictionary.cast(pa.string())
    empty = pc.index(dictionary, absent).as_py()
    indices = found.indices
    if empty >= 0:
        indices = pc.if_else(pc.equal(indices, empty), pa.scalar(None, pa.int32()), indices)
    return pa.DictionaryArray.from_arrays(indices, dictionary)


def with_static_tags(tags: Columns, rows: int, options: FormatOptions) -> Columns:
    """The tag columns in order of name, with the static tags of the options where a row has no such tag of its own."""
    complete = dict(tags)
    for name, value in options.static_tags:
        if not value:
            continue
        own = complete.get(name)
        if own is None:
            complete[name] = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value]))
        elif own.null_count:
            complete[name] = encoded(pc.fill_null(own.cast(pa.string()), value))
    return {name: complete[name].cast(TAG_TYPE) for name in sorted(complete)}


def seen_tags(tags: Columns, rows: int, options: FormatOptions) -> Columns:
    """The tag columns that any of the rows has, and the static tags."""
    return with_static_tags(
        {name: column for name, column in tags.items() if column.null_count < len(column)}, rows, options
    )
