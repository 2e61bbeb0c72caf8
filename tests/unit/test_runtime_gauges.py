"""What is exported of a tier: one number for one thing."""

from __future__ import annotations

import pytest

from penelope.policy import Residency, Transfer
from penelope.runtime.gauges import Gauge, gauge
from tests.cases.scene import Scene

G, C = Residency.DEVICE, Residency.HOST


def test_only_what_moves_for_a_request_that_has_ended_is_orphaned() -> None:
    s = Scene(capacity=8, keeps=8, swap=2)
    s.insert("abcd")
    s.move("abcd", 0, C)
    r = s.begin("abcde")
    transfer = s.next(r)
    assert isinstance(transfer, Transfer)
    move = s.depart(transfer)
    assert gauge(s.state, G) == Gauge(resident=0, evictable=0, in_transfer=4, orphaned=0)
    s.release(r)
    assert gauge(s.state, G) == Gauge(resident=0, evictable=0, in_transfer=4, orphaned=4)
    assert gauge(s.state, C) == Gauge(resident=4, evictable=0, in_transfer=0, orphaned=0)
    s.give_up(move)
    assert gauge(s.state, G) == Gauge(resident=0, evictable=0, in_transfer=0, orphaned=0)


def test_a_hole_is_no_tier() -> None:
    with pytest.raises(ValueError, match="choose DEVICE or HOST"):
        gauge(Scene().state, Residency.HOLE)
