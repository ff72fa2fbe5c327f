"""Conditions, updates and projections as DynamoDB's expressions, with a placeholder for all."""

from typing import Any

from penstock.store.conditions import (
    And,
    Attr,
    BeginsWith,
    Between,
    Comparison,
    Condition,
    Contains,
    Exists,
    In,
    Literal,
    Not,
    NotExists,
    Or,
    Size,
    TypeIs,
)
from penstock.store.expressions.placeholders import Placeholders
from penstock.store.paths import Path
from penstock.store.updates import (
    AddAction,
    DeleteAction,
    IfNotExists,
    ListAppend,
    Minus,
    Plus,
    RemoveAction,
    SetAction,
    Update,
)
from penstock.store.values import Value


class Printer:
    """Prints, and knows what the placeholders stand for that it has made up."""

    def __init__(self, *, spaces: str = " ", parentheses: bool = False) -> None:
        self._spaces = spaces
        self._parentheses = parentheses
        self._names = dict[str, str]()
        self._values = dict[str, Value]()

    def placeholders(self) -> Placeholders:
        return Placeholders(self._names, self._values)

    def path(self, path: Path) -> str:
        text = ""
        for element in path:
            if isinstance(element, int):
                text += f"[{element}]"
            else:
                name = f"#n{len(self._names)}"
                self._names[name] = element
                text += f".{name}"
        return text[1:]

    def value(self, value: Value) -> str:
        name = f":v_{len(self._values)}"
        self._values[name] = value
        return name

    def operand(self, operand: Any) -> str:
        match operand:
            case Attr(path):
                text = self.path(path)
            case Literal(value):
                text = self.value(value)
            case Size(of):
                text = f"size{self._spaces}({self.operand(of)})"
            case IfNotExists(path, otherwise):
                text = f"if_not_exists({self.path(path)}, {self.operand(otherwise)})"
            case ListAppend(first, second):
                text = f"list_append({self.operand(first)},{self.operand(second)})"
            case _:
                raise AssertionError(operand)
        return f"({text})" if self._parentheses else text

    def condition(self, condition: Condition) -> str:
        words = f"{self._spaces}%s{self._spaces}"
        match condition:
            case And(conditions):
                return (words % "AND").join(map(self._inner, conditions))
            case Or(conditions):
                return (words % "OR").join(map(self._inner, conditions))
            case Not(negated):
                return f"NOT{self._spaces}{self._inner(negated)}"
            case Exists(path):
                return f"attribute_exists({self.path(path)})"
            case NotExists(path):
                return f"attribute_not_exists({self.path(path)})"
            case TypeIs(path, kind):
                return f"attribute_type({self.path(path)}, {self.value(kind.value)})"
            case Comparison(comparator, left, right):
                return f"{self.operand(left)}{comparator}{self.operand(right)}"
            case Between(operand, low, high):
                bounds = f"{self.operand(low)}{words % 'AND'}{self.operand(high)}"
                return f"{self.operand(operand)}{words % 'BETWEEN'}{bounds}"
            case In(operand, choices):
                listed = ", ".join(map(self.operand, choices))
                return f"{self.operand(operand)}{words % 'IN'}({listed})"
            case BeginsWith(operand, prefix):
                return f"begins_with({self.operand(operand)}, {self.operand(prefix)})"
            case Contains(operand, element):
                return f"contains({self.operand(operand)}, {self.operand(element)})"
            case _:
                raise AssertionError(condition)

    def _inner(self, condition: Condition) -> str:
        text = self.condition(condition)
        grouped = self._parentheses or isinstance(condition, And | Or)
        return f"({text})" if grouped else text

    def update(self, update: Update) -> str:
        sections = dict[str, list[str]]()
        for action in update.actions:
            path = self.path(action.path)
            match action:
                case SetAction(_, Plus(left, right)):
                    text = f"{path} = {self.operand(left)} + {self.operand(right)}"
                case SetAction(_, Minus(left, right)):
                    text = f"{path} = {self.operand(left)}-{self.operand(right)}"
                case SetAction(_, value):
                    text = f"{path}={self.operand(value)}"
                case RemoveAction():
                    text = path
                case AddAction(_, Literal(value)) | DeleteAction(_, Literal(value)):
                    text = f"{path} {self.value(value)}"
            word = type(action).__name__.removesuffix("Action").upper()
            sections.setdefault(word, []).append(text)
        return self._spaces.join(
            f"{word}{self._spaces}{', '.join(texts)}" for word, texts in sections.items()
        )
