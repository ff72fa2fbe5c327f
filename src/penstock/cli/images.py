"""Which images of documents the configured sources never tell, and whom that concerns."""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from penstock.cli.config import Settings


@runtime_checkable
class TellsImages(Protocol):
    """The configuration of a source that says which images its changes never have."""

    @property
    def lacks_after(self) -> bool:
        """Whether an update never has the document as of the event."""
        ...

    @property
    def lacks_before(self) -> bool:
        """Whether no change ever has the document before it."""
        ...


def remarks(settings: "Settings") -> tuple[str, ...]:
    """What is no mistake, and that one should know, a sentence each.

    zero-cache shows each transaction by itself. An update whose document was looked up may have
    what a later transaction wrote, and the other rows of that one not yet (Z10).
    """
    zero = settings.serve.zero
    if zero is None:
        return ()
    return tuple(
        f"serve.zero: documents of the source {name!r} are looked up after each change: while "
        f"capture is behind, a client may see a part of a later transaction. For whole ones "
        f'only, let MongoDB store images, and set full_document = "required" '
        f"(docs/how-to/mongodb.md)."
        for name in sorted(zero.source_names)
        if isinstance(config := settings.sources[name].config, TellsImages) and config.lacks_after
    )
