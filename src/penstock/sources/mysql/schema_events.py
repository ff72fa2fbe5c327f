"""What statements do to captured tables, as events. Pure."""

from collections.abc import Sequence
from functools import partial

from penstock.event import AnyEvent
from penstock.mysql_sql.tokens import tokens
from penstock.sources.mysql import statements
from penstock.sources.mysql.binlog import Query
from penstock.sources.mysql.definitions import defined
from penstock.sources.mysql.events import Place, Teller
from penstock.sources.mysql.happened import happened
from penstock.sources.mysql.origins import OriginRules
from penstock.sources.mysql.row_statements import Written, written
from penstock.sources.mysql.scope import Scope
from penstock.sources.mysql.shapes import Shapes
from penstock.sources.mysql.statement_texts import UNREADABLE, StatementTexts
from penstock.sources.mysql.statements import Effect, RowsAsStatement, Said
from penstock.sources.mysql.unlogged_rows import UnloggedRows


class StatementTeller:
    """Makes the events of one source's statements."""

    def __init__(
        self,
        teller: Teller,
        origins: OriginRules,
        scope: Scope,
        *,
        texts: StatementTexts,
        lowers: bool,
        misses_cascades: bool,
        unlogged: UnloggedRows,
    ) -> None:
        """`lowers` is as of `effects`.

        `misses_cascades`: what foreign keys do to rows is not logged, and must be known of.
        `unlogged` decides about statements that change rows.
        """
        self._teller = teller
        self._origins = origins
        self._scope = scope
        self._texts = texts
        self._lowers = lowers
        self._misses_cascades = misses_cascades
        self._unlogged = unlogged

    def statement(
        self, said: Query, place: Place, shapes: Shapes
    ) -> tuple[list[AnyEvent], list[Effect]]:
        """The events of a statement, and what it did to tables, which `shapes` follows.

        Raises MalformedEventError for one that changes rows, unless that can be gone past.
        """
        text, known = self._texts.of(said)
        place.origin.stated(lambda: text)
        events: list[AnyEvent] = []
        done: list[Effect] = []
        database, lowers, modes = said.database, self._lowers, said.modes
        read = statements.effects(text, database=database, lowers=lowers, sql_mode=modes)
        changes = partial(written, text, database=database, lowers=lowers, sql_mode=modes)

        def did(one: Said) -> Sequence[Effect]:
            if isinstance(one, RowsAsStatement):
                return self._unlogged.done(one.verb, changes() if known else Written(), text)
            return happened(one, shapes, changed=said.changed)

        # Each by what is known behind the one before it.
        effects = (effect for one in read for effect in did(one))
        after = defined(
            text, database=database, known=shapes.virtual, lowers=lowers, sql_mode=modes
        )
        if after is not None and _has_unreadable_names(text, modes):
            after = after[0], None
        for effect in map(self._missed, effects):
            if effect is None:
                continue
            named = known and UNREADABLE not in repr(effect)
            if known and not named and self._is_elsewhere(effect):
                continue
            done.append(effect if named else statements.Unclear())
            events += self._told(done[-1], text, place, session=database, modes=modes)
            shapes.alter(done[-1], dict([after] if after and named else []))
            if isinstance(effect, statements.Renamed) and effect.table not in self._scope:
                shapes.unkeyed(effect.to)
            if not named:
                break
        place.origin.ends()
        return events, done

    def _is_elsewhere(self, effect: Effect) -> bool:
        """Whether it is about tables that are not captured, whatever their names are."""
        match effect:
            case statements.Renamed(table, to):
                databases = {table[0], to[0]}
            case statements.DatabaseDropped(database):
                databases = {database}
            case statements.Unclear():
                return False
            case _:
                databases = {effect.table[0]}
        return not any(UNREADABLE in one or self._scope.reaches(one) for one in databases)

    def _missed(self, effect: Effect) -> Effect | None:
        """An effect as what it does to what is captured; None: nothing.

        What a foreign key changes from here on is missed even where it is gone again before capture
        asks for it, be it that capture was behind or that it halted.
        """
        if not isinstance(effect, statements.Cascading):
            return effect
        if not self._misses_cascades:
            return None
        return statements.RowsChanged(effect.table, "FOREIGN KEY")

    def _told(
        self, effect: Effect, text: str, place: Place, *, session: str, modes: str
    ) -> Sequence[AnyEvent]:
        """The events of one effect of a statement, whose text this is, and in which a name without
        its database is in that of its `session`. `modes` are those that say what it means."""
        scope, facts = self._scope, self._facts(text)
        if isinstance(effect, statements.Unclear):
            return [self._gap(("", ""), "unclear_statement", facts, place)]
        if isinstance(effect, statements.DatabaseDropped):
            if not scope.reaches(effect.database):
                return ()
            return [self._teller.schema("dropDatabase", (effect.database, ""), place, facts)]
        if isinstance(effect, statements.Renamed):
            return self._renamed(effect, facts, place)
        if isinstance(effect, statements.Cascading) or effect.table not in scope:
            return ()
        if isinstance(effect, statements.RowsChanged):
            return [self._gap(effect.table, "unlogged_rows", {**facts, "how": effect.how}, place)]
        words = {
            statements.Created: ("create",),
            statements.Dropped: ("drop",),
            statements.Emptied: ("drop", "create"),
            statements.Altered: ("modify",),
        }[type(effect)]
        if isinstance(effect, statements.Emptied):
            facts["truncated"] = "true"
        if facts and session and session != effect.table[0]:
            facts["sessionDatabase"] = session
        if facts and (modes or "||" in text):
            # What || is, hangs on it: where there is one, no mode is said as such.
            facts["sqlMode"] = modes
        return [self._teller.schema(word, effect.table, place, facts) for word in words]

    def _renamed(
        self, effect: statements.Renamed, facts: dict[str, str], place: Place
    ) -> Sequence[AnyEvent]:
        scope = self._scope
        database, name = effect.to
        if effect.table in scope:
            return [
                self._teller.schema(
                    "rename",
                    effect.table,
                    place,
                    {
                        **facts,
                        "to": {"db": database, "coll": name},
                        "targetCaptured": effect.to in scope,
                    },
                )
            ]
        if effect.to in scope:
            # Its rows were never told.
            dropped = self._teller.schema("drop", effect.to, place, facts)
            return [dropped, self._gap(effect.to, "renamed_into_scope", facts, place)]
        return ()

    def prepared_before(self, text: str, place: Place) -> AnyEvent:
        """What is told of an XA COMMIT, whose text this is, of rows from before the beginning."""
        return self._gap(("", ""), "xa_prepared_before", self._facts(text), place)

    def _facts(self, text: str) -> dict[str, str]:
        """What is told of a statement with what it did."""
        shown = self._origins.shown(text)
        return {} if shown is None else {"statement": shown}

    def _gap(
        self, table: tuple[str, str], reason: str, facts: dict[str, str], place: Place
    ) -> AnyEvent:
        """Changes of a table, or of any, that are not told."""
        position, ordinal = place.next()
        return self._teller.system(
            "gap",
            f"{reason}:{place.gtid}:{ordinal}",
            position=position,
            seconds=place.seconds,
            facts={"from": place.gtid, "to": place.gtid, "reason": reason, **facts},
            table=table,
            origin=place.origin.of(ordinal),
        )


def _has_unreadable_names(text: str, sql_mode: str) -> bool:
    """Whether a statement names something, as a column, that cannot be told from others."""
    return UNREADABLE in text and any(
        one.is_name and UNREADABLE in one.text for one in tokens(text, sql_mode)
    )
