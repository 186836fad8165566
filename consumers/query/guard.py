"""Checks SQL before it runs, on the syntax tree of the parser that will run it.

DuckDB serialises its own syntax tree to JSON (`json_serialize_sql`, reading statements only). Every node of
that tree must be of a kind listed here. A statement or a table function of a later DuckDB is thus refused until
it is reviewed. DuckDB itself is locked as well (`database`): this check is the first of two barriers, and the
one with clear messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from headrace.consumers.query.parameter_types import ParameterHint, hints_of
from headrace.consumers.query.query_errors import FunctionRefused, NotReadOnly, QueryInvalid

SQL_BYTES_MAX = 128 * 1024
NESTING_MAX = 100
"""Deepest nesting of brackets. The parser takes time by the cube of it and holds the interpreter's lock."""

QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
TABLE_REFERENCES = frozenset(
    {"BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EMPTY", "EXPRESSION_LIST", "PIVOT", "SHOW_REF"}
)
TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"})
REFUSED_FUNCTIONS = frozenset(
    {
        "getenv",
        "current_setting",
        "getvariable",
        "current_query",
        "write_log",
        "sleep_ms",
        "nextval",
        "currval",
        "in_search_path",
        "current_schemas",
    }
)
REFUSED_PREFIXES = ("__headrace_", "pg_", "read_", "parquet_", "duckdb_", "pragma_", "sniff_", "json_execute_")
_HOLDING = frozenset({"JOIN", "PIVOT"})
_GENERATING = frozenset({"TABLE_FUNCTION", "RECURSIVE_CTE_NODE"})
# These two begin like functions of the system catalog, and only format their arguments.
HARMLESS = frozenset({"pg_typeof", "pg_size_pretty"})
# DuckDB gives a table reference without a position in the SQL the largest 64-bit number.
_NO_POSITION = 2**63
# Possessive, as below: a row of comments can be divided in many ways, and all of them would be tried before it fails.
_COMMENTS = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*+"
# Of more names than there are functions of the time: a column `renowned` costs a millisecond, and no more.
_PRESENT = re.compile(
    r"(?<!\w)(now|today|transaction_timestamp|localtime(stamp)?|(get_)?current_(date|time|timestamp|localtime(stamp)?))(?!\w)",
    re.IGNORECASE,
)
"""The functions of DuckDB that name the present, and the columns that it turns into one of them."""
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_BRACKETS = re.compile(r"[()\[\]{}]")
_QUOTED = re.compile(
    r"[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|\$(\w*)\$.*?\$\1\$", re.DOTALL
)
_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/|\()*+([A-Za-z]+)", re.DOTALL)
_EXPLAIN = re.compile(rf"{_COMMENTS}EXPLAIN\b(?P<analyze>{_COMMENTS}ANALYZE\b)?", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as the SQL names it: the parts of its path, its position in bytes where it has one, if it has an alias."""

    path: tuple[str, ...]
    position: int | None = None
    aliased: bool = False


@dataclass(frozen=True, slots=True)
class ParameterName:
    """A parameter as the SQL names it, and its place in bytes; `positional` for a `?` without a name."""

    name: str
    position: int
    length: int
    positional: bool = False


@dataclass(frozen=True, slots=True)
class Statement:
    """One reading statement that may run.

    `sql` is the statement without its EXPLAIN, and `explain` is "" or the prefix to put back. `show` is
    "tables" or "databases" for a statement that the engine answers itself, else "". `verb` is DESCRIBE,
    SUMMARIZE or "". `names_now`: it may depend on the time at which it runs. `holds_rows`: it has a step that takes
    all rows before it gives one, such as a sort. `generates_rows`: it may compute without reading any. `has_subquery`:
    a SELECT is part of an expression, so that its text may be the name of a column. `hints`: what it tells of the types
    of its parameters.
    """

    sql: str
    explain: str = ""
    show: str = ""
    show_database: str | None = None
    verb: str = ""
    names_now: bool = False
    joins: bool = False
    holds_rows: bool = False
    generates_rows: bool = False
    has_subquery: bool = False
    tables: tuple[TableName, ...] = ()
    cte_names: frozenset[str] = frozenset()
    parameters: tuple[ParameterName, ...] = ()
    hints: tuple[ParameterHint, ...] = ()

    @property
    def analyzed(self) -> bool:
        """True when what the statement does is wanted, and not its rows."""
        return self.explain.startswith("EXPLAIN ANALYZE")

    @property
    def is_plain(self) -> bool:
        """Whether it reads tables and nothing else, under names that no literal has a part in."""
        return not (self.explain or self.show or self.verb or self.parameters or self.names_now)

    @property
    def described(self) -> bool:
        """True when only the shape of the tables matters, not their rows."""
        return self.verb == "DESCRIBE"


def check(sql: str, kinds: Callable[[str], list[str]], tree: Callable[[str], Mapping[str, Any]]) -> Statement:
    """The statement in `sql`, or NotReadOnly, FunctionRefused or QueryInvalid.

    `kinds` gives the kind of each statement in a text, and may raise for SQL that does not parse. `tree`
    gives DuckDB's serialised syntax tree.
    """
    _check_size(sql)
    kind = _single(kinds(sql))
    explain = ""
    if kind == "EXPLAIN":
        # The serialiser takes no EXPLAIN. Its statement is checked by itself, because EXPLAIN ANALYZE runs it.
        sql, explain = _without_explain(sql)
        kind = _single(kinds(sql))
    if kind != "SELECT":
        raise _not_read_only(sql, kind)
    answer = tree(sql)
    if answer.get("error"):
        raise QueryInvalid(str(answer.get("error_message", "the SQL cannot be parsed")))
    (root,) = answer["statements"]
    return _statement(sql, explain, root["node"])


def _check_size(sql: str) -> None:
    """Refuse SQL that would block the parser."""
    if len(sql.encode(errors="replace")) > SQL_BYTES_MAX:
        raise QueryInvalid(f"the SQL is longer than {SQL_BYTES_MAX} bytes", action="shorten it, or join with a table")
    if "\x00" in sql:
        raise QueryInvalid("the SQL has a NUL character", action="remove it")
    if has_half_pair(sql):
        raise QueryInvalid("the SQL has half of a surrogate pair, which UTF-8 has not", action="remove it")
    # Counted with and without quoted texts, and the larger number decides: this pattern and DuckDB's lexer may
    # disagree about the end of a text, and no bracket may hide there.
    if max(_nesting(sql), _nesting(_QUOTED.sub(" ", sql))) > NESTING_MAX:
        raise QueryInvalid(f"the SQL nests brackets deeper than {NESTING_MAX}", action="flatten it with WITH clauses")


def has_half_pair(text: str) -> bool:
    """Whether a text has no form in UTF-8: JSON can escape half of a surrogate pair."""
    return _HALF_PAIR.search(text) is not None


def _nesting(text: str) -> int:
    depths = accumulate((1 if bracket in "([{" else -1 for bracket in _BRACKETS.findall(text)), _deeper)
    return max(depths, default=0)


def _deeper(depth: int, step: int) -> int:
    return max(0, depth + step)


def _single(kinds: list[str]) -> str:
    if not kinds:
        raise QueryInvalid("SQL is empty", action="ask something, SHOW TABLES for a start")
    if len(kinds) > 1:
        raise NotReadOnly(f"{len(kinds)} statements in one query", action="send one statement at a time")
    return kinds[0]


def _not_read_only(sql: str, kind: str) -> NotReadOnly:
    # DuckDB rewrites a PIVOT without listed values into several statements; the first one creates a type.
    if kind == "MULTI":
        return NotReadOnly(
            "this PIVOT needs more than one statement", action="name the values: PIVOT … ON column IN (…)"
        )
    # DuckDB's kinds are coarser than its statements: INSTALL is a LOAD there, USE is a SET.
    found = _FIRST_WORD.match(sql)
    word = found[1].upper() if found else kind
    return NotReadOnly(
        f"{kind if word == 'WITH' else word} is not a reading statement",
        action="queries only read: SELECT, WITH, VALUES, SHOW TABLES, DESCRIBE, EXPLAIN",
    )


def _without_explain(sql: str) -> tuple[str, str]:
    match = _EXPLAIN.match(sql)
    if match is None:
        raise NotReadOnly(
            "this form of EXPLAIN is not understood", action="write EXPLAIN SELECT … or EXPLAIN ANALYZE SELECT …"
        )
    return sql[match.end() :], "EXPLAIN ANALYZE " if match["analyze"] else "EXPLAIN "


def _statement(sql: str, explain: str, node: Mapping[str, Any]) -> Statement:
    top = node.get("from_table") or {}
    verb = ""
    if top.get("type") == "SHOW_REF":
        show = _show(sql, explain, top)
        if show is not None:
            return show
        verb = "DESCRIBE" if top["show_type"] == "DESCRIBE" else "SUMMARIZE"
    tables: list[TableName] = []
    parameters: list[ParameterName] = []
    hints: list[ParameterHint] = []
    cte_names: set[str] = set()
    names_now = joins = holds_rows = generates_rows = has_subquery = False
    for item in _nodes(node):
        names_now = names_now or _names_now(item)
        # What a sample is of, has a type that is no text.
        kind = str(item.get("type"))
        joins = joins or kind == "JOIN"
        holds_rows = holds_rows or _holds_rows(kind, item)
        generates_rows = generates_rows or kind in _GENERATING
        has_subquery = has_subquery or item.get("class") == "SUBQUERY"
        _check_node(item, tables)
        if item.get("class") == "PARAMETER":
            parameters.append(_parameter_name(sql, item))
        hints += hints_of(item)
        cte_names.update(entry["key"].lower() for entry in (item.get("cte_map") or {}).get("map", ()))
        if "ctename" in item or "cte_name" in item:
            cte_names.add(str(item.get("ctename") or item.get("cte_name")).lower())
    return Statement(
        sql,
        explain,
        verb=verb,
        names_now=names_now,
        joins=joins,
        holds_rows=holds_rows,
        generates_rows=generates_rows,
        has_subquery=has_subquery,
        tables=tuple(tables),
        cte_names=frozenset(cte_names),
        parameters=tuple(parameters),
        hints=tuple(hints),
    )


def _show(sql: str, explain: str, reference: Mapping[str, Any]) -> Statement | None:
    if reference["show_type"] in ("DESCRIBE", "SUMMARY"):
        return None
    if reference["show_type"] == "SHOW_FROM":
        return Statement(sql, explain, show="tables", show_database=reference["schema_name"])
    if reference["table_name"] in ('"tables"', "__show_tables_expanded"):
        return Statement(sql, explain, show="tables")
    if reference["table_name"] == '"databases"':
        return Statement(sql, explain, show="databases")
    raise NotReadOnly(
        f"SHOW {reference['table_name']} is not offered", action="SHOW TABLES, SHOW DATABASES and DESCRIBE are"
    )


def _nodes(root: Any) -> Iterator[Mapping[str, Any]]:
    """Every object of the tree."""
    # No recursion: the client chooses how deep the tree is.
    stack = [root]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _holds_rows(kind: str, item: Mapping[str, Any]) -> bool:
    """Whether a node takes all rows before it gives one."""
    # UNION ALL passes rows on.
    if kind == "SET_OPERATION_NODE" and not (str(item.get("setop_type")).startswith("UNION") and item.get("setop_all")):
        return True
    # Groups that are sorted are few beside the rows that they are of.
    modifiers = [] if item.get("group_expressions") else [*item.get("modifiers", ())]
    # Every call of a function has an order of its arguments, which is mostly empty.
    modifiers.append(item.get("order_bys") or {})
    if any(each.get("type") == "DISTINCT_MODIFIER" or each.get("orders") for each in modifiers):
        return True
    return kind in _HOLDING or item.get("class") == "WINDOW"


def _names_now(item: Mapping[str, Any]) -> bool:
    """Whether a node names the present in any way: as a function, or as a column that DuckDB turns into one."""
    texts = [text for value in item.values() for text in (value if isinstance(value, list) else [value])]
    return any(isinstance(text, str) and may_name_now(text) for text in texts)


def may_name_now(text: str) -> bool:
    """Whether a text may name the present in any way."""
    return _PRESENT.search(text) is not None


def _check_node(item: Mapping[str, Any], tables: list[TableName]) -> None:
    kind = item.get("type")
    if not isinstance(kind, str):
        return
    if kind.endswith("_NODE") and kind not in QUERY_NODES:
        raise NotReadOnly(
            f"{kind.removesuffix('_NODE').removesuffix('_QUERY')} inside a query is not a reading statement"
        )
    # Every table reference has these two members, whatever a later DuckDB calls its kind.
    if "sample" in item and "query_location" in item and kind not in TABLE_REFERENCES:
        raise NotReadOnly(f"a table reference of kind {kind} is not offered")
    if kind == "BASE_TABLE":
        tables.append(_table_name(item))
    elif kind == "TABLE_FUNCTION":
        _check_table_function(item)
    elif kind == "SHOW_REF" and item["show_type"] not in ("DESCRIBE", "SUMMARY"):
        raise NotReadOnly("SHOW inside a query is not offered", action="send SHOW TABLES by itself")
    elif "function_name" in item:
        _check_function(str(item["function_name"]))


def _table_name(item: Mapping[str, Any]) -> TableName:
    path = tuple(part for part in (item["catalog_name"], item["schema_name"], item["table_name"]) if part)
    position = item["query_location"]
    return TableName(path, position if position < _NO_POSITION else None, bool(item.get("alias")))


def _parameter_name(sql: str, item: Mapping[str, Any]) -> ParameterName:
    position, length = item["query_location"], item["query_location_length"]
    written = sql.encode()[position : position + length]
    # A parameter that is not at its place, after a change of the parser, must not let another text be replaced.
    if written[:1] not in (b"$", b"?"):
        raise QueryInvalid(f"parameter ${item['identifier']} cannot be used here", action="write the value itself")
    return ParameterName(str(item["identifier"]), position, length, positional=written[:1] == b"?")


def _check_table_function(item: Mapping[str, Any]) -> None:
    name = str(item["function"].get("function_name", "")).lower()
    if name not in TABLE_FUNCTIONS:
        raise FunctionRefused(
            f"table function {name or '?'} is not offered", action=f"offered are {', '.join(sorted(TABLE_FUNCTIONS))}"
        )


def _check_function(name: str) -> None:
    folded = name.lower()
    if folded in REFUSED_FUNCTIONS or (folded.startswith(REFUSED_PREFIXES) and folded not in HARMLESS):
        raise FunctionRefused(
            f"function {name} is not offered", action="queries see tables, not files, settings or other queries"
        )
