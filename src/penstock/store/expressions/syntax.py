"""Tokens and syntax trees of DynamoDB's expressions, before #names and :values mean anything.

Grammar: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/
Expressions.OperatorsAndFunctions.html and Expressions.UpdateExpressions.html. Nesting costs no
stack: what is in parentheses is kept in frames, however deeply a program that writes expressions
nests them.
"""

import re
from typing import Final, NamedTuple, NoReturn, TypeAlias

from msgspec import Struct

from penstock.store.conditions import Comparator
from penstock.store.errors import InvalidConditionError

BYTES_MAX: Final = 4096
OPERATORS_MAX: Final = 300
CALLS_NESTED_MAX: Final = 32

_KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "BETWEEN", "IN", "SET", "REMOVE", "ADD", "DELETE"}
)
_COMPARATORS: Final = frozenset(Comparator)
_TOKEN: Final = re.compile(
    r"[ \t\r\n]*(?:(?P<word>[A-Za-z][A-Za-z0-9_]*)|(?P<name>#[A-Za-z0-9_]+)"
    r"|(?P<value>:[A-Za-z0-9_]+)|(?P<index>0|[1-9][0-9]*)|(?P<sign><>|<=|>=|[-=<>()\[\],.+])"
    r"|(?P<bad>.))",
    re.DOTALL,
)
_END: Final = "<EOF>"


class Token(NamedTuple):
    """A piece of an expression."""

    kind: str
    """word, name (#name), value (:value), index, or what the token itself says."""
    text: str
    start: int
    end: int


class PathNode(Struct, frozen=True):
    """A document path: of each part whether it is a word, a #name or an index, and its text."""

    parts: tuple[tuple[str, str], ...]


class ValueNode(Struct, frozen=True):
    """A :value."""

    name: str


class CallNode(Struct, frozen=True):
    """A function with its operands."""

    name: str
    operands: "tuple[OperandNode, ...]"


OperandNode: TypeAlias = PathNode | ValueNode | CallNode


class CompareNode(Struct, frozen=True):
    """An operand, a comparator, an operand."""

    comparator: Comparator
    left: OperandNode
    right: OperandNode


class BetweenNode(Struct, frozen=True):
    """An operand between two."""

    operand: OperandNode
    low: OperandNode
    high: OperandNode


class InNode(Struct, frozen=True):
    """An operand in a list of operands."""

    operand: OperandNode
    choices: tuple[OperandNode, ...]


class LogicNode(Struct, frozen=True):
    """Conditions that all hold (AND), or one of which does (OR)."""

    word: str
    conditions: "tuple[ConditionNode, ...]"


class NotNode(Struct, frozen=True):
    """A condition that does not hold."""

    condition: "ConditionNode"


ConditionNode: TypeAlias = CompareNode | BetweenNode | InNode | CallNode | LogicNode | NotNode


class ArithmeticNode(Struct, frozen=True):
    """An operand plus or minus another."""

    sign: str
    left: OperandNode
    right: OperandNode


class ActionNode(Struct, frozen=True):
    """A path, and for all but REMOVE a value."""

    path: PathNode
    value: "OperandNode | ArithmeticNode | None"


class SectionNode(Struct, frozen=True):
    """SET, REMOVE, ADD or DELETE, with its actions."""

    word: str
    actions: tuple[ActionNode, ...]


def parse_condition(text: str) -> ConditionNode:
    """The tree of a condition. Raises InvalidConditionError, with DynamoDB's text, as all do."""
    return _Parser(text).condition()


def parse_update(text: str) -> tuple[SectionNode, ...]:
    """The sections of an update, as they are written."""
    return _Parser(text).update()


def parse_projection(text: str) -> tuple[PathNode, ...]:
    """The paths of a projection."""
    return _Parser(text).projection()


def _tokens(text: str) -> list[Token]:
    tokens, at, end = list[Token](), 0, len(text.rstrip(" \t\r\n"))
    while at < end:
        match = _TOKEN.match(text, at)
        assert match is not None
        kind = match.lastgroup or "bad"
        word, at = match.group(kind), match.end()
        if kind == "word" and word.upper() in _KEYWORDS:
            kind = word.upper()
        elif kind == "sign":
            kind = word
        tokens.append(Token(kind, word, at - len(word), at))
    return [*tokens, Token(_END, _END, len(text), len(text))]


class _Frame:
    """What stands between two parentheses, or in the whole of a condition, as far as it is read."""

    def __init__(self) -> None:
        self.alternatives: list[ConditionNode] = []
        """What is complete before an OR."""
        self.conditions: list[ConditionNode] = []
        """What is complete since, with AND between."""
        self.negations = 0
        """The NOTs before what comes next."""
        self.pure = True
        """Nothing but one parenthesis has been read."""

    def add(self, condition: ConditionNode) -> None:
        for _ in range(self.negations):
            condition = NotNode(condition)
        self.negations = 0
        self.conditions.append(condition)

    def alternative(self) -> None:
        self.alternatives.append(_joined("AND", self.conditions))
        self.conditions = []

    def whole(self) -> ConditionNode:
        self.alternative()
        return _joined("OR", self.alternatives)


def _joined(word: str, conditions: list[ConditionNode]) -> ConditionNode:
    """One node of all: programs write ((a AND b) AND c) AND d."""
    if len(conditions) == 1:
        return conditions[0]
    flat = list[ConditionNode]()
    for condition in conditions:
        if isinstance(condition, LogicNode) and condition.word == word:
            flat += condition.conditions
        else:
            flat.append(condition)
    return LogicNode(word, tuple(flat))


class _Parser:
    def __init__(self, text: str) -> None:
        if not text:
            raise InvalidConditionError("The expression can not be empty;")
        size = len(text.encode(errors="surrogatepass"))
        if size > BYTES_MAX:
            raise InvalidConditionError(
                f"Expression size has exceeded the maximum allowed size; expression size: {size}"
            )
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0
        self._operators = 0

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _is(self, *kinds: str) -> bool:
        return self._next.kind in kinds

    def _take(self) -> Token:
        token = self._next
        self._at += 1
        return token

    def _expect(self, kind: str) -> Token:
        if not self._is(kind):
            self._fail()
        return self._take()

    def _fail(self) -> NoReturn:
        first = self._tokens[max(self._at - 1, 0)].start
        last = self._tokens[min(self._at + 1, len(self._tokens) - 1)].end
        raise InvalidConditionError(
            f'Syntax error; token: "{self._next.text}", near: "{self._text[first:last]}"'
        )

    def _operator(self) -> Token:
        self._operators += 1
        return self._take()

    def _finish(self) -> None:
        if not self._is(_END):
            self._fail()
        if self._operators > OPERATORS_MAX:
            raise InvalidConditionError(
                f"The expression contains too many operators; operator count: {self._operators}"
            )

    # --- conditions ------------------------------------------------------------------------------

    def condition(self) -> ConditionNode:
        frames = [_Frame()]
        while True:
            operand = self._first_operand(frames)
            frames[-1].pure = False
            frames[-1].add(self._comparison(operand))
            while self._is(")") and len(frames) > 1:
                self._take()
                inner = frames.pop()
                if inner.pure:
                    _refuse_redundant()
                outer = frames[-1]
                outer.pure = not (outer.negations or outer.conditions or outer.alternatives)
                outer.add(inner.whole())
            if self._is("AND", "OR"):
                frames[-1].pure = False
                if self._operator().kind == "OR":
                    frames[-1].alternative()
            elif len(frames) == 1:
                self._finish()
                return frames[0].whole()
            else:
                self._fail()

    def _first_operand(self, frames: list[_Frame]) -> OperandNode:
        """What a comparison begins with, out of the parentheses that hold nothing else."""
        while self._is("NOT", "("):
            if self._take().kind == "NOT":
                self._operators += 1
                frames[-1].negations += 1
            else:
                frames.append(_Frame())
        operand = self._operand()
        closed = 0
        while self._is(")") and len(frames) > 1 and _untouched(frames[-1]):
            self._take()
            frames.pop()
            closed += 1
            if closed > 1:
                _refuse_redundant()
        return operand

    def _comparison(self, operand: OperandNode) -> ConditionNode:
        if self._next.kind in _COMPARATORS:
            comparator = Comparator(self._operator().text)
            return CompareNode(comparator, operand, self._operand())
        if self._is("BETWEEN"):
            self._operator()
            low = self._operand()
            self._expect("AND")
            return BetweenNode(operand, low, self._operand())
        if self._is("IN"):
            self._operator()
            self._expect("(")
            choices = self._listed()
            self._expect(")")
            return InNode(operand, choices)
        if not isinstance(operand, CallNode):
            self._fail()
        return operand

    # --- operands --------------------------------------------------------------------------------

    def _listed(self, nested: int = 0) -> tuple[OperandNode, ...]:
        operands = [self._operand(nested)]
        while self._is(","):
            self._take()
            operands.append(self._operand(nested))
        return tuple(operands)

    def _operand(self, nested: int = 0) -> OperandNode:
        opened = self._opened()
        operand = self._bare_operand(nested)
        self._closed(opened)
        return operand

    def _opened(self) -> int:
        opened = 0
        while self._is("("):
            self._take()
            opened += 1
        return opened

    def _closed(self, opened: int) -> None:
        for closed in range(opened):
            self._expect(")")
            if closed:
                _refuse_redundant()

    def _bare_operand(self, nested: int) -> OperandNode:
        if self._is("value"):
            return ValueNode(self._take().text)
        if self._is("word") and self._tokens[self._at + 1].kind == "(":
            if nested > CALLS_NESTED_MAX:
                raise InvalidConditionError(
                    f"The expression has more than {CALLS_NESTED_MAX} functions in one another"
                )
            name = self._operator().text
            self._take()
            operands = self._listed(nested + 1)
            self._expect(")")
            return CallNode(name, operands)
        return self._path()

    def _path(self) -> PathNode:
        if not self._is("word", "name"):
            self._fail()
        parts = [self._part()]
        while self._is(".", "["):
            if self._take().kind == ".":
                if not self._is("word", "name"):
                    self._fail()
                parts.append(self._part())
            else:
                parts.append(("index", self._expect("index").text))
                self._expect("]")
        return PathNode(tuple(parts))

    def _part(self) -> tuple[str, str]:
        token = self._take()
        return token.kind, token.text

    # --- updates and projections -----------------------------------------------------------------

    def update(self) -> tuple[SectionNode, ...]:
        sections = list[SectionNode]()
        while not sections or not self._is(_END):
            if not self._is("SET", "REMOVE", "ADD", "DELETE"):
                self._fail()
            word = self._take().kind
            actions = [self._action(word)]
            while self._is(","):
                self._take()
                actions.append(self._action(word))
            sections.append(SectionNode(word, tuple(actions)))
        self._finish()
        return tuple(sections)

    def _action(self, word: str) -> ActionNode:
        path = self._path()
        if word == "REMOVE":
            return ActionNode(path, None)
        if word == "SET":
            self._expect("=")
            return ActionNode(path, self._set_value())
        return ActionNode(path, ValueNode(self._expect("value").text))

    def _set_value(self) -> OperandNode | ArithmeticNode:
        opened = self._opened()
        left = self._bare_operand(0)
        closed = 0
        while closed < opened and self._is(")"):
            self._take()
            closed += 1
            if closed > 1:
                _refuse_redundant()
        if not self._is("+", "-"):
            if closed < opened:
                self._fail()
            return left
        sign = self._operator().text
        right = self._operand()
        self._closed(opened - closed)
        return ArithmeticNode(sign, left, right)

    def projection(self) -> tuple[PathNode, ...]:
        paths = [self._path()]
        while self._is(","):
            self._take()
            paths.append(self._path())
        self._finish()
        return tuple(paths)


def _refuse_redundant() -> NoReturn:
    raise InvalidConditionError("The expression has redundant parentheses;")


def _untouched(frame: _Frame) -> bool:
    return not (frame.negations or frame.conditions or frame.alternatives)
