"""Carrying out what a receipt was promised: the loop of moves, for every shell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from penelope import policy
from penelope.policy import MoveId, Receipt, Residency, State, Transfer
from penelope.runtime.store import StoreError


class Carrier(Protocol):
    """A shell that moves KV between the tiers.  Each step commits a transition, or raises."""

    @property
    def state(self) -> State: ...

    def depart(self, transfer: Transfer) -> MoveId:
        """Begin a transfer, with fresh slots for it in the target tier."""

    def copy(self, move: MoveId, transfer: Transfer) -> None:
        """Copy the KV into them.  Raises `StoreError` where that failed."""

    def arrive(self, move: MoveId) -> object:
        """End the move, and free the slots that it leaves.  May raise `StoreError`."""

    def give_up(self, move: MoveId) -> object:
        """Fail the move, and free the fresh slots."""


class Carried(NamedTuple):
    """A transfer that is complete."""

    transfer: Transfer
    swapped: bool
    """A promotion while the swap buffer was in use: both tiers were full."""

    @property
    def demotion(self) -> bool:
        return self.transfer.target is Residency.HOST


def carry_out(carrier: Carrier, transfer: Transfer) -> Carried:
    """Move one span.  Raises `StoreError`, and then its KV is where it was."""
    swapped = transfer.target is Residency.DEVICE and carrier.state.staged > 0
    move = carrier.depart(transfer)
    try:
        carrier.copy(move, transfer)
        carrier.arrive(move)
    except StoreError:
        carrier.give_up(move)
        raise
    return Carried(transfer, swapped)


def exchange(carrier: Carrier, receipt: Receipt) -> Iterator[Carried]:
    """Carry out all moves that a receipt's promise needs, and name each when it is complete.

    Raises `UnknownReceipt`; `StoreError` where a copy fails, after which what was moved before
    stays where it is.
    """
    while (transfer := policy.next_transfer(carrier.state, receipt)) is not None:
        yield carry_out(carrier, transfer)
