"""What a node says of itself to drivers of Flight SQL: by the numbers of `SqlInfo` in Arrow's FlightSql.proto. Pure.

Drivers for JDBC answer the questions of tools from it, and fail where a number is missing that a tool asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.consumers.serve.software import installed_version
from headrace.schemas.tables import COLUMNS_MAX, NAME_BYTES_MAX


class Bits(int):
    """A number of 32 bits, or a set of them; other numbers have 64."""


Information = str | bool | int | Sequence[str] | Mapping[int, Sequence[int]]

_UNKNOWN = 0
"""As the number of a limit: there is none, or it is not known."""
_SERVER: Mapping[int, Information] = {
    0: "Headrace",  # FLIGHT_SQL_SERVER_NAME
    1: installed_version(),  # FLIGHT_SQL_SERVER_VERSION
    2: pa.__version__,  # FLIGHT_SQL_SERVER_ARROW_VERSION
    3: True,  # FLIGHT_SQL_SERVER_READ_ONLY
    4: True,  # FLIGHT_SQL_SERVER_SQL
    5: False,  # FLIGHT_SQL_SERVER_SUBSTRAIT
    8: Bits(0),  # FLIGHT_SQL_SERVER_TRANSACTION: none
    9: False,  # FLIGHT_SQL_SERVER_CANCEL: by the end of the call
    10: False,  # FLIGHT_SQL_SERVER_BULK_INGESTION
    11: False,  # FLIGHT_SQL_SERVER_INGEST_TRANSACTIONS_SUPPORTED
}
_LANGUAGE: Mapping[int, Information] = {
    500: False,  # SQL_DDL_CATALOG
    501: False,  # SQL_DDL_SCHEMA
    502: False,  # SQL_DDL_TABLE
    503: Bits(1),  # SQL_IDENTIFIER_CASE: names are found in any case
    504: '"',  # SQL_IDENTIFIER_QUOTE_CHAR
    505: Bits(1),  # SQL_QUOTED_IDENTIFIER_CASE: as without quotes
    506: True,  # SQL_ALL_TABLES_ARE_SELECTABLE
    507: Bits(3),  # SQL_NULL_ORDERING: nulls at the end
    508: (),  # SQL_KEYWORDS
    509: (),  # SQL_NUMERIC_FUNCTIONS
    510: (),  # SQL_STRING_FUNCTIONS
    511: (),  # SQL_SYSTEM_FUNCTIONS
    512: (),  # SQL_DATETIME_FUNCTIONS
    513: "\\",  # SQL_SEARCH_STRING_ESCAPE
    514: "",  # SQL_EXTRA_NAME_CHARACTERS
    515: True,  # SQL_SUPPORTS_COLUMN_ALIASING
    516: True,  # SQL_NULL_PLUS_NULL_IS_NULL
    517: {},  # SQL_SUPPORTS_CONVERT: not known
    518: True,  # SQL_SUPPORTS_TABLE_CORRELATION_NAMES
    519: False,  # SQL_SUPPORTS_DIFFERENT_TABLE_CORRELATION_NAMES
    520: True,  # SQL_SUPPORTS_EXPRESSIONS_IN_ORDER_BY
    521: True,  # SQL_SUPPORTS_ORDER_BY_UNRELATED
    522: Bits(0b11),  # SQL_SUPPORTED_GROUP_BY: also by what is not selected
    523: True,  # SQL_SUPPORTS_LIKE_ESCAPE_CLAUSE
    524: False,  # SQL_SUPPORTS_NON_NULLABLE_COLUMNS
    525: Bits(0b11),  # SQL_SUPPORTED_GRAMMAR: minimum and core
    526: Bits(1),  # SQL_ANSI92_SUPPORTED_LEVEL: entry
    527: False,  # SQL_SUPPORTS_INTEGRITY_ENHANCEMENT_FACILITY
    528: Bits(0b110),  # SQL_OUTER_JOINS_SUPPORT_LEVEL: limited and full
    529: "database",  # SQL_SCHEMA_TERM
    530: "",  # SQL_PROCEDURE_TERM
    531: "",  # SQL_CATALOG_TERM
    532: True,  # SQL_CATALOG_AT_START
    533: Bits(0),  # SQL_SCHEMAS_SUPPORTED_ACTIONS
    534: Bits(0),  # SQL_CATALOGS_SUPPORTED_ACTIONS
    535: Bits(0),  # SQL_SUPPORTED_POSITIONED_COMMANDS
    536: False,  # SQL_SELECT_FOR_UPDATE_SUPPORTED
    537: False,  # SQL_STORED_PROCEDURES_SUPPORTED
    538: Bits(0b1111),  # SQL_SUPPORTED_SUBQUERIES: in comparisons, EXISTS, IN and with quantifiers
    539: True,  # SQL_CORRELATED_SUBQUERIES_SUPPORTED
    540: Bits(0b11),  # SQL_SUPPORTED_UNIONS: UNION and UNION ALL
}
_LIMITS: Mapping[int, Information] = {
    # SQL_MAX_BINARY_LITERAL_LENGTH to SQL_MAX_ROW_SIZE, SQL_MAX_STATEMENT_LENGTH to SQL_MAX_USERNAME_LENGTH
    **dict.fromkeys((*range(541, 556), *range(557, 562)), _UNKNOWN),
    543: NAME_BYTES_MAX,  # SQL_MAX_COLUMN_NAME_LENGTH
    548: COLUMNS_MAX,  # SQL_MAX_COLUMNS_IN_TABLE
    552: NAME_BYTES_MAX,  # SQL_DB_SCHEMA_NAME_LENGTH
    556: False,  # SQL_MAX_ROW_SIZE_INCLUDES_BLOBS
    559: NAME_BYTES_MAX,  # SQL_MAX_TABLE_NAME_LENGTH
}
_TRANSACTIONS: Mapping[int, Information] = {
    562: 0,  # SQL_DEFAULT_TRANSACTION_ISOLATION: none; the driver for JDBC reads 64 bits
    563: False,  # SQL_TRANSACTIONS_SUPPORTED
    564: Bits(0b1),  # SQL_SUPPORTED_TRANSACTIONS_ISOLATION_LEVELS: none
    565: False,  # SQL_DATA_DEFINITION_CAUSES_TRANSACTION_COMMIT
    566: False,  # SQL_DATA_DEFINITIONS_IN_TRANSACTIONS_IGNORED
    567: Bits(0b10),  # SQL_SUPPORTED_RESULT_SET_TYPES: read once, from front to back
    568: Bits(0),  # SQL_SUPPORTED_CONCURRENCIES_FOR_RESULT_SET_UNSPECIFIED
    569: Bits(0b10),  # SQL_SUPPORTED_CONCURRENCIES_FOR_RESULT_SET_FORWARD_ONLY: only to read
    570: Bits(0),  # SQL_SUPPORTED_CONCURRENCIES_FOR_RESULT_SET_SCROLL_SENSITIVE
    571: Bits(0),  # SQL_SUPPORTED_CONCURRENCIES_FOR_RESULT_SET_SCROLL_INSENSITIVE
    572: False,  # SQL_BATCH_UPDATES_SUPPORTED
    573: False,  # SQL_SAVEPOINTS_SUPPORTED
    574: False,  # SQL_NAMED_PARAMETERS_SUPPORTED: of stored procedures
    575: False,  # SQL_LOCATORS_UPDATE_COPY
    576: False,  # SQL_STORED_FUNCTIONS_USING_CALL_SYNTAX_SUPPORTED
}
_INFORMATION = {**_SERVER, **_LANGUAGE, **_LIMITS, **_TRANSACTIONS}
_VALUES: Mapping[str, pa.DataType] = {
    "string_value": pa.string(),
    "bool_value": pa.bool_(),
    "bigint_value": pa.int64(),
    "int32_bitmask": pa.int32(),
    "string_list": pa.list_(pa.string()),
    "int32_to_int32_list_map": pa.map_(pa.int32(), pa.list_(pa.int32())),
}
"""The members of the union that has the values."""


def information(numbers: Sequence[int] = ()) -> pa.Table:
    """Number and value of what is known of some numbers, or of all."""
    found = {number: _INFORMATION[number] for number in numbers or _INFORMATION if number in _INFORMATION}
    members: dict[str, list[Information]] = {name: [] for name in _VALUES}
    kinds, offsets = list[int](), list[int]()
    for value in found.values():
        name = _member_of(value)
        kinds.append(list(_VALUES).index(name))
        offsets.append(len(members[name]))
        members[name].append(value)
    values = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(members[name], kind) for name, kind in _VALUES.items()],
        list(_VALUES),
    )
    columns = [("info_name", pa.uint32()), ("value", values.type)]
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])
    return pa.table([pa.array(found, pa.uint32()), values], schema=schema)


def _member_of(value: Information) -> str:
    if isinstance(value, str):
        return "string_value"
    if isinstance(value, Bits):
        return "int32_bitmask"
    if isinstance(value, int):
        return "bool_value" if isinstance(value, bool) else "bigint_value"
    return "int32_to_int32_list_map" if isinstance(value, Mapping) else "string_list"
