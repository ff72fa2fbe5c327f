"""What #names and :values stand for, and which of them the expressions of a request have used."""

import re
from collections.abc import Mapping
from typing import Final, Self, cast

from penstock.store.attributevalue import NAME_TOO_LONG, decode_value, members_of, refuse_name
from penstock.store.errors import (
    InvalidConditionError,
    MalformedValueError,
    ValueRefusedError,
    dynamodb_text,
)
from penstock.store.values import Value

NAME_BYTES_MAX: Final = 255
_NAME: Final = re.compile(r"#[0-9a-zA-Z_]+")
_VALUE: Final = re.compile(r":[0-9a-zA-Z_]+")


class Placeholders:
    """ExpressionAttributeNames and ExpressionAttributeValues, for one request."""

    def __init__(
        self, names: Mapping[str, str] | None = None, values: Mapping[str, Value] | None = None
    ) -> None:
        self._names = dict(names or {})
        self._values = dict(values or {})
        self._unused = {*self._names, *self._values}

    @classmethod
    def of_json(cls, names: object = None, values: object = None) -> Self:
        """Those of a request, checked; the values are DynamoDB's JSON.

        Raises InvalidConditionError and MalformedValueError, with DynamoDB's texts.
        """
        decoded = dict[str, Value]()
        if names is not None:
            _refuse_keys("ExpressionAttributeNames", _mapping(names), _NAME)
            _refuse_names(_mapping(names))
        if values is not None:
            _refuse_keys("ExpressionAttributeValues", _mapping(values), _VALUE)
            for key, json in _mapping(values).items():
                try:
                    decoded[key] = decode_value(json)
                except ValueRefusedError as error:
                    if dynamodb_text(error) == NAME_TOO_LONG:
                        raise
                    raise InvalidConditionError(
                        f"ExpressionAttributeValues contains invalid value: "
                        f"{dynamodb_text(error)} for key {key}"
                    ) from error
        return cls(cast("dict[str, str] | None", names), decoded)

    def name(self, placeholder: str) -> str:
        """What a #name stands for. Raises InvalidConditionError if it is not defined."""
        if placeholder not in self._names:
            raise InvalidConditionError(
                f"An expression attribute name used in the document path is not defined; "
                f"attribute name: {placeholder}"
            )
        self._unused.discard(placeholder)
        return self._names[placeholder]

    def value(self, placeholder: str) -> Value:
        """What a :value stands for. Raises InvalidConditionError if it is not defined."""
        if placeholder not in self._values:
            raise InvalidConditionError(
                f"An expression attribute value used in expression is not defined; attribute "
                f"value: {placeholder}"
            )
        self._unused.discard(placeholder)
        return self._values[placeholder]

    def refuse_unused(self) -> None:
        """Refuse what no expression has used. Raises InvalidConditionError."""
        for kind, defined in (("Names", self._names), ("Values", self._values)):
            unused = sorted(self._unused & set(defined))
            if unused:
                raise InvalidConditionError(
                    f"Value provided in ExpressionAttribute{kind} unused in expressions: "
                    f"keys: {{{', '.join(unused)}}}"
                )


def _mapping(json: object) -> dict[str, object]:
    return members_of(json, "Expected map or null")


def _refuse_keys(field: str, mapping: Mapping[str, object], written: re.Pattern[str]) -> None:
    if not mapping:
        raise InvalidConditionError(f"{field} must not be empty")
    for key in mapping:
        size = len(key.encode(errors="surrogatepass"))
        if size > NAME_BYTES_MAX:
            told = f" size of key: {size}" if written is _NAME else ""
            raise InvalidConditionError(
                f"{field} contains invalid key: The expression attribute map contains a key that "
                f"is too long;{told}"
            )
        if not written.fullmatch(key):
            raise InvalidConditionError(f'{field} contains invalid key: Syntax error; key: "{key}"')


def _refuse_names(names: Mapping[str, object]) -> None:
    for key, name in names.items():
        if not isinstance(name, str):
            raise MalformedValueError(f"the attribute name for {key} is not a string")
        if not name:
            raise InvalidConditionError(
                f"ExpressionAttributeNames contains invalid value: Empty attribute name for key "
                f"{key}"
            )
        refuse_name(name)
