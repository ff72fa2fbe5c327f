"""What was announced of tables, and what each change of them is as events. Pure.

Names are those of the protocol's messages; a table is `schema.table`.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from penstock.event import AnyEvent, Operation
from penstock.sources.zero.events import Place, Row, Teller
from penstock.sources.zero.positions import Tables, tables_text
from penstock.sources.zero.scope import Scope
from penstock.sources.zero.values import decoder, is_json
from penstock.zero import messages as said

_NULL: Final = b"null"
TABLES_BYTES_MAX: Final = 1 << 20
"""Of what is announced, which every position has."""


class UnfitError(ValueError):
    """A change that was not announced so, or cannot be told exactly; the message says what."""


class Announced:
    """The tables of one server, as they are behind what was said so far."""

    def __init__(
        self, tables: Tables, *, teller: Teller, scope: Scope, json_as_text: bool = False
    ) -> None:
        self._tables = {name: dict(columns) for name, columns in tables.items()}
        self._teller = teller
        self._scope = scope
        self._text: Raw | None = None
        self.json_as_text = json_as_text
        """How the transaction that is being read says json."""

    def text(self) -> Raw:
        """As a position keeps them. Raises UnfitError where that is too much."""
        if self._text is None:
            self._text = tables_text(self._tables)
            if len(bytes(self._text)) > TABLES_BYTES_MAX:
                raise UnfitError(f"tables whose columns take more than {TABLES_BYTES_MAX} bytes")
        return self._text

    @property
    def there(self) -> list[str]:
        """All tables, captured or not."""
        return list(self._tables)

    @property
    def captured(self) -> list[str]:
        """The tables that are captured."""
        return [name for name in self._tables if name in self._scope]

    def events(self, change: said.Change, place: Place, *, copy: bool) -> list[AnyEvent]:
        """What a change is, and from here on its effect on the tables counts; `copy`: it is part of
        what was there before. Raises UnfitError."""
        try:
            match change:
                case said.Insert() | said.Update() | said.Delete():
                    return self._of_row(change, place)
                case said.Truncate(relations):
                    names = [f"{one.schema}.{one.name}" for one in relations]
                    return [event for name in names for event in self._truncated(name, place)]
                case said.Backfill() | said.BackfillCompleted():
                    raise UnfitError("a backfill, which servers other than PostgreSQL's never send")
                case _:
                    return self._of_table(change, place, copy=copy)
        except ValueError as error:
            raise UnfitError(str(error)) from None

    # --- rows ------------------------------------------------------------------------------------

    def _of_row(
        self, change: said.Insert | said.Update | said.Delete, place: Place
    ) -> list[AnyEvent]:
        relation = change.relation
        table = f"{relation.schema}.{relation.name}"
        if table not in self._scope:
            return []
        columns = self._tables.get(table)
        if columns is None:
            raise UnfitError(f"a row of {table}, a table that was not announced")
        names = relation.key
        if isinstance(change, said.Delete):
            return [self._teller.gone(table, self._key(table, names, change.key), place)]
        sent = self._cells(table, change.new)
        missing = [name for name in columns if name not in sent]
        if any(name in missing for name in names):
            raise UnfitError(f"a row of {table} without all of its key")
        if isinstance(change, said.Insert):
            row = Row({**sent, **dict.fromkeys(missing, _NULL)})
            return [self._teller.row(Operation.INSERT, table, names, row, place)]
        if not names:
            raise UnfitError(f"an update of {table}, whose rows have no key")
        events: list[AnyEvent] = []
        if change.key is not None:
            old = self._key(table, names, change.key)
            if any(old[name] != sent[name] for name in names):
                if missing:
                    raise UnfitError(f"an update of {table} that moves a row without all of it")
                events.append(self._teller.gone(table, old, place))
                moved = Row(sent)
                return [*events, self._teller.row(Operation.INSERT, table, names, moved, place)]
        how = Operation.UPDATE if missing else Operation.REPLACE
        return [self._teller.row(how, table, names, Row(sent, tuple(missing)), place)]

    def _key(
        self, table: str, names: tuple[str, ...], values: Mapping[str, Raw]
    ) -> dict[str, bytes]:
        if not names or any(name not in values for name in names):
            raise UnfitError(f"a change of {table} without the key of its row")
        return self._cells(table, {name: values[name] for name in names})

    def _cells(self, table: str, values: Mapping[str, Raw]) -> dict[str, bytes]:
        columns, cells = self._tables.get(table, {}), dict[str, bytes]()
        for name, raw in values.items():
            spec = columns.get(name)
            if spec is None:
                raise UnfitError(f"a row of {table} with {name!r}, which was not announced")
            value = bytes(raw)
            try:
                decode = decoder(spec, json_as_text=self.json_as_text)
                cells[name] = value if value == _NULL else decode(value)
            except ValueError as error:
                raise UnfitError(f"{table}.{name} ({spec.data_type}): {error}") from None
        return cells

    # --- tables ----------------------------------------------------------------------------------

    def _truncated(self, table: str, place: Place) -> list[AnyEvent]:
        if table not in self._scope:
            return []
        facts = {"truncated": "true"}
        return [self._teller.schema(word, table, place, facts) for word in ("drop", "create")]

    def _of_table(self, change: said.Change, place: Place, *, copy: bool) -> list[AnyEvent]:
        table, word, facts = self._announce(change, copy=copy)
        if table not in self._scope and not (
            isinstance(change, said.RenameTable) and _name(change.new) in self._scope
        ):
            return []
        if isinstance(change, said.RenameTable):
            return self._renamed(table, change.new, place)
        what = {"change": change, **facts}
        return [self._teller.schema(word, table, place, what)]

    def _announce(self, change: said.Change, *, copy: bool) -> tuple[str, str, dict[str, object]]:
        """The table of a change, its word in an event, and what is said with it."""
        self._text = None
        word, table, tables = "modify", "", self._tables
        match change:
            case said.CreateTable(spec):
                table, word = f"{spec.schema}.{spec.name}", "modify" if copy else "create"
                tables[table] = dict(spec.columns)
            case said.DropTable(ident):
                table, word = _name(ident), "drop"
                tables.pop(table, None)
            case said.RenameTable(old, new):
                table = _name(old)
                tables[_name(new)] = self._known(table)
                del tables[table]
            case said.AddColumn():
                table = _name(change.table)
                self._known(table)[change.column.name] = change.column.spec
            case said.UpdateColumn():
                table = _name(change.table)
                columns = self._known(table)
                renamed = {change.old.name: change.new.name}
                tables[table] = {renamed.get(name, name): spec for name, spec in columns.items()}
                tables[table][change.new.name] = change.new.spec
            case said.DropColumn():
                table = _name(change.table)
                self._known(table).pop(change.column, None)
            case said.UpdateTableMetadata():
                table = _name(change.table)
            case said.CreateIndex(spec):
                table, word = f"{spec.schema}.{spec.table_name}", "createIndexes"
            case said.DropIndex(ident):
                # It does not say of which table.
                table, word = f"{ident.schema}.", "dropIndexes"
            case _:
                raise UnfitError("a change that no table has")
        if word == "createIndexes" and copy:
            word = "modify"
        types = {name: one.data_type for name, one in tables.get(table, {}).items()}
        if not types:
            return table, word, {}
        varying = {name: "json" for name, one in types.items() if is_json(one)}
        return table, word, {"columns": types, **({"varying": varying} if varying else {})}

    def _known(self, table: str) -> dict[str, said.ColumnSpec]:
        columns = self._tables.get(table)
        if columns is None:
            raise UnfitError(f"a change of {table}, a table that was not announced")
        return columns

    def _renamed(self, table: str, new: said.TableId, place: Place) -> list[AnyEvent]:
        target = _name(new)
        if table not in self._scope:
            # Its rows were never told.
            raise UnfitError(
                f"{table}, which is not captured, renamed to {target}, which is: its rows are not "
                f"known"
            )
        facts = {
            "to": {"db": new.schema, "coll": new.name},
            "targetCaptured": target in self._scope,
        }
        return [self._teller.schema("rename", table, place, facts)]


def _name(table: said.TableId) -> str:
    return f"{table.schema}.{table.name}"
