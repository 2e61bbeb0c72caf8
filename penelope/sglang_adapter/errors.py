"""What the adapter refuses."""

from penelope.policy import PenelopeError


class UnsupportedError(PenelopeError):
    """A combination in which Penelope would not work, with the reason."""
