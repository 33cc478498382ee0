"""The checker: what was promised, looked for in the history of a storm. Pure.

Every property yields a sentence an offence. Of a push or commit whose outcome nobody was told,
either outcome is right: it is as if it went on for ever.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from tests.faults.storm.history import ENDING, NEVER, History, Seen, Sent, Settling
from tests.faults.storm.journal import order_key_of, priority_of, tick_key
from tests.faults.storm.limits import in_hand, in_windows

TOLD_MOST = 10

Complaints = Iterator[str]
Places = dict[str, set[tuple[str, int]]]


@dataclass(slots=True)
class Verdict:
    """findings: property → the first complaints; counts: property → how many there were.

    duplicates: of each group, how many messages of an ap queue lay at more than one place, so
    that they could be committed more than once.
    """

    findings: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    duplicates: dict[str, int] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not any(self.counts.values())


def check(history: History) -> Verdict:
    """Every property, of every group."""
    verdict = Verdict()
    for name, of_all in OF_ALL.items():
        _add(verdict, name, of_all(history))
    for name, of_group in OF_GROUPS.items():
        found = (reported for seen in history.seen.values() for reported in of_group(history, seen))
        _add(verdict, name, found)
    keyed = [seen for seen in history.seen.values() if seen.group in history.keyed]
    strict = [each for each in history.seen.values() if each.queue in history.strict]
    exclusive = [seen for seen in strict if seen not in keyed]
    limited = [each for place, each in history.seen.items() if place in history.limits]
    for of_some, some in (
        (OF_STRICT_GROUPS, exclusive),
        (OF_KEYED_GROUPS, keyed),
        (OF_LIMITED_GROUPS, limited),
    ):
        for name, of_group in of_some.items():
            _add(verdict, name, (told for seen in some for told in of_group(history, seen)))
    for seen in history.seen.values():
        if seen.queue not in history.strict:
            verdict.duplicates[seen.name] = duplicates(seen)
    return verdict


def _add(verdict: Verdict, name: str, complaints: Complaints) -> None:
    found = list(complaints)
    verdict.counts[name] = len(found)
    verdict.findings[name] = found[:TOLD_MOST]


# --- the whole --------------------------------------------------------------------------------


def the_end_was_reached(history: History) -> Complaints:
    """Else nothing else was proved."""
    if not history.ended:
        yield "the queues were not drained to the end"
    if not any(s.fate == "acknowledged" and not s.is_tick for s in history.sent.values()):
        yield "nothing was acknowledged: the run proved nothing"
    for queue in {seen.queue for seen in history.seen.values()}:
        if queue not in history.ledgers:
            yield f"{queue} was not audited"
    for schedule in history.schedules - {each.schedule for each in history.ticking}:
        yield f"nobody told which ticks {schedule} had"


def the_ledger_balances(history: History) -> Complaints:
    """The audit finds nothing, and holds at least what pushers know of, at most what they tried:
    each message once, or as many copies of it as were delivered."""
    places = _places_by_queue(history)
    for queue, ledger in history.ledgers.items():
        for finding in ledger.findings:
            yield f"{queue}: {finding}"
        fates = Counter(sent.fate for sent in history.sent.values() if sent.queue == queue)
        if ledger.pushed < fates["acknowledged"]:
            yield f"{queue}: {ledger.pushed} are in the ledger, {fates['acknowledged']} were pushed"
        most = sum(_copies_most(history, places[queue], s) for s in _pushed_to(history, queue))
        if ledger.pushed > most:
            yield f"{queue}: {ledger.pushed} are in the ledger, {most} can have been pushed"
        for group, (waiting, pending, committed, dead, pushed) in ledger.groups.items():
            if waiting or pending:
                yield f"{queue}/{group}: {waiting} are waiting and {pending} pending"
            if committed + dead != pushed:
                yield f"{queue}/{group}: {committed} committed and {dead} dead are not {pushed}"


def _pushed_to(history: History, queue: str) -> Iterator[Sent]:
    return (sent for sent in history.sent.values() if sent.queue == queue)


def _places_by_queue(history: History) -> dict[str, Places]:
    """queue → where each of its messages lay, as any group saw it."""
    found: dict[str, Places] = defaultdict(lambda: defaultdict(set))
    for seen in history.seen.values():
        for key, places in _places_of(seen).items():
            found[seen.queue][key] |= places
    return found


def _copies_most(history: History, places: Places, sent: Sent) -> int:
    """How often a message can be in its queue: a push of unknown outcome may be there though
    nothing of it was journaled, one that was refused is not. On an ap queue it may have been
    carried over to another pipe; then it was delivered from there too."""
    least = 0 if sent.fate == "refused" else 1
    return least if sent.queue in history.strict else max(least, len(places[sent.key]))


def what_was_refused_is_not_there(history: History) -> Complaints:
    """A push that failed with a known outcome has not pushed."""
    refused = {key for key, sent in history.sent.items() if sent.fate == "refused"}
    for seen in history.seen.values():
        for key in _delivered(seen) & refused:
            yield f"{key}, which was told not to be pushed, came to {seen.name}"


def each_tick_is_one_message(history: History) -> Complaints:
    """Every tick that came due was pushed, whoever did it, and lies at one place: also on an ap
    queue, and in each group. What came of no tick is invented, and lost what did not come to a
    group: that is told elsewhere."""
    places = _places_by_queue(history)
    for ticking in history.ticking:
        if ticking.pushing:
            yield f"a push of {ticking.schedule} was begun and never finished"
        if ticking.next_ms <= ticking.now_ms:
            yield f"{ticking.schedule} had a tick at {ticking.next_ms} that was never pushed"
        if not ticking.ticks:
            yield f"{ticking.schedule} had no tick: the run proved nothing of it"
        for tick_ms in ticking.ticks:
            key = tick_key(ticking.schedule, tick_ms)
            found = places[ticking.queue][key]
            if len(found) != 1:
                yield f"{key} is at {len(found)} places of {ticking.queue}: {sorted(found)}"


# --- every group ------------------------------------------------------------------------------


def nothing_is_lost(history: History, seen: Seen) -> Complaints:
    """Each acknowledged message was committed, or tried to be, or is a dead letter."""
    finished = {k for s in seen.settlings if s.how == "commit" for k in s.keys} | set(seen.dead)
    for sent in history.sent.values():
        if sent.queue == seen.queue and sent.fate == "acknowledged" and sent.key not in finished:
            came = "came and was never finished" if sent.key in _delivered(seen) else "never came"
            yield f"{sent.key} ({sent.id}) {came} to {seen.name}"


def nothing_is_invented(history: History, seen: Seen) -> Complaints:
    """What is delivered or dead was pushed, to this queue, as it is."""
    for key in _delivered(seen) | set(seen.dead):
        sent = history.sent.get(key)
        if sent is None or sent.queue != seen.queue:
            yield f"{key}, which nobody pushed to {seen.queue}, came to {seen.name}"


def what_was_committed_does_not_come_again(history: History, seen: Seen) -> Complaints:
    """Not from the same place; on a strict queue not at all."""
    strict = seen.queue in history.strict
    place_of = _place_of_key if strict else _place_of_pipe
    places = _places_by_batch(seen)
    committed: dict[object, int] = {}
    for settling in _committed(seen):
        for key in settling.keys:
            place = key if strict else places[settling.popper, settling.batch].get(key)
            committed[place] = min(committed.get(place, NEVER), settling.done_ns)
    for delivery in seen.deliveries:
        for item in delivery.items:
            if committed.get(place_of(item), NEVER) < delivery.called_ns:
                yield f"{item[0]} at {item[1]} came to {delivery.popper} after it was committed"


def _place_of_key(item: tuple[str, tuple[str, int], int, str]) -> object:
    return item[0]


def _place_of_pipe(item: tuple[str, tuple[str, int], int, str]) -> object:
    return item[1]


def _places_by_batch(seen: Seen) -> dict[tuple[str, int], dict[str, tuple[str, int]]]:
    """(popper, batch) → where its messages lay."""
    return {
        (each.popper, each.batch): {key: place for key, place, _, _ in each.items}
        for each in seen.deliveries
    }


def a_message_keeps_its_id(history: History, seen: Seen) -> Complaints:
    """It comes under the id that its push returned; on an ap queue a second copy may have its
    own."""
    strict = seen.queue in history.strict
    ids: dict[str, set[str]] = defaultdict(set)
    for delivery in seen.deliveries:
        for key, _, _, id in delivery.items:
            ids[key].add(id)
    for key, found in ids.items():
        sent = history.sent.get(key)
        if sent is None:
            continue
        if (sent.id and sent.id not in found) or (strict and len(found) > 1):
            yield f"{key} was pushed as {sent.id}, and came to {seen.name} as {sorted(found)}"


def a_message_keeps_its_priority(history: History, seen: Seen) -> Complaints:
    """It comes with the priority with which it was pushed, however often."""
    strict = seen.queue in history.strict
    for delivery in seen.deliveries:
        for key, priority in delivery.priorities.items():
            if key in history.sent and priority != priority_of(key, strict=strict):
                yield f"{key} came to {seen.name} with the priority {priority}"


def duplicates(seen: Seen) -> int:
    """Messages that lie at several places of an ap queue, since a push was carried over."""
    return sum(1 for found in _places_of(seen).values() if len(found) > 1)


def _places_of(seen: Seen) -> Places:
    """key → where it lay, as it was delivered."""
    places: Places = defaultdict(set)
    for delivery in seen.deliveries:
        for key, place, _, _ in delivery.items:
            places[key].add(place)
    return places


def a_message_is_committed_once(history: History, seen: Seen) -> Complaints:
    """Of several who held a message, one after the other, the commit of one alone succeeds; of one
    that lies at several places, at each of them."""
    strict = seen.queue in history.strict
    places = _places_by_batch(seen)
    holders: dict[object, set[tuple[str, int]]] = defaultdict(set)
    for settling in _committed(seen):
        holder = settling.popper, settling.batch
        for key in settling.keys:
            holders[key if strict else places[holder].get(key)].add(holder)
    for place, found in holders.items():
        if len(found) > 1:
            text = " and ".join(f"{popper} (batch {batch})" for popper, batch in sorted(found))
            yield f"{place} of {seen.name} was committed by {text}"


def what_was_refused_as_lost_comes_again(history: History, seen: Seen) -> Complaints:
    """A popper whose commit, or whatever else, was refused because it lost its claim had lost at
    least one of those messages to another: that one is delivered elsewhere too, or dead."""
    holders: dict[tuple[str, tuple[str, int]], set[tuple[str, int]]] = defaultdict(set)
    for delivery in seen.deliveries:
        for key, place, _, _ in delivery.items:
            holders[key, place].add((delivery.popper, delivery.batch))
    dead, places = set(seen.dead), _places_by_batch(seen)
    for settling in seen.settlings:
        if settling.result != "lost":
            continue
        mine = settling.popper, settling.batch
        elsewhere = any(
            key in dead or holders[key, places[mine][key]] - {mine} for key in settling.keys
        )
        if not elsewhere:
            yield (
                f"{settling.popper} was told that it had lost {settling.keys} of {seen.name},"
                " and none of them came again"
            )


def what_is_dead_was_not_committed(history: History, seen: Seen) -> Complaints:
    """And is a dead letter once; of one that lies at several places of an ap queue each copy has
    one of these fates."""
    strict = seen.queue in history.strict
    by_batch, places = _places_by_batch(seen), _places_of(seen)
    committed: Places = defaultdict(set)
    for settling in _committed(seen):
        for key in settling.keys:
            committed[key].add(by_batch[settling.popper, settling.batch][key])
    for key, count in Counter(seen.dead).items():
        copies = 1 if strict else max(1, len(places[key]))
        if count > copies:
            yield f"{key} is a dead letter of {seen.name} {count} times"
        elif len(committed[key]) + count > copies:
            yield f"{key} was committed by {seen.name}, and is a dead letter too"


def _committed(seen: Seen) -> Iterator[Settling]:
    """The commits that succeeded."""
    return (each for each in seen.settlings if (each.how, each.result) == ("commit", "ok"))


def _delivered(seen: Seen) -> set[str]:
    return {item[0] for delivery in seen.deliveries for item in delivery.items}


# --- groups of strict queues ------------------------------------------------------------------


def the_order_is_kept(history: History, seen: Seen) -> Complaints:
    """While a message is not finished, nothing that was pushed after it is delivered.

    One push is after another if it began when that had returned, whoever made them; within a
    push the messages have their order. A delivery may hold several, in their order. The ticks of a
    schedule have an order of their own.
    """
    return _passed(history, seen, lambda sent: sent.pusher if sent.is_tick else "")


def _passed(history: History, seen: Seen, line_of: Callable[[Sent], object]) -> Complaints:
    """What came before something that was pushed earlier was finished. line_of: the messages that
    keep one order have the same."""
    lines: dict[object, list[Sent]] = defaultdict(list)
    for sent in history.sent.values():
        if sent.queue == seen.queue and sent.fate == "acknowledged":
            lines[line_of(sent)].append(sent)
    for line in lines.values():
        line.sort(key=lambda sent: (sent.done_ns, sent.op, sent.index))
    finished = _finished_ns(seen)
    frontiers: dict[object, int] = defaultdict(int)
    for delivery in sorted(seen.deliveries, key=lambda each: each.returned_ns):
        now_ns = delivery.returned_ns
        together: set[str] = set()
        for key, *_ in delivery.items:
            late = history.sent.get(key)
            if late is not None:
                name = line_of(late)
                order, frontier = lines[name], frontiers[name]
                while frontier < len(order) and finished.get(order[frontier].key, NEVER) < now_ns:
                    frontier += 1
                frontiers[name] = frontier
                for early in _before(order, frontier, late):
                    done = finished.get(early.key, NEVER) < now_ns
                    if not done and early.key not in together:
                        yield (
                            f"{key} ({late.id}) came to {seen.name} ({delivery.popper})"
                            f" before {early.key} ({early.id}) was finished"
                        )
            together.add(key)


def _before(order: list[Sent], start: int, late: Sent) -> Iterator[Sent]:
    """What was pushed before `late`, from a place of the order on."""
    for early in islice(order, start, None):
        earlier = early.done_ns < late.begun_ns
        if not earlier and (late.done_ns == NEVER or early.done_ns > late.done_ns):
            return
        if earlier or (early.op == late.op and early.index < late.index):
            yield early


def _finished_ns(seen: Seen) -> dict[str, int]:
    """When each message began to be committed or declared dead, whatever came of that. What died
    of its failures did so at a time that nobody wrote down: its first delivery counts."""
    finished: dict[str, int] = {}
    for settling in seen.settlings:
        if settling.how in ENDING:
            for key in settling.keys:
                finished[key] = min(finished.get(key, NEVER), settling.begun_ns)
    first: dict[str, int] = {}
    for delivery in seen.deliveries:
        for key, *_ in delivery.items:
            first[key] = min(first.get(key, NEVER), delivery.returned_ns)
    for key in seen.dead:
        finished[key] = min(finished.get(key, NEVER), first.get(key, 0))
    return finished


# --- groups that keep the order of keys -------------------------------------------------------


def the_order_of_a_key_is_kept(history: History, seen: Seen) -> Complaints:
    """While a message is not finished, nothing of its key that was pushed after it is delivered: on
    a strict queue whoever pushed it, on others by the same pusher."""
    strict = seen.queue in history.strict
    return _passed(
        history,
        seen,
        lambda sent: order_key_of(sent.key) if strict else (order_key_of(sent.key), sent.pusher),
    )


def one_of_a_key_is_in_hand(history: History, seen: Seen) -> Complaints:
    """Two messages of a key are never held at the same time. One is certainly held from its
    delivery until its popper began to settle it, if it could."""
    settled = {
        (each.popper, each.batch, key): each.begun_ns
        for each in seen.settlings
        if each.result == "ok"
        for key in each.keys
    }
    held: dict[str, list[tuple[int, int, str, str]]] = defaultdict(list)
    for delivery in seen.deliveries:
        for key, *_ in delivery.items:
            until_ns = settled.get((delivery.popper, delivery.batch, key))
            if until_ns is not None and key in history.sent:
                spell = delivery.returned_ns, until_ns, key, delivery.popper
                held[order_key_of(key)].append(spell)
    for spells in held.values():
        last = 0, 0, "", ""
        for spell in sorted(spells):
            begun_ns, until_ns, key, popper = spell
            if begun_ns < last[1] and key != last[2]:
                yield (
                    f"{key} came to {seen.name} ({popper}) while {last[3]} had {last[2]},"
                    " which is of the same key"
                )
            if until_ns > last[1]:
                last = spell


# --- groups with limits ----------------------------------------------------------------------


def no_more_are_in_hand_than_allowed(history: History, seen: Seen) -> Complaints:
    """Over all processes together."""
    limit = history.limits[seen.queue, seen.group]
    for at_ns, count in in_hand(seen, limit):
        if count > limit.concurrency:
            yield f"{count} of {seen.name} were in hand at {at_ns}, where {limit.concurrency} may"


def no_more_come_than_the_rate_allows(history: History, seen: Seen) -> Complaints:
    """In no second of the catalog's time; each such second is told once."""
    limit = history.limits[seen.queue, seen.group]
    told_until_ns = 0
    for since_ns, count in in_windows(seen, limit):
        if count > limit.rate and since_ns >= told_until_ns:
            told_until_ns = since_ns + limit.window_ns
            seconds = limit.window_ns / 1e9
            yield (
                f"{count} messages came to {seen.name} in {seconds:g} s from {since_ns} on,"
                f" where {limit.rate} may"
            )


OF_ALL: dict[str, Callable[[History], Complaints]] = {
    "the end was reached": the_end_was_reached,
    "the ledger balances": the_ledger_balances,
    "what was refused is not there": what_was_refused_is_not_there,
    "each tick is one message": each_tick_is_one_message,
}
OF_GROUPS: dict[str, Callable[[History, Seen], Complaints]] = {
    "nothing acknowledged is lost": nothing_is_lost,
    "nothing is invented": nothing_is_invented,
    "what was committed does not come again": what_was_committed_does_not_come_again,
    "a message keeps its id": a_message_keeps_its_id,
    "a message keeps its priority": a_message_keeps_its_priority,
    "a message is committed once": a_message_is_committed_once,
    "what was refused as lost comes again": what_was_refused_as_lost_comes_again,
    "what is dead was not committed": what_is_dead_was_not_committed,
}
OF_STRICT_GROUPS: dict[str, Callable[[History, Seen], Complaints]] = {
    "the order is kept": the_order_is_kept,
}
OF_KEYED_GROUPS: dict[str, Callable[[History, Seen], Complaints]] = {
    "the order of a key is kept": the_order_of_a_key_is_kept,
    "one of a key is in hand": one_of_a_key_is_in_hand,
}
OF_LIMITED_GROUPS: dict[str, Callable[[History, Seen], Complaints]] = {
    "no more are in hand than allowed": no_more_are_in_hand_than_allowed,
    "no more come than the rate allows": no_more_come_than_the_rate_allows,
}
