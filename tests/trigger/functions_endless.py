"""A module that never comes to its end."""

import threading

threading.Event().wait()


def handle(event: object, context: object) -> None:
    """Is never there."""
