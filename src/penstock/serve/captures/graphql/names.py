"""Names of collections and fields, as GraphQL can say them. Pure.

A name of GraphQL is of letters, digits and underscores, does not begin with a digit, and not with
two underscores. Every other character becomes an underscore; what begins with a digit, or is empty,
gets one in front; of several underscores in front one is left. Where two names become one, those
that needed no change keep it, and the others, in their order, get `_2`, `_3` and so on behind.
https://spec.graphql.org/October2021/#sec-Names
"""

import re
from collections.abc import Collection, Iterable

_OTHER = re.compile(r"[^_0-9A-Za-z]")
_WORDS = re.compile(r"[0-9A-Za-z]+")


def said(name: str) -> str:
    """`name` as GraphQL can say it."""
    found = re.sub("^__+", "_", _OTHER.sub("_", name))
    return f"_{found}" if not found or found[0].isdigit() else found


def pascal(name: str) -> str:
    """`name` as that of a type: `order_items` is `OrderItems`."""
    found = "".join(word[0].upper() + word[1:] for word in _WORDS.findall(name))
    return f"_{found}" if not found or found[0].isdigit() else found


def distinct(pairs: Iterable[tuple[str, str]], *, taken: Collection[str] = ()) -> dict[str, str]:
    """By each given name its own spelling: pairs are of a name and how it would be spelt.

    The same for the same names, whatever their order."""
    used = set(taken)
    found: dict[str, str] = {}
    for name, spelling in sorted(set(pairs), key=lambda pair: (pair[0] != pair[1], pair)):
        one, number = spelling, 2
        while one in used:
            one, number = f"{spelling.rstrip('_')}_{number}", number + 1
        used.add(one)
        found[name] = one
    return found
