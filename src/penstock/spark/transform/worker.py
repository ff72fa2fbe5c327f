"""Entries in Arrow batches through the steps that look at documents alone, in Spark's workers.

Between two things that Spark computes lies one pass of `Pass.run`: it takes what Spark said of each
document, does the steps up to the next such thing, and says what Spark needs for it. Two columns of
the stage's own go along: VERDICT, null unless the change is refused, and UNMET, the expectations
that it did not meet and that only count.

A change that is refused is from there on an update of which nothing is known but that it happened,
in its place and with its key: destinations take such changes anyhow, as of rows whose state is not
known until a whole document comes.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql.types import StructType

from penstock.errors import PipelineError
from penstock.event import Kind
from penstock.spark.documents import MisfitError, converter_of
from penstock.spark.table.arrow import arrow
from penstock.spark.transform.keys import Taken, of_key
from penstock.spark.transform.paths import RefusedError, named
from penstock.spark.transform.steps import Changed, Step, apply_step
from penstock.spark.transform.values import encoder_of
from penstock.updates import may_name_dots
from penstock.wire.shown import Mask, description_shown, origin_shown

VERDICT: Final = "_penstock_verdict"
UNMET: Final = "_penstock_unmet"

READ_COLUMNS: Final = (
    "sequence",
    "kind",
    "operation_type",
    "source",
    "database",
    "collection",
    "key",
    "full_document",
    "update_description",
    "unchanged",
    "disambiguated_paths",
)
"""What the stage reads of an entry."""

_OPTIONAL: Final = ("full_document_before_change", "origin")
"""What else it changes, where it is asked for."""

_UNTOLD: Final = Mask(statements=False, definitions=False)
"""Where fields are hidden, no text of a statement is told: it has their values."""

_encode = msgspec.json.Encoder().encode


class Verdict(Struct, frozen=True, kw_only=True):
    """Why a change is refused."""

    reason: str
    step: str
    expectation: str | None = None
    stops: bool = False
    captured: bool = True
    """Nothing of the document is hidden, so that it may be told as it was captured. Otherwise the
    texts are what may be told."""
    full_document: str | None = None
    update_description: str | None = None


class Applied(Struct, frozen=True, kw_only=True):
    """A step of one collection or all, with its name for people."""

    step: Step
    name: str
    collections: frozenset[str]
    hides: bool
    taken: Taken = Taken()
    """Fields that it hides, leaves out or renames, so that none of them may be in the key."""
    kept: tuple[str, ...] | None = None
    """The fields that it keeps, where it leaves out all others; then the key's must be in it."""


class Ask(Struct, frozen=True, kw_only=True):
    """What Spark computes of a document: its column holds the document, then the answer."""

    column: str
    name: str
    collections: frozenset[str]
    schema: StructType
    kind: str
    """filter, expect, sql or function."""
    action: str = ""
    """Of an expectation."""
    hides: bool = False


class Pass(Struct, frozen=True, kw_only=True):
    """What happens between two things that Spark computes."""

    answered: tuple[Ask, ...]
    steps: tuple[Applied, ...]
    asks: tuple[Ask, ...]
    hiding: tuple[tuple[frozenset[str], bool], ...]
    """By step that hides, anywhere: its collections, and whether it is done before this pass."""
    schema: pa.Schema
    """Of the batches that come out."""
    pipeline: str
    transforms: bool
    keyed: bool = False
    """The target finds rows by the fields of their documents that are in the key."""
    poison: Mapping[int, str] = {}
    """By sequence: why a change is refused before anything is done to it."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raises PipelineError for what is wrong with a step, and not with a change."""
        runner = _Runner(self)
        for batch in batches:
            yield runner.batch(batch)


class _Runner:
    def __init__(self, work: Pass) -> None:
        self._work = work
        self._converters = {ask.column: converter_of(ask.schema) for ask in work.asks}
        self._asked = {
            ask.column: frozenset(field.name for field in ask.schema) for ask in work.asks
        }

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = set(batch.schema.names)
        told = [name for name in (*READ_COLUMNS, *_OPTIONAL, VERDICT, UNMET) if name in names]
        columns: dict[str, list[Any]] = {name: batch[name].to_pylist() for name in told}
        answers = {ask.column: _answers(ask, batch[ask.column]) for ask in self._work.answered}
        for ask in self._work.asks:
            columns[ask.column] = [None] * batch.num_rows
        for row in range(batch.num_rows):
            if columns["sequence"][row] is None:
                raise PipelineError(
                    f"pipeline {self._work.pipeline}: {self._work.answered[0].name} gives a "
                    f"document for a sequence that it was not given. Nothing of the batch was "
                    f"written. A document keeps the sequence of its change."
                )
            if self._work.hiding and not self._work.answered:
                _hide_statements(columns, row)
            if columns["kind"][row] == Kind.DATA and columns[VERDICT][row] is None:
                _Row(self, columns, row).run({name: said[row] for name, said in answers.items()})
        arrays = [
            arrow.array(columns[field.name], field.type)
            if field.name in columns and field.name not in {"sequence", "kind", "key"}
            else batch[field.name]
            for field in self._work.schema
        ]
        return arrow.RecordBatch.from_arrays(arrays, schema=self._work.schema)

    @property
    def work(self) -> Pass:
        return self._work

    def asked(self, ask: Ask) -> frozenset[str]:
        """The fields that `ask` reads."""
        return self._asked[ask.column]

    def converted(self, ask: Ask, document: dict[str, Any]) -> Any:
        """The document as `ask` reads it. Raises MisfitError."""
        return self._converters[ask.column](document)


def _answers(ask: Ask, column: Any) -> list[Any]:
    if ask.kind in {"sql", "function"}:
        encode = encoder_of(column.type)
        return [None if one is None else encode(one) for one in column.to_pylist()]
    answers: list[Any] = column.to_pylist()
    return answers


class _Row:
    """One change on its way."""

    def __init__(self, runner: _Runner, columns: dict[str, list[Any]], row: int) -> None:
        self._runner = runner
        self._work = runner.work
        self._columns = columns
        self._at = row
        self._collection: str = columns["collection"][row]
        self._hidden = [
            done for collections, done in self._work.hiding if self._concerns(collections)
        ]
        """Of the steps that hide something of it: whether each is done."""
        self._deleted = columns["operation_type"][row] == "delete"
        self._changed = Changed(
            document=_decoded(columns["full_document"][row]),
            before=_decoded(columns.get("full_document_before_change", {row: None})[row]),
            update=_decoded(columns["update_description"][row]),
            unchanged=columns["unchanged"][row] or [],
        )

    def run(self, answers: Mapping[str, Any]) -> None:
        work = self._work
        sequence = self._columns["sequence"][self._at]
        name = "transform"
        try:
            if sequence in work.poison:
                raise RefusedError(work.poison[sequence])
            for ask in work.answered:
                name = ask.name
                if self._concerns(ask.collections):
                    self._answer(ask, answers[ask.column])
            for step in work.steps:
                name = step.name
                if self._concerns(step.collections):
                    self._step(step)
            for ask in work.asks:
                name = ask.name
                if self._concerns(ask.collections) and not self._deleted:
                    self._told(ask)
            if work.keyed:
                self._require_key()
        except RefusedError as error:
            self._refuse(Verdict(reason=str(error), step=name))
        except MisfitError as misfit:
            path = ".".join(misfit.path)
            self._refuse(Verdict(reason=f"the field {path}: {misfit.reason}", step=name))
        except _UnmetError as unmet:
            self._refuse(
                Verdict(
                    reason=f"it does not meet the expectation {unmet.ask.name}",
                    step=unmet.ask.name,
                    expectation=unmet.ask.name,
                    stops=unmet.ask.action == "stop",
                )
            )
        else:
            self._write()

    def _concerns(self, collections: frozenset[str]) -> bool:
        return not collections or self._collection in collections

    # --- steps ----------------------------------------------------------------------------------

    def _step(self, applied: Applied) -> None:
        key = self._columns["key"][self._at]
        for field in _key_taken(applied, key):
            raise PipelineError(
                f"pipeline {self._work.pipeline}: {applied.name} changes or leaves out {field}, "
                f"which is part of the key of {self._collection}, and the key tells rows apart at "
                f"every destination. Nothing of the batch was written. Have the step leave the "
                f"field as it is, or the collection out of the pipeline."
            )
        changed = self._changed
        paths = _decoded(self._columns["disambiguated_paths"][self._at])
        if changed.update is not None and may_name_dots(named(changed.update), paths):
            # A path of it may not be what it reads like.
            if changed.document is None:
                raise RefusedError("the update may name a field whose own name holds a dot")
            changed.update = None
        apply_step(applied.step, changed)
        self._done(hides=applied.hides)

    def _require_key(self) -> None:
        """Raise RefusedError if the document says another key than the change."""
        changed, key = self._changed, self._columns["key"][self._at]
        said = {**((changed.update or {}).get("updatedFields") or {}), **(changed.document or {})}
        for name, value in (_decoded(key) or {}).items():
            if name in said and said[name] != value:
                raise RefusedError(f"the steps change {name}, which is part of the key")

    def _done(self, *, hides: bool) -> None:
        if hides:
            self._hidden[self._hidden.index(False)] = True

    def _told(self, ask: Ask) -> None:
        """Ask; what cannot be told to an expectation that only counts is not met, and no more."""
        try:
            self._ask(ask)
        except (RefusedError, MisfitError):
            if ask.action != "warn":
                raise

    def _ask(self, ask: Ask) -> None:
        changed = self._changed
        if changed.document is None:
            raise RefusedError("the source sent what changed, not the document that this needs")
        missing = self._runner.asked(ask).intersection(changed.unchanged)
        if ask.kind in {"sql", "function"}:
            missing = frozenset(changed.unchanged)
        if missing:
            raise RefusedError(f"the source did not send {', '.join(sorted(missing))} again")
        values = self._runner.converted(ask, changed.document)
        self._columns[ask.column][self._at] = values

    # --- answers --------------------------------------------------------------------------------

    def _answer(self, ask: Ask, answer: Any) -> None:
        if ask.kind == "expect":
            if not self._deleted and answer is not True:
                self._unmet(ask)
            return
        # What the image before came to there is not known.
        self._changed.before = None
        if self._deleted:
            self._done(hides=ask.hides)
            return
        if ask.kind == "filter":
            if answer is not True:
                self._delete()
            return
        self._changed.update = None
        if answer is None:
            self._delete()
        else:
            self._changed.document = answer
        self._done(hides=ask.hides)

    def _unmet(self, ask: Ask) -> None:
        if ask.action != "warn":
            raise _UnmetError(ask)
        unmet: list[str] = self._columns[UNMET][self._at] or []
        self._columns[UNMET][self._at] = [*unmet, ask.name]

    def _delete(self) -> None:
        """The row is not, or no longer, what the destination is to have."""
        self._deleted = True
        self._columns["operation_type"][self._at] = "delete"
        self._changed = Changed()

    # --- outcome --------------------------------------------------------------------------------

    def _write(self) -> None:
        changed = self._changed
        self._set("full_document", _text(changed.document))
        self._set("full_document_before_change", _text(changed.before))
        self._set("update_description", _text(changed.update))
        self._set("unchanged", changed.unchanged)
        if changed.update is None:
            self._set("disambiguated_paths", None)

    def _set(self, column: str, value: Any) -> None:
        if column in self._columns:
            self._columns[column][self._at] = value

    def _refuse(self, verdict: Verdict) -> None:
        if self._deleted:
            # What is gone is gone, whatever fails: only its image before is not told.
            self._changed = Changed()
            self._write()
            return
        if self._hidden:
            # Where everything that hides is done, what is left may be told; else nothing may.
            seen = self._changed if all(self._hidden) else Changed()
            verdict = msgspec.structs.replace(
                verdict,
                captured=False,
                full_document=_text(seen.document),
                update_description=_text(seen.update),
            )
        self._columns[VERDICT][self._at] = _encode(verdict).decode()
        self._columns["operation_type"][self._at] = "update"
        self._changed = Changed()
        self._write()


class _UnmetError(Exception):
    """An expectation that does more than count was not met."""

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self.ask = ask


def _decoded(text: str | None) -> dict[str, Any] | None:
    return None if text is None else msgspec.json.decode(text, type=dict[str, Any])


def _text(document: dict[str, Any] | None) -> str | None:
    return None if document is None else _encode(document).decode()


def _key_taken(applied: Applied, key: str | None) -> Iterator[str]:
    if key is None or (applied.taken == Taken() and applied.kept is None):
        return iter(())
    return of_key(applied.taken, applied.kept, msgspec.json.decode(key, type=dict[str, Any]))


def _hide_statements(columns: dict[str, list[Any]], row: int) -> None:
    kind = columns["kind"][row]
    origin = columns.get("origin")
    if origin is not None and origin[row]:
        origin[row] = origin_shown(origin[row].encode(), _UNTOLD).decode()
    said = columns["full_document"][row]
    if kind != Kind.DATA and said:
        of_shape = kind == Kind.SCHEMA
        left = description_shown(said.encode(), _UNTOLD, of_shape=of_shape)
        columns["full_document"][row] = left.decode()
