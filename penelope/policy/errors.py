"""Every way in which Penelope says no."""

from __future__ import annotations


class PenelopeError(Exception):
    """Base of every error that a user can cause; its text is one line."""


class InvalidConfigError(PenelopeError):
    """A configuration that no cache can run with."""


class Refused(PenelopeError):
    """A transition that may not happen in this state.  The state stays as it was."""


class InvalidKey(Refused):
    """The key is not a whole number of units."""


class InvalidAmount(Refused):
    """A number of units that no transition can take."""


class StalePlan(Refused):
    """A match or plan is applied to another state than the one it was made on."""


class UnknownReceipt(Refused):
    """The receipt was never issued, or it was released before."""


class RequestTooLarge(Refused):
    """The request does not fit the device even when nothing else runs."""


class InsufficientSpace(Refused):
    """Free and unlocked KV together are less than what is needed now."""


class OverCapacity(Refused):
    """More KV is offered for adoption than is reserved or free."""


class NotAPrefix(Refused):
    """The key does not continue the path that it claims to continue."""


class NotBeingRefilled(Refused):
    """The span is not a hole that this receipt has undertaken to refill."""


class InFlight(Refused):
    """A span on the path is being moved between the tiers: wait for it, or fail the move."""


class UnknownTicket(Refused):
    """The queue has no such ticket."""


class UnknownMove(Refused):
    """The move was never started, or it has ended: a late completion changes nothing."""


class NothingToMove(Refused):
    """The transfer is not the next one that the state asks for."""


class InUse(Refused):
    """Live receipts stand in the way."""
