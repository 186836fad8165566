"""Texts that lie anywhere in a buffer as Arrow arrays: text i is from `starts[i]` to `ends[i]`. None is checked.

`words` are the eight bytes from each position of the buffer on (`lines.words_of`). A null, where not `valid`, begins
and ends at 0.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.connectors.formats.kernel_choice import loops
from headrace.connectors.formats.lines import WORD_BYTES, Booleans, Integers, Lengths, Words, words_of


def gathered(
    words: Words, starts: Integers, ends: Integers, kind: pa.DataType, valid: Booleans | None = None
) -> pa.Array:
    """One array of them, of a type with offsets of 32 bits: a batch is far below 2 GiB."""
    count = int(ends.sum() - starts.sum())
    padded, offsets = np.empty(count + WORD_BYTES, np.uint8), np.empty(len(starts) + 1, np.int32)
    loops().gather_texts(words, starts, ends, offsets, words_of(padded))
    validity = None if valid is None or valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(kind, len(starts), [validity, pa.py_buffer(offsets), pa.py_buffer(padded[:count])])


def gathered_dictionary(
    words: Words, starts: Integers, ends: Integers, kind: pa.DataType, valid: Booleans | None = None
) -> pa.DictionaryArray:
    """As dictionary<int32, `kind`>, the distinct texts in order of appearance."""
    codes, distinct = _numbered(words, starts, ends)
    indices = pa.array(codes, mask=None if valid is None or valid.all() else ~valid)
    return pa.DictionaryArray.from_arrays(indices, gathered(words, starts[distinct], ends[distinct], kind))


def gathered_dictionaries(
    words: Words, starts: Integers, lengths: Lengths, kind: pa.DataType
) -> list[pa.DictionaryArray] | None:
    """Each column of `starts` and `lengths`, which are by column and row, as by `gathered_dictionary`.

    In a row the texts ascend, and the bytes behind the first text decide where the others are. A row is one text then,
    and columns are made of the distinct ones. None where that does not pay, since most rows differ.
    """
    codes, distinct = _numbered(words, starts[0], starts[-1] + lengths[-1])
    first = lengths[0]
    if len(distinct) > len(codes) // 2 or (first != first[distinct][codes]).any():
        return None
    begins = np.take(starts, distinct, axis=1)
    ends = begins + np.take(lengths, distinct, axis=1)
    columns = (gathered_dictionary(words, *bounds, kind) for bounds in zip(begins, ends, strict=True))
    return [pa.DictionaryArray.from_arrays(each.indices.to_numpy()[codes], each.dictionary) for each in columns]


def _numbered(words: Words, starts: Integers, ends: Integers) -> tuple[Lengths, Integers]:
    """(the number of each text among the distinct ones, the first row of each of these)"""
    # At least twice as many slots as texts: probing for a free one stays short.
    slots = np.full(2 << len(starts).bit_length(), -1, np.int32)
    codes, firsts = np.empty(len(starts), np.int32), np.empty(len(starts), np.int64)
    return codes, firsts[: loops().dictionary_encode(words, starts, ends, slots, codes, firsts)]
