"""What a cluster declares of a database, as the parsers take it. Views and not copies: tables come while a file is read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from headrace.schemas.tables import Catalogue, FieldType


class DeclaredTypes(Mapping[str, Mapping[str, FieldType]]):
    """The fields of every table of a database as the cluster knows them now."""

    def __init__(self, catalogue: Catalogue, database: str) -> None:
        self._catalogue = catalogue
        self._database = database

    def __getitem__(self, table: str) -> Mapping[str, FieldType]:
        if (self._database, table) not in self._catalogue.tables:
            raise KeyError(table)
        return self._catalogue.newest(self._database, table).field_types()

    def __iter__(self) -> Iterator[str]:
        return (table for database, table in list(self._catalogue.tables) if database == self._database)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class DeclaredTags(Mapping[str, Collection[str]]):
    """The tags of every table of a database as the cluster knows them now."""

    def __init__(self, catalogue: Catalogue, database: str) -> None:
        self._types = DeclaredTypes(catalogue, database)
        self._catalogue = catalogue
        self._database = database

    def __getitem__(self, table: str) -> Collection[str]:
        if table not in self._types:
            raise KeyError(table)
        return self._catalogue.newest(self._database, table).tags

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)
