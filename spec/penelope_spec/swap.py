"""Theorems about two tiers in numbers: admission, demotion, and the chunked exchange.

Capacities: the device holds `device`, the host keeps `keeps` and has a swap buffer of `buffer`
besides.  `others` is what running requests hold or were promised on the device.

KV moves in whole pages and requests hold units, so T3 counts pages: those that are free whole, and
those that are due once the free units that fill no page are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penelope_spec.arithmetic import Arithmetic
from penelope_spec.logic import Element, Truth
from penelope_spec.smt import every, integer, some, when

ALL: Final = "all integers"


def _positive(value: Element) -> Element:
    return when(value > 0, value, 0)


def _least(one: Element, other: Element) -> Element:
    return when(one < other, one, other)


# T1 and T2: what is dropped, and what must then be demoted

(
    _device,
    _keeps,
    _reserved,
    _due,
    _promote,
    _inbound,
    _locked,
    _unlocked,
    _on_host,
    _locked_host,
    _matched,
    _fresh,
    _drop,
    _from_device,
    _from_host,
    _demote,
) = (
    integer(name)
    for name in (
        "device",
        "keeps",
        "reserved",
        "due",
        "promote",
        "inbound",
        "locked",
        "unlocked",
        "on_host",
        "locked_host",
        "matched_host",
        "fresh",
        "drop",
        "dropped_on_device",
        "dropped_on_host",
        "demote",
    )
)
_others: Final = _reserved + _due + _promote + _inbound
_total: Final = _locked + _unlocked + _on_host + _reserved + _due + _fresh

_FITS: Final[dict[str, Truth]] = {
    "the request fits the device beside what is locked or promised": _matched + _fresh
    <= _device - _others - _locked
}
_MUST_DROP: Final[dict[str, Truth]] = {
    "dropped is what the tiers together must lose": _drop == _positive(_total - _device - _keeps)
}
_DROPPED: Final[dict[str, Truth]] = {
    "at least what the tiers must lose is dropped, wherever it lies": _from_device + _from_host
    >= _total - _device - _keeps,
    "demoted is what the device lacks after that": _demote
    == _positive(_matched + _fresh + _others - (_device - _locked - (_unlocked - _from_device))),
}
_NUMBERS: Final = every(
    *(n > 0 for n in (_matched, _fresh, _locked, _reserved, _from_device, _from_host, _demote)),
    *(n >= 0 for n in (_due, _promote, _inbound, _locked_host, _keeps)),
    _from_device < _unlocked,
    _from_host <= _on_host - _matched,
)


def admission() -> list[Arithmetic]:
    return [
        Arithmetic(
            "what must be dropped for a request that fits the device can be dropped",
            "progress",
            ALL,
            {
                **_FITS,
                **_MUST_DROP,
                "locked host KV is promised a place, or fits what the host keeps": _locked_host
                <= _keeps + _promote + _inbound,
                "what is not locked is no less than nothing": every(
                    _unlocked >= 0, _on_host >= _matched + _locked_host
                ),
            },
            _drop <= _unlocked + _on_host - _matched - _locked_host,
            every(_NUMBERS, _drop > 0),
        ),
        Arithmetic(
            "what must be demoted after the drop is there to be demoted",
            "progress",
            ALL,
            {
                **_FITS,
                **_DROPPED,
                "no more is dropped on the device than is not locked": _from_device <= _unlocked,
            },
            _demote <= _unlocked - _from_device,
            _NUMBERS,
        ),
        Arithmetic(
            "after drop and moves the host holds no more than it keeps",
            "bounded-swap",
            ALL,
            {
                **_DROPPED,
                "what is staged is for promotions to come": _on_host
                <= _keeps + _promote + _inbound,
                "amounts are no less than nothing": every(_matched >= 0, _from_host >= 0),
            },
            _on_host - _from_host - _matched - _promote - _inbound + _demote <= _keeps,
            _NUMBERS,
        ),
    ]


# T3: the exchange


@dataclass(frozen=True, slots=True)
class Plan:
    """Where an exchange stands, in pages: `host` in use, device `free`, what is still to do."""

    keeps: Element
    buffer: Element
    host: Element
    free: Element
    due: Element
    """Device pages that must be free in the end."""
    promote: Element
    """Host pages still to bring."""

    @property
    def demote(self) -> Element:
        """Device pages still to take away: what is due and to come, less what is free."""
        return _positive(self.due + self.promote - self.free)

    @property
    def room(self) -> Element:
        """How much may be demoted now."""
        return self.keeps - self.host + _least(self.buffer, self.promote)

    def sound(self) -> dict[str, Truth]:
        """What holds at every step."""
        return {
            "amounts are no less than nothing": every(
                *(n >= 0 for n in (self.keeps, self.host, self.free, self.due, self.promote)),
                self.buffer > 0,
                self.promote <= self.host,
            ),
            "in the end the host holds what it keeps": self.host - self.promote + self.demote
            <= self.keeps,
            "as much as is staged is free on the device": self.host - self.keeps <= self.free,
            "what is staged fits the buffer": self.host - self.keeps <= self.buffer,
        }

    def promoted(self, units: Element) -> Plan:
        return Plan(
            self.keeps,
            self.buffer,
            self.host - units,
            self.free - units,
            self.due,
            self.promote - units,
        )

    def demoted(self, units: Element) -> Plan:
        return Plan(
            self.keeps, self.buffer, self.host + units, self.free + units, self.due, self.promote
        )


PLAN: Final = Plan(
    *(integer(name) for name in ("keeps", "buffer", "host", "free", "due", "promote"))
)
_units: Final = integer("units")
_block: Final = integer("block")
PROMOTION: Final[dict[str, Truth]] = {
    "something is promoted": _units > 0,
    "it is still to be promoted": _units <= PLAN.promote,
    "it fits what is free": _units <= PLAN.free,
}
DEMOTION: Final[dict[str, Truth]] = {
    "something is demoted": _units > 0,
    "it is still to be demoted": _units <= PLAN.demote,
    "it fits what the host keeps and promotions will empty": _units <= PLAN.room,
}
_page, _rest, _due_units, _free_units = (
    integer(name) for name in ("page", "rest", "due_units", "free_units")
)
IN_PAGES: Final[dict[str, Truth]] = {
    "the free units fill whole pages, and a rest": _free_units == _page * PLAN.free + _rest,
    "as few pages are due as hold the units that are due beyond the rest": every(
        _page * (PLAN.due - 1) < _due_units - _rest, _due_units - _rest <= _page * PLAN.due
    ),
}
"""How `free` and `due` in pages come of free and due units (`in_pages`)."""
_BUSY: Final = every(PLAN.promote > 1, PLAN.demote > 1, PLAN.host > PLAN.keeps, PLAN.due > 0)


def exchange() -> list[Arithmetic]:
    sound = PLAN.sound()
    after_promotion, after_demotion = PLAN.promoted(_units), PLAN.demoted(_units)
    too_many = "it fits what the host keeps and promotions will empty"
    return [
        Arithmetic(
            "what is due is free in units exactly when it is free in pages",
            "progress",
            ALL,
            IN_PAGES,
            (_due_units <= _free_units) == (PLAN.due <= PLAN.free),
            every(PLAN.due > 1, _page > 1, _rest > 0),
            {
                "rounding what is due down": {
                    "as few pages are due as hold the units that are due beyond the rest": every(
                        _page * PLAN.due <= _due_units - _rest,
                        _due_units - _rest < _page * (PLAN.due + 1),
                    )
                }
            },
        ),
        Arithmetic(
            "after the drop an exchange begins soundly",
            "bounded-swap",
            ALL,
            {
                "amounts are no less than nothing": sound["amounts are no less than nothing"],
                "nothing is staged": PLAN.host <= PLAN.keeps,
                "in the end the host holds what it keeps": sound[
                    "in the end the host holds what it keeps"
                ],
            },
            every(*sound.values()),
            every(PLAN.promote > 1, PLAN.demote > 1, PLAN.due > 0),
        ),
        Arithmetic(
            "a promotion keeps the exchange sound",
            "bounded-swap",
            ALL,
            {**sound, **PROMOTION},
            every(*after_promotion.sound().values()),
            every(PLAN.host > PLAN.keeps, PLAN.due > 0),
        ),
        Arithmetic(
            "a demotion keeps the exchange sound",
            "bounded-swap",
            ALL,
            {**sound, **DEMOTION},
            every(*after_demotion.sound().values()),
            every(PLAN.promote > 1, after_demotion.host > PLAN.keeps),
            {
                "staging one block too many": {
                    too_many: every(_block > 0, _units <= PLAN.room + _block)
                },
                "staging as if the buffer were endless": {
                    too_many: _units <= PLAN.keeps - PLAN.host + PLAN.promote
                },
            },
        ),
        Arithmetic(
            "until an exchange is done there is a step to take",
            "progress",
            ALL,
            {
                **sound,
                "something is to be done": PLAN.promote + PLAN.demote > 0,
            },
            some(
                every(PLAN.promote > 0, PLAN.free > 0),
                every(PLAN.demote > 0, PLAN.room > 0),
            ),
            _BUSY,
        ),
        Arithmetic(
            "every promotion leaves less to do",
            "progress",
            ALL,
            PROMOTION,
            after_promotion.promote + after_promotion.demote < PLAN.promote + PLAN.demote,
            _BUSY,
        ),
        Arithmetic(
            "every demotion leaves less to do",
            "progress",
            ALL,
            DEMOTION,
            after_demotion.promote + after_demotion.demote < PLAN.promote + PLAN.demote,
            _BUSY,
        ),
        Arithmetic(
            "when an exchange is done the buffer is empty and what is due is free",
            "bounded-swap",
            ALL,
            {
                "in the end the host holds what it keeps": sound[
                    "in the end the host holds what it keeps"
                ],
                "nothing is left to promote": PLAN.promote == 0,
                "nothing is left to demote": PLAN.demote == 0,
            },
            every(PLAN.host <= PLAN.keeps, PLAN.due <= PLAN.free),
            every(PLAN.host > 0, PLAN.due > 0),
        ),
    ]
