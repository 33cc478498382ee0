"""Fairness between keys: the message of which key comes next when many are ready.

The share of a key is the larger of two numbers: how many of its messages are in consumers' hands
now, and how many were on average in about the last half minute, which measures its part of the
processing time. The key with the least share comes first. A key is *noisy* while it has over a
tenth of all messages in hand, and at least 30 of them, or over a tenth of the processing time.
Noisy keys come only when no other key is ready, the one with the fewest messages in hand first; so
they lose only what others use. Messages without a key count as those of one key.

Pure bookkeeping in memory. Cost: logarithmic in the number of ready keys for each message.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from math import exp

from cassq.consumer.keyed.segments import Backlog, Entry, ReadyByPriority, Segment
from cassq.message.bundles import Bundle
from cassq.message.ranges import RangeSet

NOISY_SHARE = 0.1
NOISY_IN_HAND = 30
WINDOW_MS = 30_000.0
KEYS_KEPT = 10_000  # how many keys without messages are remembered before old ones are dropped
FORGOTTEN_BUSY = 0.001  # an average of fewer messages in hand than this counts as none


class Tenant:
    """A key. waiting: its ready messages. in_hand: how many consumers have. busy: how many they had
    on average, lately, as of `at_ms`. number: identifies its place among the quiet keys; 0: it has
    none. noisy: whether it is listed as noisy."""

    __slots__ = ("at_ms", "busy", "in_hand", "noisy", "number", "waiting")

    def __init__(self, at_ms: int) -> None:
        self.waiting: Backlog | ReadyByPriority = Backlog()
        self.in_hand = 0
        self.busy = 0.0
        self.at_ms = at_ms
        self.number = 0
        self.noisy = False

    def waiting_for(self, segment: Segment) -> Backlog | ReadyByPriority:
        """Its ready messages, in a form to which those of this segment can be added."""
        if segment.row.priority and isinstance(self.waiting, Backlog):
            self.waiting = ReadyByPriority(self.waiting.drained())
        return self.waiting

    def add(self, count: int, now_ms: int) -> None:
        """Note that `count` more of its messages are in hand; negative: fewer."""
        if now_ms > self.at_ms:
            kept = exp((self.at_ms - now_ms) / WINDOW_MS)
            self.busy = self.busy * kept + self.in_hand * (1 - kept)
            self.at_ms = now_ms
        self.in_hand += count


class FairReady:
    """The ready messages of a fair group. It is used like a deque, but hands out the first message
    of the key with the least share. clock: returns milliseconds."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._now_ms = clock()
        self._tenants: dict[bytes | None, Tenant] = {}
        self._all = Tenant(self._now_ms)
        self._count = 0
        # A heap: the least share first, of equal ones the one listed first. Places that were given
        # up stay in it for a while.
        self._quiet: list[tuple[float, int, Tenant]] = []
        self._noisy: list[Tenant] = []
        self._numbers = 0

    def __len__(self) -> int:
        return self._count

    def append(self, entry: Entry) -> None:
        tenant = self._tenant(entry)
        tenant.waiting_for(entry[0]).append(entry)
        self._count += 1
        self._list_again(tenant)

    def add(self, segment: Segment, bundle: Bundle, seqs: RangeSet) -> None:
        """Put messages of a segment behind the others of their keys. Cost: one pass over them; much
        less if all have one key."""
        keys, base = bundle.keys, bundle.base_seq
        self._count += len(seqs)
        one = _only_key(bundle, seqs)
        if one is not None:
            tenant = self._tenant_of(one)
            tenant.waiting_for(segment).add_run(segment, bundle, seqs)
            self._list_again(tenant)
            return
        tenant, last = self._tenant_of(None), None
        for seq in seqs:
            key = keys[seq - base] if keys else None
            if key != last:
                tenant, last = self._tenant_of(key), key
            tenant.waiting_for(segment).append((segment, bundle, seq))
            self._list_again(tenant)

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.append(entry)

    def extendleft(self, entries: Iterable[Entry]) -> None:
        """Put messages before the others of their keys, the last one first."""
        for entry in entries:
            tenant = self._tenant(entry)
            tenant.waiting_for(entry[0]).appendleft(entry)
            self._count += 1
            self._list_again(tenant)

    def _tenant(self, entry: Entry) -> Tenant:
        _, bundle, seq = entry
        return self._tenant_of(bundle.key_at(seq - bundle.base_seq))

    def _tenant_of(self, key: bytes | None) -> Tenant:
        tenant = self._tenants.get(key)
        if tenant is None:
            tenant = self._tenants[key] = Tenant(self._now_ms)
        return tenant

    def _list_again(self, tenant: Tenant) -> None:
        """Give a key that may have had no ready messages its place."""
        if not (tenant.number or tenant.noisy):
            self._list(tenant)

    def _list(self, tenant: Tenant) -> None:
        """Give a key its place among the quiet ones."""
        tenant.add(0, self._now_ms)
        self._numbers += 1
        tenant.number = self._numbers
        heapq.heappush(self._quiet, (_share(tenant), tenant.number, tenant))
        if len(self._quiet) > 2 * len(self._tenants) + 100:
            self._quiet = [place for place in self._quiet if place[1] == place[2].number]
            heapq.heapify(self._quiet)

    def _is_noisy(self, tenant: Tenant) -> bool:
        tenant.add(0, self._now_ms)
        if tenant.in_hand >= NOISY_IN_HAND and tenant.in_hand > NOISY_SHARE * self._all.in_hand:
            return True
        return tenant.busy > NOISY_SHARE * max(self._all.busy, FORGOTTEN_BUSY)

    def begin(self) -> None:
        """Called before messages are taken: read the clock, and find keys that are no longer
        noisy."""
        self._look()
        noisy, self._noisy = self._noisy, []
        for tenant in noisy:
            if self._is_noisy(tenant):
                self._noisy.append(tenant)
            else:
                tenant.noisy = False
                self._list(tenant)
        if len(self._tenants) > KEYS_KEPT + self._count + self._all.in_hand:
            self._forget_idle()

    def _look(self) -> None:
        self._now_ms = max(self._clock(), self._now_ms)
        self._all.add(0, self._now_ms)

    def _forget_idle(self) -> None:
        """Drop the keys without messages that had next to none in hand lately."""
        for key, tenant in list(self._tenants.items()):
            if not (tenant.waiting or tenant.in_hand):
                tenant.add(0, self._now_ms)
                if tenant.busy < FORGOTTEN_BUSY:
                    del self._tenants[key]

    def popleft(self) -> Entry:
        """Take the message that comes next. There must be one."""
        tenant = self._next()
        entry = tenant.waiting.popleft()
        self._count -= 1
        tenant.add(1, self._now_ms)
        self._all.add(1, self._now_ms)
        if tenant.waiting:
            self._list(tenant)
        return entry

    def _next(self) -> Tenant:
        """Take the key with the least share off the list."""
        while self._quiet:
            _, number, tenant = heapq.heappop(self._quiet)
            if number != tenant.number:
                continue
            tenant.number = 0
            if not self._is_noisy(tenant):
                return tenant
            tenant.noisy = True
            self._noisy.append(tenant)
        found = min(self._noisy, key=_share_in_hand)
        self._noisy.remove(found)
        found.noisy = False
        return found

    def begun(self, keys: Iterable[bytes | None]) -> None:
        """Note that messages of these keys are in hand that were not taken from here."""
        self._change(keys, 1)

    def finished(self, keys: Iterable[bytes | None]) -> None:
        """Note that messages of these keys are no longer in hand."""
        self._change(keys, -1)

    def _change(self, keys: Iterable[bytes | None], each: int) -> None:
        self._look()
        for key in keys:
            tenant = self._tenant_of(key)
            tenant.add(each, self._now_ms)
            self._all.add(each, self._now_ms)
            if tenant.number:
                self._list(tenant)


def _only_key(bundle: Bundle, seqs: RangeSet) -> bytes | None:
    """The key that all of these messages have; None if they differ, or finding out takes long."""
    keys = bundle.keys
    if len(seqs.ranges) != 1 or not isinstance(keys, list):
        return None
    start, end = seqs.ranges[0]
    mine = keys[start - bundle.base_seq : end - bundle.base_seq]
    return mine[0] if mine.count(mine[0]) == len(mine) else None


def _share(tenant: Tenant) -> float:
    return max(tenant.in_hand, tenant.busy)


def _share_in_hand(tenant: Tenant) -> tuple[int, float]:
    return tenant.in_hand, tenant.busy
