"""Erase a key from a trail (GDPR), so that the chain still proves everything else.

First the erasure itself is added to the chain: which places, and what stands for each content.
From then on every proof tells it, until it is done, and it can be done again. Then content and
salts go (`penstock.audit.erasing`). What a record keeps is its head: when something happened, to
which table, in which transaction.

What is erased: the records under the key, and those under another key that tell this one, because
the row moved. The SQL text of a statement is with the first row that it changed; where that is
another key's row, it is erased only if `statements` says so, for all of that record goes with it.
"""

import time

from msgspec import Struct, field

from penstock.audit.archives import Archives
from penstock.audit.deeds import Deeds
from penstock.audit.erasing import carry_out, carry_out_archived, say_done
from penstock.audit.names import Table, names_of
from penstock.audit.outages import Patience
from penstock.audit.own import Deed, Told, add_own, deed_of, records_of, require_head, settled
from penstock.audit.reading import Reader
from penstock.audit.recalling import recall
from penstock.audit.searching import Key, Marked, Search
from penstock.audit.shown import json_text
from penstock.audit.trail import Trail
from penstock.errors import AuditError


class Erasure(Struct, kw_only=True, rename="camel"):
    """What an erasure did, or would do."""

    records: int = 0
    """Records of the key that it found in MongoDB and in the archives."""
    more: bool = False
    """Whether there may be others of the key, which a dry run does not look for."""
    taken: int = 0
    """Records whose content it took from MongoDB,"""
    taken_archived: int = 0
    """and from the archives that were named."""
    resumed: int = 0
    """Erasures that were found unfinished, and finished."""
    statements: int = 0
    """Records of other keys that hold the SQL text of statements which wrote these rows."""
    broken: int = 0
    """Records that were not what was written, and are erased as they were."""
    names: list[str] = field(default_factory=list[str])
    """The other names that the table had, under which its records are erased too."""
    alike: list[str] = field(default_factory=list[str])
    """Keys of the table that are written as the same text, by other columns or types: what this one
    was called before its column was renamed is one, and a row of its own is another."""
    at: list[int] = field(default_factory=list[int])
    """The places of the erasure's own records."""


class Eraser:
    """Erases keys from one trail; may run beside the writer."""

    def __init__(
        self, trail: Trail, patience: Patience, archives: Archives, *, take_over: bool = False
    ) -> None:
        self._trail = trail
        self._patience = patience
        self._reader = Reader(trail, patience)
        self._archives = archives
        self._take_over = take_over

    def resume(self, *, everything: bool = False) -> int:
        """Finish erasures that broke off; with `everything` carry out all of them again.

        Returns how many it carried out.
        """
        head = settled(self._trail, self._patience, take_over=self._take_over)
        deeds = Deeds(self._reader)
        deeds.load(last=head.at, batch_last=head.batch)
        wanted = [one for one in deeds.all if one.act == "erase" and (everything or not one.done)]
        for deed in wanted:
            self._carry_out(deed, head.batch)
        return len(wanted)

    def _carry_out(self, deed: Deed, batch_last: int) -> tuple[int, int]:
        taken = carry_out(self._reader, deed, last=batch_last)
        archived = carry_out_archived(self._archives, deed) if self._archives.all else 0
        say_done(self._reader, deed)
        return taken, archived

    def erase(
        self,
        table: Table,
        key: Key,
        *,
        reason: str,
        by: str,
        statements: bool = False,
        broken: bool = False,
        dry_run: bool = False,
    ) -> Erasure:
        """Erase a key of a table, under each name that it had, as of now; what comes later is not
        touched.

        Parts of a commit that has not ended go too, whatever they hold: the driver writes them
        again. With `dry_run` nothing is changed. Raises TrailBusyError while a commit is on its
        way in, AuditError for a key's text that stands for
        several keys, and, without `broken`, for records that are not what was written.
        """
        if not dry_run:
            settled(self._trail, self._patience, take_over=self._take_over)
            recall(self._trail, self._patience)
        done = Erasure(resumed=0 if dry_run else self.resume())
        goal = 0
        while True:
            head = require_head(self._trail, self._patience)
            names = names_of(self._reader, table, last=head.at)
            done.names = names.others_shown()
            search = Search(self._reader, self._archives, names, key, head)
            marked = search.run(statements=statements)
            done.statements += search.statements
            done.alike = done.alike or [json_text(key) for key in search.alike]
            done.records += len(marked)
            done.broken += sum(one.broken for one in marked.values())
            if done.broken and not broken:
                raise AuditError(
                    f"trail of {self._trail.source}: {done.broken} records of this key are not "
                    f"what was written. Nothing was erased of them. Run `penstock audit verify` "
                    f"and `penstock audit repair` first, or say --broken to erase them as they are."
                )
            if dry_run:
                done.more = search.more
            if dry_run or not marked:
                break
            told = Told(act="erase", db=table.db, tbl=table.tbl, reason=reason, by=by)
            at = self._tell(told, marked)
            done.at += at
            last = require_head(self._trail, self._patience).batch
            for place in at:
                record = self._reader.record_at(place)
                assert record is not None
                taken, archived = self._carry_out(deed_of(record), last)
                done.taken += taken
                done.taken_archived += archived
            goal = goal or at[-1]
            if not search.more and (head.at >= goal or at[-1] == head.at + len(at)):
                break  # else something came while we looked
        return done

    def _tell(self, told: Told, marked: dict[int, Marked]) -> list[int]:
        """Add the erasure to the chain; its places there."""
        places = sorted(marked)
        records = records_of(
            told,
            places,
            [marked[place].digest for place in places],
            source=self._trail.source,
            tz=self._trail.config.tz,
            now_ms=time.time_ns() // 1_000_000,
        )
        return add_own(self._trail, self._patience, records, take_over=self._take_over)
