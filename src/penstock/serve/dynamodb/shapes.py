"""What a request's members must be, and what is said of those that are not.

A wrong type is a SerializationException at once, and comes before all else. Values out of their
bounds are gathered, up to ten as the service does, into one ValidationException:

    1 validation error detected: Value '0' at 'limit' failed to satisfy constraint: Member must have
    value greater than or equal to 1
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from penstock.serve.dynamodb.errors import serialization, validation
from penstock.store.attributevalue import refuse_scalar, refuse_types

_PROBLEMS_MAX: Final = 10
_SHOWN_CHARS_MAX: Final = 1000
NAME_CHARS_MAX: Final = 255
_TABLE_NAME: Final = "TableName"


class Problems(list[str]):
    """What is wrong with a request, up to what has been looked at."""

    def __init__(self, *, of_values: bool = False) -> None:
        """`of_values`: attribute values are looked at too, which takes as long as to decode."""
        super().__init__()
        self.of_values = of_values


class Rule:
    """What a member must be. Itself: anything, which the operation looks at itself."""

    def check(self, json: object, at: str, problems: Problems) -> None:
        """Append what is wrong with the value at a path.

        Raises WireError or MalformedValueError for a wrong type.
        """

    def given(self, json: object) -> object:
        """What the operation is given of a value that was checked."""
        return json


class Text(Rule):
    """A string, within bounds of its length, of a pattern, or one of some words."""

    def __init__(
        self,
        shortest: int = 0,
        longest: int | None = None,
        *,
        pattern: str | None = None,
        words: Sequence[str] = (),
    ) -> None:
        self._shortest = shortest
        self._longest = longest
        self._pattern = pattern
        self._words = words

    def check(self, json: object, at: str, problems: Problems) -> None:
        if not isinstance(json, str):
            refuse_scalar(json, "String")
            return
        if self._words and json not in self._words:
            listed = ", ".join(self._words)
            problems.append(_told(json, at, f"satisfy enum value set: [{listed}]"))
        if len(json) < self._shortest:
            least = f"have length greater than or equal to {self._shortest}"
            problems.append(_told(json, at, least))
        if self._longest is not None and len(json) > self._longest:
            problems.append(_told(json, at, f"have length less than or equal to {self._longest}"))
        if self._pattern is not None and re.fullmatch(self._pattern, json) is None:
            pattern = f"satisfy regular expression pattern: {self._pattern}"
            problems.append(_told(json, at, pattern))


class TableName(Text):
    """A table's name, or its ARN."""

    constraint = (
        "[Member must have length less than or equal to 255, Member must have length greater than "
        "or equal to 3, Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+]"
    )
    """All of it, as it is said of the names of a map."""

    def __init__(self) -> None:
        super().__init__(3, NAME_CHARS_MAX, pattern="[a-zA-Z0-9_.-]+")

    def check(self, json: object, at: str, problems: Problems) -> None:
        if json == "":
            # The bound of an ARN's length, as the published model has it (TableArn).
            problems.append(_told(json, at, "have length greater than or equal to 1"))
        elif not (isinstance(json, str) and json.startswith("arn:")):
            super().check(json, at, problems)


class Whole(Rule):
    """An integer within bounds, also one that is written 5.0: the operation is given 5."""

    def __init__(
        self, least: int | None = None, most: int | None = None, *, long: bool = False
    ) -> None:
        self._least = least
        self._most = most
        self._type, self._end = ("Long", 1 << 63) if long else ("Integer", 1 << 31)

    def check(self, json: object, at: str, problems: Problems) -> None:
        if (
            isinstance(json, bool)
            or not isinstance(json, int | float)
            or json != int(json)
            or not -self._end <= json < self._end
        ):
            refuse_scalar(json, self._type)
            return
        if self._least is not None and json < self._least:
            problems.append(_told(json, at, f"have value greater than or equal to {self._least}"))
        if self._most is not None and json > self._most:
            problems.append(_told(json, at, f"have value less than or equal to {self._most}"))

    def given(self, json: object) -> object:
        return int(cast("int | float", json))


class Flag(Rule):
    """True or false."""

    def check(self, json: object, at: str, problems: Problems) -> None:  # noqa: ARG002
        if not isinstance(json, bool):
            refuse_scalar(json, "Boolean")


class Moment(Rule):
    """Seconds since the epoch."""

    def check(self, json: object, at: str, problems: Problems) -> None:  # noqa: ARG002
        if isinstance(json, bool) or not isinstance(json, int | float):
            refuse_scalar(json, "Date")


class AttributeValue(Rule):
    """A value of an item. Its own errors are told by who decodes it (`decode_value`)."""

    def check(self, json: object, at: str, problems: Problems) -> None:  # noqa: ARG002
        if problems.of_values:
            refuse_types(json)


class Listed(Rule):
    """A list within bounds of its length."""

    def __init__(self, element: Rule, least: int = 0, most: int | None = None) -> None:
        self._element = element
        self._least = least
        self._most = most

    def check(self, json: object, at: str, problems: Problems) -> None:
        if not isinstance(json, list):
            raise serialization(
                "Start of structure or map found where not expected"
                if isinstance(json, dict)
                else "Expected list or null"
            )
        elements = cast("list[object]", json)
        _refuse_count(elements, len(elements), self._least, self._most, at, problems)
        looked_at = elements if problems.of_values else elements[: self._most]
        for number, element in enumerate(looked_at, start=1):
            self._element.check(element, f"{at}.{number}.member", problems)


class Mapped(Rule):
    """A map of any names, within bounds of their number."""

    def __init__(
        self,
        value: Rule,
        least: int = 0,
        most: int | None = None,
        *,
        key: TableName | None = None,
        lengths: tuple[int, int] | None = None,
    ) -> None:
        """`lengths` are the bounds of each value's, a list's, length."""
        self._value = value
        self._least = least
        self._most = most
        self._key = key
        self._lengths = lengths

    def check(self, json: object, at: str, problems: Problems) -> None:
        members = _members(json)
        _refuse_count(members, len(members), self._least, self._most, at, problems)
        if self._key is not None and not all(map(self._is_key, members)):
            problems.append(
                f"Value '{_shown(members)}' at '{at}' failed to satisfy constraint: Map keys must "
                f"satisfy constraint: {self._key.constraint}"
            )
        if self._lengths is not None and not all(map(self._is_within, members.values())):
            least, most = self._lengths
            bounds = (
                f"satisfy constraint: [Member must have length less than or equal to {most}, "
                f"Member must have length greater than or equal to {least}]"
            )
            shown = _shown(members)
            problems.append(
                f"Value '{shown}' at '{at}' failed to satisfy constraint: Map value must {bounds}"
            )
            if not problems.of_values:
                return
        for name, value in members.items():
            self._value.check(value, f"{at}.{name}.member", problems)

    def _is_key(self, name: str) -> bool:
        assert self._key is not None
        problems = Problems()
        self._key.check(name, "", problems)
        return not problems

    def _is_within(self, value: object) -> bool:
        if not isinstance(value, list) or self._lengths is None:
            return True  # the value's own rule says what is wrong with it
        least, most = self._lengths
        return least <= len(cast("list[object]", value)) <= most


class Shape(Rule):
    """A structure. Members that it does not name are passed over; one that is null is taken out."""

    def __init__(
        self, required: Mapping[str, Rule], optional: Mapping[str, Rule], *, first: bool = False
    ) -> None:
        """`first`: TableName is required, and what is wrong with it is told before all else."""
        self._first = first
        self._required = required
        self._rules = {**required, **optional}

    def check(self, json: object, at: str, problems: Problems) -> None:
        members = _members(json)
        for name, rule in self._rules.items():
            path = f"{at}.{_camel(name)}" if at else _camel(name)
            value = members.get(name)
            if value is None:
                # What is asked is asked by name from here on, wherever in the request it stands.
                members.pop(name, None)
            if value is not None:
                rule.check(value, path, problems)
                members[name] = rule.given(value)
            elif name in self._required:
                problems.append(
                    f"Value null at '{path}' failed to satisfy constraint: Member must not be null"
                )

    def read(self, json: object) -> dict[str, Any]:
        """The members of a request that are not null. Raises WireError for what it may not be."""
        problems = Problems()
        self.check(json, "", problems)
        members = _members(json)
        if self._first:
            _refuse_table_name(members.get(_TABLE_NAME))
        if problems:
            count = min(len(problems), _PROBLEMS_MAX)
            plural = "" if count == 1 else "s"
            told = "; ".join(problems[:_PROBLEMS_MAX])
            raise validation(f"{count} validation error{plural} detected: {told}")
        return {name: value for name, value in members.items() if value is not None}

    def refuse_types(self, json: object) -> None:
        """Refuse any wrong type, in attribute values too: it is told before whatever else is wrong.

        Raises WireError and MalformedValueError.
        """
        self.check(json, "", Problems(of_values=True))


def _refuse_table_name(name: object) -> None:
    """Refuse no name, or one of a length that none has, as operations on tables themselves do."""
    if name is None:
        raise validation(
            f"The parameter '{_TABLE_NAME}' is required but was not present in the request"
        )
    is_arn = isinstance(name, str) and name.startswith("arn:")
    if not is_arn and not 3 <= len(cast("str", name)) <= NAME_CHARS_MAX:
        raise validation(
            f"{_TABLE_NAME} must be at least 3 characters long and at most {NAME_CHARS_MAX} "
            f"characters long"
        )


def _members(json: object) -> dict[str, object]:
    if not isinstance(json, dict):
        raise serialization(
            "Start of list found where not expected"
            if isinstance(json, list)
            else "Expected map or null"
        )
    return cast("dict[str, object]", json)


def _refuse_count(
    json: object, count: int, least: int, most: int | None, at: str, problems: Problems
) -> None:
    if count < least:
        problems.append(_told(json, at, f"have length greater than or equal to {least}"))
    if most is not None and count > most:
        problems.append(_told(json, at, f"have length less than or equal to {most}"))


def _camel(name: str) -> str:
    return name[0].lower() + name[1:]


def _told(json: object, at: str, must: str) -> str:
    shown = _shown(json)
    return f"Value '{shown}' at '{at}' failed to satisfy constraint: Member must {must}"


def _shown(json: object) -> str:
    """A value as Java writes it."""
    if isinstance(json, list):
        text = f"[{', '.join(map(_shown, cast('list[object]', json)))}]"
    elif isinstance(json, dict):
        members = cast("dict[str, object]", json)
        text = f"{{{', '.join(f'{name}={_shown(value)}' for name, value in members.items())}}}"
    elif isinstance(json, bool):
        text = str(json).lower()
    else:
        text = str(json)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."
