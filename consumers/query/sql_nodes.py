"""The SQL that may be written anew: an allow-list of the nodes of sqlglot's tree, and trees to SQL and back. Pure.

A part of a statement that becomes a fragment is written from its tree. That is right only for nodes whose SQL is known
to mean in DuckDB what it meant before, and whose value depends on nothing but the row.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.dialects import DuckDB
from sqlglot.tokenizer_core import Token, TokenType

from headrace.consumers.query.parameters import READER

# Loaded with this module: under its name sqlglot would load it in the first query, which takes 0.2 s.
_DIALECT = DuckDB

ROW_NODES: tuple[type[exp.Expression], ...] = (
    exp.Column,
    exp.Identifier,
    exp.Literal,
    exp.Boolean,
    exp.Null,
    exp.Paren,
    exp.Tuple,
    exp.And,
    exp.Or,
    exp.Not,
    exp.EQ,
    exp.NEQ,
    exp.LT,
    exp.LTE,
    exp.GT,
    exp.GTE,
    exp.NullSafeEQ,
    exp.NullSafeNEQ,
    exp.Between,
    exp.In,
    exp.Is,
    exp.Like,
    exp.ILike,
    exp.Add,
    exp.Sub,
    exp.Mul,
    exp.Div,
    exp.IntDiv,
    exp.Mod,
    exp.Neg,
    exp.Case,
    exp.If,
    exp.Coalesce,
    exp.Nullif,
    exp.Greatest,
    exp.Least,
    exp.Abs,
    exp.Ceil,
    exp.Floor,
    exp.Round,
    exp.Sqrt,
    exp.Lower,
    exp.Upper,
    exp.Length,
    exp.DPipe,
    exp.Cast,
    exp.TryCast,
    exp.DataType,
    exp.DataTypeParam,
    exp.Interval,
    exp.Var,
    exp.DateBin,
    exp.TimestampTrunc,
    exp.DateTrunc,
    exp.UnixToTime,
    exp.TimeToUnix,
    exp.CurrentTimestamp,
    exp.CurrentDate,
    exp.TimestampFromParts,
)
ROW_FUNCTIONS = frozenset(
    {"epoch_ns", "epoch_us", "make_timestamp", "make_timestamp_ns", "make_timestamp_ms", "make_date", "now", "today"}
)
"""Functions of DuckDB that sqlglot does not know, whose value depends on nothing but their arguments."""
_TYPES = frozenset(
    {
        *(exp.DType.BOOLEAN, exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT, exp.DType.INT128),
        *(exp.DType.DOUBLE, exp.DType.FLOAT, exp.DType.DECIMAL, exp.DType.VARCHAR, exp.DType.TEXT, exp.DType.DATE),
        *(exp.DType.TIMESTAMP, exp.DType.TIMESTAMPNTZ, exp.DType.TIMESTAMP_NS, exp.DType.TIMESTAMP_MS),
        *(exp.DType.TIMESTAMP_S, exp.DType.INTERVAL),
    }
)


def is_of_row(node: exp.Expression) -> bool:
    """Whether an expression is of the allow-list, and so of one row."""
    return all(_allowed(each) for each in node.walk())


def _allowed(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in ROW_FUNCTIONS or node.name.lower() == READER
    if isinstance(node, exp.DataType):
        return node.this in _TYPES
    if isinstance(node, exp.In):
        return not (node.args.get("query") or node.args.get("unnest") or node.args.get("field"))
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Cast) and isinstance(node.this.this, exp.Literal):
        # Of `DATE '2026-01-01'::VARCHAR` the parser makes the text a VARCHAR first, and then a date.
        return False
    # By the exact class: a subclass may be written in another way.
    return type(node) in ROW_NODES


def sql_of(node: exp.Expression) -> str:
    """The SQL of a tree."""
    return node.sql(dialect="duckdb")


def tokens_of(sql: str) -> list[Token]:
    """The tokens of SQL, `.5` as one of them: of two the parser makes `0.5`, which has another type and text."""
    found: list[Token] = []
    for token in _DIALECT().tokenize(sql):
        if token.token_type is TokenType.NUMBER and found and found[-1].token_type is TokenType.DOT:
            dot = found.pop()
            token = Token(TokenType.NUMBER, f".{token.text}", dot.line, dot.col, dot.start, token.end, token.comments)
        found.append(token)
    return found


def trees_of(tokens: Sequence[Token], sql: str) -> Sequence[exp.Expr | None]:
    """The tree of each statement of the tokens of SQL."""
    found: Sequence[exp.Expr | None] = _DIALECT().parser().parse(list(tokens), sql)
    return found


def parsed_expression(text: str) -> exp.Expression:
    """The tree of an expression of our own."""
    (found,) = trees_of(tokens_of(text), text)
    assert isinstance(found, exp.Expression), text
    return found


def quoted_column(name: str) -> exp.Column:
    """A column by its exact name."""
    return exp.Column(this=exp.to_identifier(name, quoted=True))
