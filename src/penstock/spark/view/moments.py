"""Texts that Spark takes for the time at which it reads a query. Pure.

Where a date or a timestamp is asked for, a constant text may say `now`, `today`, `yesterday` or
`tomorrow`, in any case, between blanks, and all but the first with a zone behind. It is then the
time of that statement: a view would keep it for ever, and each batch another one. `epoch` is one
moment, and no other.
"""

import re
from typing import Final

_BLANK: Final = "".join(map(chr, range(33)))
"""What Java trims."""
_MOMENT: Final = re.compile(
    r"now|(today|yesterday|tomorrow)([^a-z].*)?", re.IGNORECASE | re.ASCII | re.DOTALL
)


def is_moment(text: str) -> bool:
    """Whether a text as a date or a timestamp is another one each time."""
    return _MOMENT.fullmatch(text.strip(_BLANK)) is not None


def of_moment(text: str) -> str:
    """What a query asks for with such a text."""
    return f"the time at which it is read: {text!r} as a date or timestamp"
