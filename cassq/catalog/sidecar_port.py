"""The role of the catalog that is about sidecars: who there is, and where extents are.

Sidecars are few; each shows that it lives by writing its own row again within its lease. An extent
on sidecars has one row, its *placement*: which replicas it has, and, once it is sealed, its end.
It is made when its replicas are opened and before its pipe has a row, changed by compare-and-set
alone, and goes when its frames do.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence

from cassq.model.sidecar_rows import Placement, SidecarRow, SidecarState


class Sidecars(abc.ABC):
    """Sidecars, and the placements of extents on them."""

    @abc.abstractmethod
    def beat(self, row: SidecarRow) -> SidecarRow:
        """Show that a sidecar lives: write its row again, all but `state`, which stays as it is;
        `seen_ms` becomes now. A row of another generation is begun anew as `UP`: what the former
        one held is lost. The row that is there now. Unsynced."""

    @abc.abstractmethod
    def listed(self) -> list[SidecarRow]:
        """All sidecars, by name. Cost: one bounded read."""

    @abc.abstractmethod
    def set_state(self, name: str, state: SidecarState) -> bool:
        """Say durably what a sidecar is to be; False when there is none of that name."""

    @abc.abstractmethod
    def forget(self, name: str) -> bool:
        """Remove a sidecar's row; False when there is none. It comes back if it beats again."""

    # --- placements ---------------------------------------------------------------------------

    @abc.abstractmethod
    def add_placement(self, placement: Placement) -> bool:
        """Insert durably; False when the pipe has one that is not this very one (`version`)."""

    @abc.abstractmethod
    def placements_of(self, pipe_ids: Sequence[str]) -> list[Placement | None]:
        """The placements of these pipes, in their order. Cost: on networked catalogs one waits
        once."""

    @abc.abstractmethod
    def change_placement(self, old: Placement, new: Placement) -> bool:
        """Put `new` in the place of `old` durably if `old.version` is still the row's; True too
        when `new.version` is there already. An end that is recorded never changes."""

    @abc.abstractmethod
    def forget_placements(self, pipe_ids: Sequence[str]) -> None:
        """Remove durably; absent ones are no error."""

    @abc.abstractmethod
    def placements(self) -> Iterator[Placement]:
        """All placements there are, page by page. Cost: a read of all of them: for repairs and
        strays, never in the path of messages."""
