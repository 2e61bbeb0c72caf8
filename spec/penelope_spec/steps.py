"""Step predicates: what a transition may and may not have done."""

from __future__ import annotations

from penelope.policy import (
    Granularity,
    InsufficientSpace,
    Node,
    NodeId,
    Receipt,
    Residency,
    State,
    Totals,
    next_transfer,
)
from penelope_spec.balance import recount
from penelope_spec.facts import EVICTING, MOVES, USES, Happened, Turned, shortfall
from penelope_spec.flight import covered
from penelope_spec.structure import band, label, preorder


def no_shared_eviction(happened: Happened) -> list[str]:
    """At the moment a span is dropped, its subtree is a chain."""
    return [
        f"{happened.transition} dropped [{freed.start}, {freed.end}) of node {freed.node}, "
        f"a prefix shared below node {freed.forks[0]}"
        for freed in happened.shadow.freed
        if freed.forks
    ]


def no_in_use_eviction(happened: Happened) -> list[str]:
    """Nothing dropped was covered by a receipt, the request's own path included."""
    before = happened.before
    wrong: list[str] = []
    own: set[NodeId] = set()
    reach = 0
    if happened.transition == "admit":
        matched = happened.facts["plan"].match
        own, reach = {span.node for span in matched.spans}, matched.end
    for freed in happened.shadow.freed:
        origin = before.nodes.get(freed.origin)
        if origin is not None and origin.locks:
            wrong.append(
                f"{happened.transition} dropped [{freed.start}, {freed.end}) of {band(origin)}, "
                f"which {origin.locks} receipts hold"
            )
        if freed.origin in own and freed.start < reach:
            wrong.append(
                f"admit dropped [{freed.start}, {freed.end}) of node {freed.origin}, "
                f"on the path that the request itself matched"
            )
    wrong += _lost_under_lock(happened)
    wrong += _demoted_under_lock(happened)
    return wrong


def _demoted_under_lock(happened: Happened) -> list[str]:
    """What leaves the device is locked by nothing when it begins, by no receipt when it ends."""
    before = happened.before
    leaves = {
        departed.origin
        for departed in happened.shadow.departed
        if departed.target is Residency.HOST
    }
    wrong = [
        f"{band(node)} begins to leave the device with {node.locks} locks"
        for node in before.nodes.values()
        if node.id in leaves and node.locks
    ]
    used = covered(before, len(before.nodes))
    wrong.extend(
        f"{band(node)} was in use on the device, and is on the host now"
        for node in before.nodes.values()
        if node.id in used
        and node.residency is Residency.DEVICE
        and (kept := happened.after.nodes.get(node.id)) is not None
        and kept.residency is Residency.HOST
    )
    return wrong


def _lost_under_lock(happened: Happened) -> list[str]:
    """The same from the states alone, for a step whose effects conceal a loss."""
    before, after = happened.before, happened.after
    if happened.transition == "reset":
        return []
    return [
        f"{band(node)} was resident and locked, and is {kept.residency.value} now"
        for node in before.nodes.values()
        if node.locks
        and node.residency is not Residency.HOLE
        and (kept := after.nodes.get(node.id)) is not None
        and kept.residency is Residency.HOLE
    ]


def minimal_eviction(happened: Happened) -> list[str]:
    """The shortfall is freed, and less than one block (or node) more; nothing without one."""
    need, freed = happened.need, happened.freed
    said = happened.facts.get("freed", freed)
    wrong: list[str] = []
    if said != freed:
        wrong.append(f"{happened.transition} says it freed {said}, its effects free {freed}")
    if need <= 0 and freed:
        wrong.append(f"{happened.transition} freed {freed} where nothing was needed")
    elif freed < need:
        wrong.append(f"{happened.transition} freed {freed} of the {need} needed")
    elif need > 0:
        if happened.before.config.granularity is Granularity.BLOCK:
            step = happened.before.config.block_size
        else:
            last = happened.shadow.freed[-1]
            step = last.end - last.start
        if freed >= need + step:
            wrong.append(f"{happened.transition} freed {freed} for {need}: {step} were too many")
    return wrong


def effects_tell_all(happened: Happened) -> list[str]:
    """The effects, replayed on the spans before, give the spans and residency after."""
    return happened.shadow.differences(happened.after)


def history_intact(happened: Happened) -> list[str]:
    """Every history after an eviction or move was one before, and no KV came from nowhere."""
    if happened.transition not in (*EVICTING, *MOVES):
        return []
    wrong: list[str] = []
    for leaf in happened.after.nodes.values():
        if leaf.is_root or leaf.children:
            continue
        known = _path_in(happened.before, leaf)
        if not known or known[-1].end < leaf.end:
            reach = known[-1].end if known else 0
            wrong.append(f"the history of {band(leaf)} was known only to {reach}")
            continue
        for node in _up(happened.after, leaf):
            if node.residency is Residency.HOLE:
                continue
            wrong.extend(
                f"{band(node)} has KV now, and {band(old)} had none"
                for old in known
                if old.residency is Residency.HOLE and old.start < node.end and old.end > node.start
            )
    return wrong


def _path_in(state: State, leaf: Node) -> list[Node]:
    """The nodes whose labels spell the history of `leaf`, as far as they do."""
    path: list[Node] = []
    root = state.roots.get(leaf.namespace)
    at = None if root is None else state.nodes[root]
    page = state.config.page_size
    while at is not None and at.end < leaf.end:
        child = at.children.get(label(state, leaf, at.end, at.end + page))
        at = None if child is None else state.nodes[child]
        if at is not None:
            end = min(at.end, leaf.end)
            if label(state, at, at.start, end) != label(state, leaf, at.start, end):
                break
            path.append(at)
    return path


def _up(state: State, leaf: Node) -> list[Node]:
    """The node and its ancestors, the root excluded."""
    path: list[Node] = []
    at = leaf
    while at.parent is not None and len(path) <= len(state.nodes):
        path.append(at)
        at = state.nodes[at.parent]
    return path


def progress(turned: Turned) -> list[str]:
    """A refusal for want of space is right: what is free and what may go, recounted, do not do.

    On the device what is locked or promised cannot be had; whatever else is there can leave it.
    What the tiers together must lose has to be unlocked, in either of them.
    """
    if not isinstance(turned.error, InsufficientSpace):
        return []
    if turned.transition == "settle_promise":
        return _stuck(turned)
    counted = recount(turned.before)
    unlocked = counted.device - counted.locked + counted.host - counted.locked_host
    if turned.transition == "evict":
        lacking = [(turned.facts["need"], unlocked, "evictable")]
    elif turned.transition == "reserve":
        lacking = _lacking(turned, turned.facts["units"], unlocked, counted)
    elif turned.transition == "admit":
        plan = turned.facts["plan"]
        lacking = _lacking(turned, plan.held + plan.allocate, unlocked, counted)
        used = counted.device + counted.reserved + counted.inbound
        free = turned.before.config.device_capacity - used
        lacking.append((plan.held, free, "held by nobody"))
    else:
        return []
    if any(asked > available for asked, available, _ in lacking):
        return []
    texts = [f"{asked} units asked, {available} {what}" for asked, available, what in lacking]
    return [f"{turned.transition} was refused: {'; '.join(texts)}"]


def _lacking(
    turned: Turned, asked: int, unlocked: int, counted: Totals
) -> list[tuple[int, int, str]]:
    """What is asked of the device, of eviction and of the host, and what each can give."""
    before, config = turned.before, turned.before.config
    own = dict.fromkeys(Residency, 0)
    comes = 0
    if turned.transition == "admit":
        matched = turned.facts["plan"].match
        comes = matched.host
        for span in matched.spans:
            if not before.nodes[span.node].locks:
                own[span.residency] += span.length
    device = config.device_capacity - counted.reserved - counted.inbound - counted.locked
    device -= counted.due + counted.promote + own[Residency.DEVICE]
    over = shortfall(before, turned.transition, turned.facts)
    places = config.host_resident + counted.promote + counted.inbound + comes
    return [
        (asked, device, "available on the device"),
        (over, unlocked - own[Residency.DEVICE] - own[Residency.HOST], "evictable"),
        (counted.locked_host + own[Residency.HOST], places, "host units may be locked"),
    ]


def _stuck(turned: Turned) -> list[str]:
    """A promise that cannot be kept yet is one that moves will keep: some are to do, or under way.

    Another request's may have to come first: together the plans always go on (T3).
    """
    state = turned.before
    if state.moves or any(next_transfer(state, Receipt(receipt)) for receipt in state.leases):
        return []
    lease = state.leases[turned.facts["receipt"].id]
    text = f"{lease.due} units are due and {lease.promote} to be promoted, {state.free} are free"
    return [f"settle was refused: {text}, and there is nothing to move"]


def recency(state: State) -> dict[NodeId, int]:
    """The latest use that ended in each node or below it, or in what is gone from below it."""
    latest: dict[NodeId, int] = {}
    for node in reversed(preorder(state)):
        latest[node.id] = max(latest.get(node.id, 0), node.stamp)
        if node.parent is not None:
            latest[node.parent] = max(latest.get(node.parent, 0), latest[node.id])
    return latest


def recency_kept(happened: Happened) -> list[str]:
    """Only a use makes histories more recent: those through one path, and they become newest.

    How recent a hole is decides nothing: it is no victim, and what refills it uses it.
    """
    if happened.transition == "reset":
        return []
    before, after = recency(happened.before), recency(happened.after)
    now = happened.after.tick
    used = happened.transition in USES and now > happened.before.tick
    wrong = [
        f"{happened.transition} moved the recency of node {node} from {then} to {after[node]}"
        for node, then in before.items()
        if node in after
        and happened.after.nodes[node].residency is not Residency.HOLE
        and after[node] != then
        and not (used and after[node] == now)
    ]
    if not used and now != happened.before.tick:
        wrong.append(f"{happened.transition} moved the tick to {now} without a use")
    for node in happened.after.nodes.values():
        newest = [child for child in node.children.values() if after.get(child) == now]
        if used and len(newest) > 1:
            wrong.append(f"children {newest} of node {node.id} were both used at tick {now}")
    return wrong


def moves_do_not_evict(happened: Happened) -> list[str]:
    """A move leaves every resident span resident, in one tier or the other.

    That it gives KV to nothing that had none is `history-intact`.
    """
    if happened.transition not in MOVES:
        return []
    wrong: list[str] = []
    for leaf in happened.before.nodes.values():
        if leaf.is_root or leaf.children:
            continue
        kept = _path_in(happened.after, leaf)
        for node in _up(happened.before, leaf):
            if node.residency is Residency.HOLE:
                continue
            covered = sum(
                max(0, min(node.end, other.end) - max(node.start, other.start))
                for other in kept
                if other.residency is not Residency.HOLE
            )
            if covered != node.end - node.start:
                wrong.append(f"a move left {covered} units of {band(node)} resident")
    return wrong


def reads_change_nothing(happened: Happened) -> list[str]:
    """Matching and planning change nothing, not even recency."""
    if happened.transition not in ("match", "plan") or happened.after is happened.before:
        return []
    return [f"{happened.transition} answered another state than the one it read"]
