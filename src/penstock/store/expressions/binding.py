"""DynamoDB's expressions as conditions, updates and projections.

What is wrong is told as DynamoDB tells it: first what an expression says whatever the placeholders
stand for (reserved words, functions and their places), then what they stand for, then whether
operators can take it.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, NoReturn, cast

from penstock.store.conditions import (
    IN_MAX,
    And,
    Attr,
    BeginsWith,
    Between,
    Comparator,
    Comparison,
    Condition,
    Contains,
    Exists,
    In,
    Literal,
    Not,
    NotExists,
    Operand,
    Or,
    Size,
    TypeIs,
)
from penstock.store.errors import InvalidConditionError
from penstock.store.expressions.placeholders import Placeholders
from penstock.store.expressions.syntax import (
    ActionNode,
    ArithmeticNode,
    BetweenNode,
    CallNode,
    CompareNode,
    ConditionNode,
    InNode,
    LogicNode,
    NotNode,
    OperandNode,
    PathNode,
    SectionNode,
    ValueNode,
)
from penstock.store.expressions.syntax import parse_condition as read_condition
from penstock.store.expressions.syntax import parse_projection as read_projection
from penstock.store.expressions.syntax import parse_update as read_update
from penstock.store.expressions.words import is_reserved
from penstock.store.kinds import ORDERED, ValueType, compare, type_of
from penstock.store.paths import INDEX_MAX, Path, parse_path, path_text, refuse_overlaps
from penstock.store.projections import Projection
from penstock.store.updates import (
    Action,
    AddAction,
    DeleteAction,
    IfNotExists,
    ListAppend,
    Minus,
    Plus,
    RemoveAction,
    SetAction,
    SetValue,
    Update,
    refuse_operand,
)
from penstock.store.values import Number, Value, number_text

_CONDITIONS: Final = {
    "attribute_exists": 1,
    "attribute_not_exists": 1,
    "attribute_type": 2,
    "begins_with": 2,
    "contains": 2,
}
_MEASURES: Final = {"size": 1}
_SETTERS: Final = {"if_not_exists": 2, "list_append": 2}
_FUNCTIONS: Final = {**_CONDITIONS, **_MEASURES, **_SETTERS}
_SIZED: Final = frozenset(ValueType) - {ValueType.NUMBER, ValueType.BOOLEAN, ValueType.NULL}
_BEGUN: Final = frozenset({ValueType.STRING, ValueType.BINARY})
# The orders in which DynamoDB lists the types.
_NAMES: Final = "{B,NULL,SS,BOOL,L,BS,N,NS,S,M}"
_ANY: Final = "{NS,SS,L,BS,N,M,B,BOOL,NULL,S}"


def parse_condition(
    text: str, placeholders: Placeholders, *, parameter: str = "ConditionExpression"
) -> Condition:
    """The condition of a ConditionExpression, or of the parameter named.

    Raises InvalidConditionError, with DynamoDB's text, as all of these do.
    """
    with _told(parameter):
        tree = read_condition(text)
        _check_condition(tree)
        return _ConditionBinder(placeholders).condition(tree)


def parse_projection(text: str, placeholders: Placeholders) -> Projection:
    """The paths of a ProjectionExpression."""
    with _told("ProjectionExpression"):
        trees = read_projection(text)
        for tree in trees:
            _check_path(tree)
        paths = tuple(_Binder(placeholders).path(tree) for tree in trees)
        refuse_overlaps(paths)
        return paths


def parse_update(text: str, placeholders: Placeholders) -> Update:
    """The update of an UpdateExpression."""
    with _told("UpdateExpression"):
        sections = read_update(text)
        _check_update(sections)
        return _UpdateBinder(placeholders).update(sections)


@contextmanager
def _told(parameter: str) -> Generator[None]:
    try:
        yield
    except InvalidConditionError as error:
        raise InvalidConditionError(f"Invalid {parameter}: {error}") from None


# --- what an expression says, whatever its placeholders stand for ---------------------------------


def _check_path(path: PathNode) -> None:
    for kind, text in path.parts:
        if kind == "index" and (len(text) > 10 or int(text) > INDEX_MAX):
            raise InvalidConditionError(
                f"List index is not within the allowable range; index: [{text}]"
            )
        if kind == "word" and is_reserved(text):
            raise InvalidConditionError(
                f"Attribute name is a reserved keyword; reserved keyword: {text}"
            )


def _check_condition(node: ConditionNode) -> None:
    match node:
        case LogicNode(_, conditions):
            for condition in conditions:
                _check_condition(condition)
        case NotNode(condition):
            _check_condition(condition)
        case CallNode():
            _check_call(node, _CONDITIONS)
        case CompareNode(_, left, right):
            _check_operands(left, right)
        case BetweenNode(operand, low, high):
            _check_operands(operand, low, high)
        case InNode(operand, choices):
            _check_operands(operand, *choices)


def _check_operands(*operands: OperandNode) -> None:
    for operand in operands:
        if isinstance(operand, PathNode):
            _check_path(operand)
        elif isinstance(operand, CallNode):
            _check_call(operand, _MEASURES)


def _check_call(call: CallNode, allowed: dict[str, int]) -> None:
    _check_function(call, _SETTERS, "in a condition expression")
    if call.name not in allowed:
        raise _not_this_way(call)
    _check_count(call)
    _check_operands(*call.operands)


def _not_this_way(call: CallNode) -> InvalidConditionError:
    return InvalidConditionError(
        f"The function is not allowed to be used this way in an expression; function: {call.name}"
    )


def _check_function(call: CallNode, refused: dict[str, int], where: str) -> None:
    if call.name not in _FUNCTIONS:
        raise InvalidConditionError(f"Invalid function name; function: {call.name}")
    if call.name in refused:
        raise InvalidConditionError(f"The function is not allowed {where}; function: {call.name}")


def _check_count(call: CallNode) -> None:
    if len(call.operands) != _FUNCTIONS[call.name]:
        raise InvalidConditionError(
            f"Incorrect number of operands for operator or function; operator or function: "
            f"{call.name}, number of operands: {len(call.operands)}"
        )


def _check_update(sections: tuple[SectionNode, ...]) -> None:
    words = [section.word for section in sections]
    for word in dict.fromkeys(words):
        for section in sections:
            if section.word == word:
                for action in section.actions:
                    _check_path(action.path)
                    _check_set_value(action.value)
        if words.count(word) > 1:
            raise InvalidConditionError(
                f'The "{word}" section can only be used once in an update expression;'
            )


def _check_set_value(value: OperandNode | ArithmeticNode | None) -> None:
    match value:
        case PathNode():
            _check_path(value)
        case CallNode():
            _check_function(value, {**_CONDITIONS, **_MEASURES}, "in an update expression")
            for operand in value.operands:
                if isinstance(operand, CallNode) and operand.name == value.name == "list_append":
                    raise _not_this_way(operand)
                _check_set_value(operand)
        case ArithmeticNode(_, left, right):
            _check_set_value(left)
            _check_set_value(right)
        case _:
            return


# --- what the placeholders stand for, and whether operators can take it ---------------------------


class _Binder:
    def __init__(self, placeholders: Placeholders) -> None:
        self._placeholders = placeholders

    def path(self, node: PathNode) -> Path:
        return parse_path(
            tuple(
                int(text)
                if kind == "index"
                else self._placeholders.name(text)
                if kind == "name"
                else text
                for kind, text in node.parts
            )
        )

    def literal(self, node: ValueNode) -> Literal:
        return Literal(self._placeholders.value(node.name))


def _refuse_type(operator: str, kind: object) -> NoReturn:
    raise InvalidConditionError(
        f"Incorrect operand type for operator or function; operator or function: {operator}, "
        f"operand type: {kind}"
    )


def _known_type(operand: Operand | SetValue) -> ValueType | None:
    """The type of an operand that has the same one for every item."""
    if isinstance(operand, Literal):
        return type_of(operand.value)
    return ValueType.NUMBER if isinstance(operand, Size) else None


def _refuse_types(operator: str, allowed: frozenset[ValueType], *operands: Operand) -> None:
    for operand in operands:
        kind = _known_type(operand)
        if kind is not None and kind not in allowed:
            _refuse_type(operator, kind)


def _refuse_same(operator: str, first: object, *others: object) -> None:
    if isinstance(first, Attr) and first in others:
        raise InvalidConditionError(
            f"The first operand must be distinct from the remaining operands for this operator or "
            f"function; operator: {operator}, first operand: {path_text(first.path)}"
        )


def _no_path(function: str) -> InvalidConditionError:
    return InvalidConditionError(
        f"Operator or function requires a document path; operator or function: {function}"
    )


class _ConditionBinder(_Binder):
    def condition(self, node: ConditionNode) -> Condition:
        match node:
            case LogicNode(word, conditions):
                bound = list[Condition]()
                for condition in conditions:  # no generator: it would nest twice as deeply
                    bound.append(self.condition(condition))
                return And(tuple(bound)) if word == "AND" else Or(tuple(bound))
            case NotNode(condition):
                return Not(self.condition(condition))
            case CompareNode(comparator, left, right):
                return self._comparison(comparator, self._operand(left), self._operand(right))
            case BetweenNode(operand, low, high):
                return self._between(*map(self._operand, (operand, low, high)))
            case InNode(operand, choices):
                return self._in(self._operand(operand), tuple(map(self._operand, choices)))
            case CallNode():
                return self._call(node)

    def _operand(self, node: OperandNode) -> Operand:
        match node:
            case PathNode():
                return Attr(self.path(node))
            case ValueNode():
                return self.literal(node)
            case CallNode(_, operands):
                measured = self._operand(operands[0])
                _refuse_types("size", _SIZED, measured)
                assert not isinstance(measured, Size)
                return Size(measured)

    def _comparison(self, comparator: Comparator, left: Operand, right: Operand) -> Condition:
        _refuse_same(comparator, left, right)
        if comparator not in {Comparator.EQ, Comparator.NE}:
            _refuse_types(comparator, ORDERED, left, right)
        return Comparison(comparator, left, right)

    def _between(self, operand: Operand, low: Operand, high: Operand) -> Condition:
        _refuse_same("BETWEEN", operand, low, high)
        _refuse_types("BETWEEN", ORDERED, operand, low, high)
        if isinstance(low, Literal) and isinstance(high, Literal):
            bounds = (
                f"lower bound operand: AttributeValue: {_shown(low.value)}, "
                f"upper bound operand: AttributeValue: {_shown(high.value)}"
            )
            if type_of(low.value) is not type_of(high.value):
                raise InvalidConditionError(
                    f"The BETWEEN operator requires same data type for lower and upper bounds; "
                    f"{bounds}"
                )
            if (compare(low.value, high.value) or 0) > 0:
                raise InvalidConditionError(
                    f"The BETWEEN operator requires upper bound to be greater than or equal to "
                    f"lower bound; {bounds}"
                )
        return Between(operand, low, high)

    def _in(self, operand: Operand, choices: tuple[Operand, ...]) -> Condition:
        if len(choices) > IN_MAX:
            raise InvalidConditionError(
                f"The IN operator is provided with too many operands; number of operands: "
                f"{len(choices)}"
            )
        _refuse_same("IN", operand, *choices)
        return In(operand, choices)

    def _call(self, call: CallNode) -> Condition:
        first, *others = map(self._operand, call.operands)
        match call.name:
            case "begins_with":
                _refuse_same(call.name, first, *others)
                _refuse_types(call.name, _BEGUN, first, *others)
                return BeginsWith(first, others[0])
            case "contains":
                _refuse_same(call.name, first, *others)
                return Contains(first, others[0])
            case _:
                if not isinstance(first, Attr):
                    raise _no_path(call.name)
        if call.name == "attribute_exists":
            return Exists(first.path)
        if call.name == "attribute_not_exists":
            return NotExists(first.path)
        _refuse_same(call.name, first, *others)
        return TypeIs(first.path, _type_named(others[0]))


def _type_named(operand: Operand) -> ValueType:
    named = operand.value if isinstance(operand, Literal) else None
    if not isinstance(named, str):
        _refuse_type("attribute_type", _known_type(operand) or _ANY)
    if named not in frozenset(ValueType):
        raise InvalidConditionError(
            f"Invalid attribute type name found; type: {named}, valid types: {_NAMES}"
        )
    return ValueType(named)


def _shown(value: Value) -> str:
    if isinstance(value, bytes):
        size = len(value)
        return f"{{B:java.nio.HeapByteBuffer[pos=0 lim={size} cap={size}]}}"
    text = value if isinstance(value, str) else number_text(cast("Number", value))
    return f"{{{type_of(value)}:{text}}}"


class _UpdateBinder(_Binder):
    def update(self, sections: tuple[SectionNode, ...]) -> Update:
        written = [(section.word, action) for section in sections for action in section.actions]
        paths = [self.path(action.path) for _, action in written]
        refuse_overlaps(paths)
        # DynamoDB looks at the values from the last to the first: their names, then themselves.
        for _, action in reversed(written):
            self._names(action.value)
        values = [self._bound(word, action) for word, action in reversed(written)][::-1]
        actions = zip((word for word, _ in written), paths, values, strict=True)
        return Update(tuple(_action(*each) for each in actions))

    def _names(self, value: OperandNode | ArithmeticNode | None) -> None:
        match value:
            case PathNode():
                self.path(value)
            case CallNode(_, operands):
                for operand in operands:
                    self._names(operand)
            case ArithmeticNode(_, left, right):
                self._names(left)
                self._names(right)
            case _:
                return

    def _bound(self, word: str, action: ActionNode) -> SetValue | None:
        if action.value is None:
            return None
        value = self._value(action.value)
        if word != "SET":
            refuse_operand(word, cast("Literal", value))
        return value

    def _value(self, node: OperandNode | ArithmeticNode) -> SetValue:
        match node:
            case PathNode():
                return Attr(self.path(node))
            case ValueNode():
                return self.literal(node)
            case ArithmeticNode(sign, left, right):
                operands = self._value(left), self._value(right)
                _refuse_others(sign, ValueType.NUMBER, operands)
                return Plus(*operands) if sign == "+" else Minus(*operands)
            case CallNode():
                return self._call(node)

    def _call(self, call: CallNode) -> SetValue:
        _check_count(call)
        first, second = (self._value(operand) for operand in call.operands)
        if call.name == "list_append":
            _refuse_others(call.name, ValueType.LIST, (first, second))
            return ListAppend(first, second)
        if not isinstance(first, Attr):
            raise _no_path(call.name)
        _refuse_same(call.name, first, second)
        return IfNotExists(first.path, second)


def _refuse_others(operator: str, wanted: ValueType, operands: tuple[SetValue, SetValue]) -> None:
    for operand in operands:
        if _known_type(operand) not in {None, wanted}:
            _refuse_type(operator, _known_type(operand))


def _action(word: str, path: Path, value: SetValue | None) -> Action:
    if value is None:
        return RemoveAction(path)
    if word == "SET":
        return SetAction(path, value)
    literal = cast("Literal", value)
    return AddAction(path, literal) if word == "ADD" else DeleteAction(path, literal)
