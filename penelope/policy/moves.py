"""Moving KV between the tiers: it changes where KV is, never whether it is.

        device | A B C D |  E F |            before: full, and a request needs x y z from the host
        host   | x y z   |  ····|            ···· is the swap buffer
        device | x y C D |  E F |            A B went to the buffer, x y took their place,
        host   | A B z   |  ····|            and what they left is the buffer of the next chunk

Each move is begun, carried out by the shell, and then ended or failed, each a transition of its
own.  What is in flight has its slots in both tiers, is locked, and is in no one's way to be lost.
"""

from __future__ import annotations

from typing import NamedTuple

from penelope.policy.amounts import whole_number
from penelope.policy.config import Position
from penelope.policy.draft import Draft
from penelope.policy.effects import Copy, Effect, Moved, Unmoved
from penelope.policy.errors import InsufficientSpace, InvalidAmount, NothingToMove, UnknownMove
from penelope.policy.locking import Step
from penelope.policy.order import first_to_demote
from penelope.policy.state import Move, MoveId, Node, NodeId, Receipt, Residency, State
from penelope.policy.walk import device_span


class Transfer(NamedTuple):
    """A span [start, end) of one node to bring to the other tier next."""

    node: NodeId
    start: int
    end: int
    target: Residency
    receipt: Receipt | None = None
    """For whom it is promoted; None for a demotion."""

    @property
    def length(self) -> int:
        return self.end - self.start


class Begun(NamedTuple):
    state: State
    effects: tuple[Effect, ...]
    move: MoveId


def next_transfer(state: State, receipt: Receipt) -> Transfer | None:
    """What to move next so that the receipt gets what it was promised; None when nothing.

    Promotes into what is free, else demotes as much as the host can take: what it keeps, and as
    much of the swap buffer as promotions will empty again (T3).  KV moves in whole pages, so what
    is short of one, of a reservation that fills no page, costs a page.  Raises `UnknownReceipt`.
    """
    draft = Draft(state)  # to read from: it is never closed
    lease = draft.lease(receipt)
    # Another request may have brought a part of it in the meantime.
    waiting = [n for n in draft.path(lease.node) if _on_host(n)] if lease.promote else []
    promote = min(lease.promote, sum(node.length for node in waiting))
    page = state.config.page_size
    free = state.free // page * page
    if promote and free:
        first = waiting[-1]
        end = min(first.end, first.start + min(promote, free))
        return Transfer(first.id, first.start, end, Residency.DEVICE, receipt)
    short = lease.due + promote - state.free
    # What promotions will empty again may stand in the buffer until then, as far as it reaches.
    room = state.config.host_resident - state.host_used + promote
    return next_demotion(state, min(-(-short // page) * page, room))


def _on_host(node: Node) -> bool:
    return node.residency is Residency.HOST and node.move is None


def settle_promise(state: State, receipt: Receipt) -> Step:
    """Turn what a receipt was promised into a reservation, once moves have made room for it.

    Raises `UnknownReceipt`; `InsufficientSpace` while there is a transfer to do first.
    """
    draft = Draft(state)
    lease = draft.lease(receipt)
    left = sum(n.length for n in draft.path(lease.node) if n.residency is Residency.HOST)
    if lease.due > draft.free or (lease.promote and left):
        raise InsufficientSpace(
            f"{lease.due} units are promised, {draft.free} are free and {left} are still on the "
            f"host: carry out the transfers of this receipt first"
        )
    reserved = lease.reserved + lease.due
    draft.set_lease(receipt.id, lease._replace(reserved=reserved, due=0, promote=0))
    return Step(*draft.close())


def forgo_promise(state: State, receipt: Receipt) -> Step:
    """Give up what a receipt was promised and has not got; what it has stays.

    Raises `UnknownReceipt`.
    """
    draft = Draft(state)
    lease = draft.lease(receipt)
    draft.set_lease(receipt.id, lease._replace(due=0, promote=0))
    return Step(*draft.close())


def next_demotion(state: State, units: int) -> Transfer | None:
    """The first span, at most `units` long, that leaves the device; None when there is none.

    Whole pages, and no more than the host has room for: `begin_move` takes it on this state.  In
    the order of eviction, on the tree as it would be if histories that are wholly on the host
    were gone: they are leaves, and would hide their shared parent.  Raises `InvalidAmount` for
    units that are no whole number.
    """
    most = whole_number(units)
    if most is None:
        raise InvalidAmount(f"cannot demote {units!r} units: give a whole number")
    leaf = first_to_demote(state)
    room = state.config.host_capacity - state.host_used
    units = min(most, room) // state.config.page_size * state.config.page_size
    if leaf is None or units <= 0:
        return None
    node = state.nodes[leaf]
    if state.config.position is Position.TAIL:
        return Transfer(node.id, max(node.start, node.end - units), node.end, Residency.HOST)
    if state.config.position is Position.PRIVATE_HEAD:
        span = device_span(state.nodes, leaf)
        node = [above for above in span if above.residency is Residency.DEVICE][-1]
    return Transfer(node.id, node.start, min(node.end, node.start + units), Residency.HOST)


def begin_move(state: State, transfer: Transfer) -> Begun:
    """Put a transfer in flight: `Copy` effects name what the shell has to copy.

    Raises `NothingToMove` if the span is not idle KV of the other tier that may move there, or
    there is no room for it; `UnknownReceipt`.  At risk: `bounded-swap`, `no-in-use-eviction`.
    """
    if not isinstance(transfer, Transfer):
        raise NothingToMove(
            f"this is {type(transfer).__name__} and no transfer: ask for the next one"
        )
    draft = Draft(state)
    node = state.nodes.get(transfer.node)
    demotion = transfer.target is Residency.HOST
    source = Residency.DEVICE if demotion else Residency.HOST
    if (
        node is None
        or node.residency is not source
        or node.move is not None
        or not node.start <= transfer.start < transfer.end <= node.end
        or transfer.start % state.config.page_size
        or transfer.end % state.config.page_size
    ):
        raise NothingToMove(
            f"[{transfer.start}, {transfer.end}) is not a span of idle KV on the {source.value}: "
            f"ask for the next transfer"
        )
    room = state.config.host_capacity - state.host_used if demotion else state.free
    if transfer.length > room:
        raise NothingToMove(
            f"{transfer.length} units do not fit the {transfer.target.value}, where {room} are "
            f"free: ask for the next transfer"
        )
    if demotion and node.locks:
        raise NothingToMove(f"[{node.start}, {node.end}) is in use: it may not leave the device")
    if transfer.start > node.start:
        _, node = draft.split(node, transfer.start)
    if transfer.end < node.end:
        node, _ = draft.split(node, transfer.end)
    move = MoveId(draft.next_move)
    draft.next_move += 1
    owner = None
    if demotion:
        draft.outbound += transfer.length
    else:
        draft.inbound += transfer.length
        if transfer.receipt is not None:
            lease = draft.lease(transfer.receipt)
            owner = transfer.receipt.id
            left = lease.promote - min(lease.promote, transfer.length)
            draft.set_lease(owner, lease._replace(promote=left))
    draft.moves = draft.moves.set(
        move, Move(node.id, transfer.start, transfer.end, transfer.target, owner)
    )
    draft.change(node, node._replace(move=move))
    draft.lock(node.id)
    draft.effects.append(Copy(move, node.id, node.start, node.end, transfer.target))
    return Begun(*draft.close(), move)


def end_move(state: State, move: MoveId) -> Step:
    """The copy is complete: the KV is in the target tier, and only there.

    Raises `UnknownMove` if the move has ended before: a late completion changes nothing.
    At risk: `one-copy`, `moves-do-not-evict`.
    """
    draft, moving = _ending(state, move)
    for node in _moving(draft, move, moving):
        draft.settle_on(node, moving.target)
        draft.effects.append(Moved(move, node.id, node.start, node.end, moving.target))
    return _ended(draft, moving)


def fail_move(state: State, move: MoveId) -> Step:
    """The copy was given up: the KV is where it was, and only there.

    Raises `UnknownMove`.  At risk: `one-copy`, `moves-do-not-evict`.
    """
    draft, moving = _ending(state, move)
    for node in _moving(draft, move, moving):
        draft.change(node, node._replace(move=None))
    draft.effects.append(Unmoved(move, moving.start, moving.end, moving.target))
    if moving.receipt is not None and moving.receipt in draft.leases:
        lease = draft.leases[moving.receipt]
        draft.set_lease(moving.receipt, lease._replace(promote=lease.promote + moving.length))
    return _ended(draft, moving)


def _ending(state: State, move: MoveId) -> tuple[Draft, Move]:
    draft = Draft(state)
    moving = draft.moves.get(move)
    if moving is None:
        raise UnknownMove(f"move {move} is not in flight: it has ended, or never began")
    draft.moves = draft.moves.delete(move)
    if moving.target is Residency.HOST:
        draft.outbound -= moving.length
    else:
        draft.inbound -= moving.length
    return draft, moving


def _moving(draft: Draft, move: MoveId, moving: Move) -> list[Node]:
    """The nodes that the move's span has been split into since, in position order."""
    nodes = []
    for node in draft.path(moving.node):
        if node.move != move:
            break
        nodes.append(node)
    return nodes[::-1]


def _ended(draft: Draft, moving: Move) -> Step:
    last = draft.unlock(moving.node)
    assert last is not None, "what has moved, or has not, has its KV and stays"
    draft.merge_path(last)
    return Step(*draft.close())
