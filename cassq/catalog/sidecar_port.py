"""The catalog role for sidecars: which ones exist, and where extents are.

Sidecars are few; each stays alive by rewriting its own row within its lease. An extent on
sidecars has one row, its *placement*: which replicas it has and, once it is sealed, its end.
The placement is inserted when the replicas are opened, before the pipe has a row; it changes only
by compare-and-set, and is removed with the frames.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # most processes have no sidecars
    from cassq.model.sidecar_rows import Placement, SidecarRow, SidecarState


class Sidecars(abc.ABC):
    """Sidecars, and the placements of extents on them."""

    @abc.abstractmethod
    def beat(self, row: SidecarRow) -> SidecarRow:
        """Record that a sidecar is alive: rewrite its row, all but `state`; `seen_ms` becomes now.
        A row of another generation starts over as `UP`: what the former one held is lost. Returns
        the row that is there now. Unsynced."""

    @abc.abstractmethod
    def listed(self) -> list[SidecarRow]:
        """All sidecars, by name. Cost: one bounded read."""

    @abc.abstractmethod
    def set_state(self, name: str, state: SidecarState) -> bool:
        """Durably set a sidecar's state; False if there is none with that name."""

    @abc.abstractmethod
    def forget(self, name: str) -> bool:
        """Remove a sidecar's row; False if there is none. It comes back if it beats again."""

    # --- placements ---------------------------------------------------------------------------

    @abc.abstractmethod
    def add_placement(self, placement: Placement) -> bool:
        """Insert durably; False if the pipe has one with another `version`."""

    @abc.abstractmethod
    def placements_of(self, pipe_ids: Sequence[str]) -> list[Placement | None]:
        """The placements of these pipes, in their order. Cost: one round trip on networked
        catalogs."""

    @abc.abstractmethod
    def change_placement(self, old: Placement, new: Placement) -> bool:
        """Durably replace `old` by `new` if the row still has `old.version`; True too if it already
        has `new.version`. A recorded end never changes."""

    @abc.abstractmethod
    def forget_placements(self, pipe_ids: Sequence[str]) -> None:
        """Remove durably; absent ones are not an error."""

    @abc.abstractmethod
    def placements(self) -> Iterator[Placement]:
        """All placements, page by page. Cost: reads all of them. For repairs and for finding
        strays; never called while messages are pushed, popped or acked."""
