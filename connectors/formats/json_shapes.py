"""The shape of JSON lines that one producer writes."""

from __future__ import annotations

from dataclasses import dataclass

from connectors.formats.json_columns import Column
from connectors.formats.json_readings import Meaning
from connectors.formats.json_scanner import Member, Number, plain_members
from connectors.formats.json_tags import TagRun, runs_of
from connectors.formats.kernel_types import Kind
from connectors.formats.line_scanner import BadLine
from connectors.formats.templates import Template
from connectors.formats.values import INTEGER_TEXT
from schemas.tables import FieldType

KINDS = {FieldType.INT64: Kind.INTEGER, FieldType.FLOAT64: Kind.FLOAT}

Signature = tuple[str, tuple[str, ...], tuple[tuple[str, FieldType], ...]]


@dataclass(frozen=True, slots=True)
class Shape:
    """A template of JSON with the meaning of its values, of which a run of tags is one; its lines belong to `table`."""

    template: Template
    table: str
    values: tuple[Column | TagRun, ...]

    @property
    def signature(self) -> Signature:
        """The columns its rows have."""
        columns = [
            column for value in self.values for column in (value.columns if isinstance(value, TagRun) else (value,))
        ]
        tags = tuple(column.name for column in columns if column.role == "tag")
        fields = tuple(
            (column.name, column.kind) for column in columns if column.role == "field" and column.kind is not None
        )
        return self.table, tags, fields


def shape_of(line: bytes, meaning: Meaning) -> Shape | None:
    """The shape of a line, or None when lines like it can only be scanned."""
    try:
        members = plain_members(line)
    except UnicodeDecodeError:
        return None
    if members is None or len({member.name for member in members}) < len(members):
        return None
    try:
        table = meaning.table({member.name: member.value for member in members})
        columns = tuple(_column(table, member, meaning) for member in members)
    except BadLine:
        return None
    shape = _with_runs(Shape(_template(line, members, columns), table, columns), columns)
    return shape if shape.signature[2] else None


def _column(table: str, member: Member, meaning: Meaning) -> Column:
    value, role = member.value, meaning.role(member.name)
    kind = None if role != "field" or value is None else meaning.value(table, member.name, value)[0]
    quoted = isinstance(value, str) and not isinstance(value, Number)
    value_kind = KINDS.get(kind, Kind.TEXT) if kind is not None else Kind.TEXT
    if role == "time" and not quoted and meaning.options.time_format is None and INTEGER_TEXT.fullmatch(str(value)):
        value_kind = Kind.INTEGER
    return Column(member.name, role, kind, quoted, value_kind)


def _with_runs(whole: Shape, columns: tuple[Column, ...]) -> Shape:
    """The shape in which neighbouring tags are one value."""
    before, after = list(whole.template.before), list(whole.template.after)
    kinds, quotes = list(whole.template.kinds), [0] * len(columns)
    values = list[Column | TagRun](columns)
    for first, last in reversed(runs_of(columns)):
        opening = before[first][: before[first].index(b'"')]
        ending = after[last - 1]
        closing = ending[1:] if columns[last - 1].quoted else ending
        heads = (before[first][len(opening) :], *before[first + 1 : last])
        tails = (*after[first : last - 1], ending[: len(ending) - len(closing)])
        run = TagRun(Template(heads, tails, (Kind.TEXT,) * (last - first)), columns[first:last])
        before[first:last], after[first:last] = [opening], [closing]
        kinds[first:last], values[first:last] = [Kind.TEXT], [run]
        quotes[first:last] = [sum(text.count(b'"') for text in (*heads, *tails))]
    template = Template(tuple(before), tuple(after), tuple(kinds), tuple(quotes), strict=True)
    return Shape(template, whole.table, tuple(values))


def _template(line: bytes, members: list[Member], columns: tuple[Column, ...]) -> Template:
    """The template of a line whose values stand where `members` say, cut at the commas between them."""
    before, after = [], []
    start = 0
    for member in members:
        before.append(line[start : member.start])
        following = line.find(b",", member.end)
        start = len(line) if following < 0 else following
        after.append(line[member.end : start])
    return Template(tuple(before), tuple(after), tuple(column.value_kind for column in columns), strict=True)
