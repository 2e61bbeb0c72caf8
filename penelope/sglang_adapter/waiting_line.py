"""The requests that wait, as the core is told of them: read where SGLang keeps them.

The queue is read when KV is about to go, and at no other time: then it stands in the order in which
SGLang's schedule policy has left it, newcomers behind.  Every rank has the same queue, so every
rank decides alike.  A request is matched when it comes into view; after that a ticket stands for
it, which the request itself carries, so that nothing is left of one that has gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penelope import policy
from penelope.policy import Adopt, Effect, Free, Match, Node, NodeId, Split, State, Ticket
from penelope.policy.waiting import IN_VIEW
from penelope.sglang_adapter.paths import namespace_of, pack_tokens
from penelope.sglang_adapter.statistics import Statistics

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

TICKET = "penelope_ticket"
"""Attribute of a request in view of the cache: a `Standing`."""


class Standing(NamedTuple):
    """What stands for a request in the core's queue, and what the request was then.

    A request that was retracted or cut short waits for something else than before.
    """

    ticket: Ticket
    epoch: int
    tokens: int
    retractions: int


class Tree(Protocol):
    """The tree that the requests wait for."""

    state: State

    def apply(self, state: State, effects: tuple[Effect, ...]) -> object: ...


class WaitingLine:
    def __init__(self) -> None:
        self._source: Callable[[], Iterable[Req]] = tuple
        self._epoch = 0
        self._spared: frozenset[Ticket] = frozenset()
        """Who of those in view has been counted as spared."""

    def follow(self, source: Callable[[], Iterable[Req]]) -> None:
        """Read the queue there: in the order of service, some perhaps admitted already."""
        self._source = source

    def look(self, tree: Tree, weights: int) -> None:
        """Tell the core who waits now.

        Work for those that came into view or were overtaken; for the others, one comparison each,
        at most `IN_VIEW` of them.
        """
        # Whom this step has admitted holds a lock, and SGLang takes it off the queue later.
        requests = list(islice((r for r in self._source() if r.lock is None), IN_VIEW))
        known = [self._ticket(req) for req in requests]
        waiting = tree.state.waiting
        if tuple(known) == waiting.order:
            return
        known = [ticket if ticket in waiting.places else None for ticket in known]
        queue: list[Ticket | Match] = [
            self._match(tree, req, weights) if ticket is None else ticket
            for req, ticket in zip(requests, known, strict=True)
        ]
        lined = policy.line_up(tree.state, queue)
        tree.apply(lined.state, lined.effects)
        spared = set()
        for req, before, ticket in zip(requests, known, lined.tickets, strict=True):
            if before in self._spared:
                spared.add(ticket)
            if before != ticket:
                setattr(req, TICKET, Standing(ticket, self._epoch, *_asked(req)))
        self._spared = frozenset(spared)

    def forget(self, tree: Tree) -> None:
        """Nobody's ticket is worth anything any more: all are matched again."""
        self._epoch += 1
        self._spared = frozenset()
        lined = policy.line_up(tree.state, ())
        tree.apply(lined.state, lined.effects)

    def count(self, statistics: Statistics, before: State, effects: Sequence[Effect]) -> None:
        """Note what an eviction has spared, each request once, and what it has not."""
        if before.waiting.at and any(isinstance(effect, Free) for effect in effects):
            spared = passed_over(before, effects, self._spared)
            self._spared |= spared
            statistics.add("spared_requests", len(spared))
            statistics.add("queued_evicted_tokens", lost_to_waiting(before, effects))

    def _ticket(self, req: Req) -> Ticket | None:
        """What stands for the request, if it is as it was then: asked of all, at every look."""
        standing: Standing | None = req.__dict__.get(TICKET)
        if standing is None:
            return None
        ticket, epoch, tokens, retractions = standing
        same = (
            epoch == self._epoch
            and retractions == req.retraction_count
            and tokens == len(req.origin_input_ids) + len(req.output_ids)
        )
        return ticket if same else None

    def _match(self, tree: Tree, req: Req, weights: int) -> Match:
        """What the request will find: as SGLang's own match when it is admitted."""
        tokens = req.origin_input_ids
        if req.output_ids:
            tokens = tokens + req.output_ids
        limit = req._compute_max_prefix_len(len(tokens))
        if req.positional_embed_overrides is not None:
            limit = 0  # Its KV is of more than tokens: nothing cached is reused.
        key = pack_tokens(tokens, limit)
        return policy.match(tree.state, key, namespace_of(req, weights), at_most=limit)


def _asked(req: Req) -> tuple[int, int]:
    return len(req.origin_input_ids) + len(req.output_ids), req.retraction_count


def passed_over(
    before: State, effects: Sequence[Effect], counted: frozenset[Ticket] = frozenset()
) -> frozenset[Ticket]:
    """Requests in view whose history had been used less recently than one that lost KV here.

    Least recent use would have taken theirs first.  Those that were counted before are left out.
    `before` is the state of which the effects are.
    """
    waiting = before.waiting
    if not waiting.at:
        return frozenset()
    losers = {_leaf(before, node) for node, _, _ in _lost(before, effects)}
    if not losers:
        return frozenset()
    latest = max((before.nodes[leaf].stamp for leaf in losers if leaf is not None), default=-1)
    found: set[Ticket] = set()
    for node, tickets in waiting.at.items():
        if counted.issuperset(tickets):
            continue
        leaf = _leaf(before, before.nodes[node])
        if leaf is not None and leaf not in losers and before.nodes[leaf].stamp < latest:
            found.update(tickets)
    return frozenset(found - counted)


def lost_to_waiting(before: State, effects: Sequence[Effect]) -> int:
    """Tokens among those that went here which a request in view was going to use."""
    if not before.waiting.at:
        return 0
    return sum(
        max(0, min(end, _wanted(before, node)) - start)
        for node, start, end in _lost(before, effects)
    )


def _lost(before: State, effects: Sequence[Effect]) -> Iterable[tuple[Node, int, int]]:
    """What was evicted, in nodes of the state before: a step cuts nodes before it frees a part."""
    cut: dict[NodeId, NodeId] = {}
    for effect, then in zip_longest(effects, effects[1:]):
        match effect:
            case Split(node, upper, _):
                cut[upper] = cut.get(node, node)
            case Free(node, start, end, _) if not isinstance(then, Adopt) or then.node != node:
                yield before.nodes[cut.get(node, node)], start, end


def _leaf(before: State, node: Node) -> NodeId | None:
    """The end of the only history that goes through a node; None if there are several, or a lock.

    Those are no victims, whoever waits.
    """
    while len(node.children) == 1:
        node = before.nodes[next(iter(node.children.values()))]
    return None if node.children or node.locks else node.id


def _wanted(before: State, node: Node) -> int:
    """How far the private history through a node is wanted by a request in view."""
    reach = 0
    while True:
        for ticket in before.waiting.at.get(node.id, ()):
            reach = max(reach, before.waiting.places[ticket].end)
        if not node.children:
            return reach
        node = before.nodes[next(iter(node.children.values()))]


def waits_in(scheduler: Any) -> Iterable[Req]:
    """Who waits for a scheduler: its queue, then those whose grammar is not ready.

    They join the queue's end when it is.
    """
    yield from scheduler.waiting_queue
    yield from scheduler.grammar_manager.grammar_queue
