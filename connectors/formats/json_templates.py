"""Templates of JSON lines, and the columns of their values: members by role, and runs of adjacent tags.

Lines of one series have the same text where their tags are adjacent (a tag run). That text is one value of
the template, and each distinct one is parsed once for all its lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.connectors.formats.chunks import concat_arrays
from headrace.connectors.formats.interface import FormatOptions, InvalidLine
from headrace.connectors.formats.json_scanner import Member, MemberMapping, MemberRole, Number, plain_members
from headrace.connectors.formats.kernel_types import ValueKind
from headrace.connectors.formats.lines import Booleans, Integers, lines_of_messages
from headrace.connectors.formats.templates import NUMBER_KINDS, MatchedLines, Template, match
from headrace.connectors.formats.text_columns import (
    INTEGER_TEXT,
    and_masks,
    booleans,
    encode_tags,
    scaled,
    times_of_text,
    valid_mask,
)
from headrace.schemas.tables import FieldType

JSON_SCALAR = r"^(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)$"
JSON_TRUE, JSON_FALSE = frozenset(("true",)), frozenset(("false",))

Signature = tuple[str, tuple[str, ...], tuple[tuple[str, FieldType], ...]]
"""Table, tags, and fields with their types: rows of one signature have the same columns."""


@dataclass(frozen=True, slots=True)
class MemberColumn:
    """One member of a shape: its role, and the form of its value. `kind` is None for a field that is null."""

    name: str
    role: MemberRole
    kind: FieldType | None
    quoted: bool
    value_kind: ValueKind


def column_values(
    table: str, column: MemberColumn, matched: MatchedLines, index: int, options: FormatOptions
) -> tuple[pl.Series, Booleans | None]:
    """The values of a column other than a tag, and which of them are valid (None means all)."""
    if column.value_kind is ValueKind.INTEGER:
        values, valid = matched.integers(index)
        if column.role == "time":
            values = scaled(values, options.ns_per_unit)
            valid = and_masks(valid, valid_mask(values))
        return values, valid
    if column.value_kind is ValueKind.FLOAT:
        return matched.floats(index)
    texts = matched.texts(index)
    # The shape belongs to one table: lines of other tables have shapes of their own.
    if column.role == "table":
        return texts, (texts == table).to_numpy()
    if column.role == "time":
        times = times_of_text(texts, options)
        written = None if column.quoted else valid_mask(_scalars(texts))
        return times, and_masks(written, valid_mask(times))
    if column.quoted:
        return texts, None
    if column.kind is None:
        return texts, (texts == "null").to_numpy()
    values = booleans(texts, JSON_TRUE, JSON_FALSE)
    valid = valid_mask(values)
    return values, None if valid is None else valid | (texts == "null").to_numpy()


def tag_codes(column: MemberColumn, texts: pa.DictionaryArray) -> tuple[pa.Array, Booleans | None]:
    """A column of tags, and which of them are valid JSON (None means all)."""
    if column.quoted:
        return encode_tags(texts), None
    plain = valid_mask(_scalars(pl.Series(values=pl.from_arrow(texts.dictionary))))
    return encode_tags(texts, absent="null"), None if plain is None else plain[np.asarray(texts.indices)]


def _scalars(texts: pl.Series) -> pl.Series:
    """The texts that are numbers or words of JSON; null for the others."""
    return texts.set(~texts.str.contains(JSON_SCALAR), None)


def some_value(fields: list[pl.Series]) -> Booleans | None:
    """Which rows have a value in at least one of the columns; None means all."""
    valid = [valid_mask(values) for values in fields]
    if any(mask is None for mask in valid):
        return None
    some: Booleans = np.logical_or.reduce([mask for mask in valid if mask is not None])
    return some


@dataclass(frozen=True, slots=True)
class TagRun:
    """Adjacent tags; `template` matches their text, from the first name to the last value."""

    template: Template
    columns: tuple[MemberColumn, ...]

    def codes(self, texts: pa.DictionaryArray) -> tuple[list[pa.Array], Booleans | None]:
        """A tag column for each member, and which of `texts` are valid (None means all)."""
        decoder = _RunDecoder(self)
        rows = np.asarray(texts.indices)
        valid = np.zeros(len(texts.dictionary), np.bool_)
        decoder.decode(texts.dictionary)
        indexes = np.zeros(len(valid), np.int32)
        if decoder.rows:
            decoded = np.concatenate(decoder.rows)
            valid[decoded] = True
            indexes[decoded] = np.arange(len(decoded))
        chosen = pa.array(indexes[rows])
        return [decoder.column(index, chosen) for index in range(len(self.columns))], (
            None if valid.all() else valid[rows]
        )


@dataclass(slots=True)
class _RunDecoder:
    """The distinct texts of a tag run, decoded in batches."""

    run: TagRun
    rows: list[Integers] = field(default_factory=list)
    tags: list[list[pa.Array]] = field(default_factory=list)

    def decode(self, texts: pa.Array) -> None:
        """Decode the texts that match the template of the run."""
        lines = lines_of_messages(texts.cast(pa.large_binary()))
        for first, last in lines.batches():
            self._accept(match(lines, self.run.template, np.arange(first, last)))

    def column(self, index: int, chosen: pa.Array) -> pa.Array:
        """Tag `index` of the texts `chosen`, which are numbered in the order in which they were decoded."""
        if not self.rows:
            return pa.DictionaryArray.from_arrays(pa.nulls(len(chosen), pa.int32()), pa.array([], pa.string()))
        whole = concat_arrays([part[index] for part in self.tags])
        return pa.DictionaryArray.from_arrays(whole.indices.take(chosen), whole.dictionary)

    def _accept(self, matched: MatchedLines) -> None:
        """Store the lines of which every tag is valid."""
        good: Booleans | None = None
        tags: list[pa.Array] = []
        for index, column in enumerate(self.run.columns):
            codes, valid = tag_codes(column, matched.dictionary(index))
            good = and_masks(good, valid)
            tags.append(codes)
        kept = matched.rows
        if good is not None and not good.all():
            kept, tags = kept[good], [codes.filter(pa.array(good)) for codes in tags]
        if len(kept):
            self.rows.append(kept)
            self.tags.append(tags)


def find_tag_runs(columns: Sequence[MemberColumn]) -> list[tuple[int, int]]:
    """The runs of two or more adjacent tags, as (first, one after the last)."""
    runs: list[tuple[int, int]] = []
    first = 0
    while first < len(columns):
        last = first
        while last < len(columns) and columns[last].role == "tag":
            last += 1
        if last - first > 1:
            runs.append((first, last))
        first = max(last, first + 1)
    return runs


@dataclass(frozen=True, slots=True)
class JsonShape:
    """A template of JSON lines of `table` with the meaning of its values; a run of tags is one value."""

    template: Template
    table: str
    values: tuple[MemberColumn | TagRun, ...]

    @property
    def signature(self) -> Signature:
        """The columns of its rows."""
        columns = [
            column for value in self.values for column in (value.columns if isinstance(value, TagRun) else (value,))
        ]
        tags = tuple(column.name for column in columns if column.role == "tag")
        fields = tuple(
            (column.name, column.kind) for column in columns if column.role == "field" and column.kind is not None
        )
        return self.table, tags, fields


def infer_shape(line: bytes, mapping: MemberMapping) -> JsonShape | None:
    """The shape of a line; None if such lines can only be scanned."""
    try:
        members = plain_members(line)
    except UnicodeDecodeError:
        return None
    if members is None or len({member.name for member in members}) < len(members):
        return None
    try:
        table = mapping.table({member.name: member.value for member in members})
        columns = tuple(_column(table, member, mapping) for member in members)
    except InvalidLine:
        return None
    shape = _with_runs(JsonShape(_template(line, members, columns), table, columns), columns)
    return shape if shape.signature[2] else None


def _column(table: str, member: Member, mapping: MemberMapping) -> MemberColumn:
    value, role = member.value, mapping.role(member.name)
    kind = None if role != "field" or value is None else mapping.value(table, member.name, value)[0]
    quoted = isinstance(value, str) and not isinstance(value, Number)
    value_kind = NUMBER_KINDS.get(kind, ValueKind.TEXT) if kind is not None else ValueKind.TEXT
    # The kernel computes integer times; with `time_format` digits are text of that form.
    if role == "time" and not quoted and mapping.options.time_format is None and INTEGER_TEXT.fullmatch(str(value)):
        value_kind = ValueKind.INTEGER
    return MemberColumn(member.name, role, kind, quoted, value_kind)


def _with_runs(whole: JsonShape, columns: tuple[MemberColumn, ...]) -> JsonShape:
    """The shape in which each run of adjacent tags is one value."""
    before, after = list(whole.template.before), list(whole.template.after)
    kinds, quotes = list(whole.template.kinds), [0] * len(columns)
    values = list[MemberColumn | TagRun](columns)
    # From the last run to the first, so that the indexes of the runs before stay valid.
    for first, last in reversed(find_tag_runs(columns)):
        opening = before[first][: before[first].index(b'"')]
        ending = after[last - 1]
        closing = ending[1:] if columns[last - 1].quoted else ending
        heads = (before[first][len(opening) :], *before[first + 1 : last])
        tails = (*after[first : last - 1], ending[: len(ending) - len(closing)])
        run = TagRun(Template(heads, tails, (ValueKind.TEXT,) * (last - first)), columns[first:last])
        before[first:last], after[first:last] = [opening], [closing]
        kinds[first:last], values[first:last] = [ValueKind.TEXT], [run]
        quotes[first:last] = [sum(text.count(b'"') for text in (*heads, *tails))]
    template = Template(tuple(before), tuple(after), tuple(kinds), tuple(quotes), strict=True)
    return JsonShape(template, whole.table, tuple(values))


def _template(line: bytes, members: list[Member], columns: tuple[MemberColumn, ...]) -> Template:
    """The template of a line with the values of `members`, its literals split at the commas between them."""
    before, after = [], []
    start = 0
    for member in members:
        before.append(line[start : member.start])
        following = line.find(b",", member.end)
        start = len(line) if following < 0 else following
        after.append(line[member.end : start])
    return Template(tuple(before), tuple(after), tuple(column.value_kind for column in columns), strict=True)
