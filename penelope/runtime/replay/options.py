"""What a user chooses about one setting, in the words of the command line."""

from __future__ import annotations

from dataclasses import dataclass

from penelope.cost import CostModel
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.announcing import Announce
from penelope.runtime.model_config import load_model
from penelope.runtime.replay.compare import Setting
from penelope.runtime.replay.fleet import Failure, FleetSetting
from penelope.runtime.replay.server import LONGEST, Scheduler, Timing

TRANSFERS = ("overlapped", "serial")

MODES = tuple(mode.value for mode in Announce)

MOST = 1 << 40
"""Tokens or sessions: the KV of this many would fill more memory than there is anywhere."""

_SIZES = (
    *("concurrency", "device_tokens", "host_tokens", "swap_tokens"),
    *("block_tokens", "page_tokens", "chunk_tokens"),
)
_TIMES = ("seconds_per_unit", "seconds_per_prefill", "seconds_per_output_token")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one setting, not checked yet.  Sizes in tokens."""

    model: str = "qwen3-8b"
    """A preset, or a path to a Hugging Face `config.json`."""
    device_tokens: int = 262_144
    host_tokens: int = 0
    """0: one tier."""
    swap_tokens: int = 1024
    concurrency: int = 4
    scheduler: str = "lpm"
    block_tokens: int | None = None
    """None: see `Setting`."""
    page_tokens: int | None = None
    sticky_shared: bool = False
    chunk_tokens: int = 8192
    effective_tflops: float = 400.0
    """What a prefill gets out of an H100 (989 TFLOP/s dense bf16) at some 40 % utilisation."""
    seconds_per_unit: float | None = None
    """Instead of `effective_tflops`: seconds per cost unit."""
    seconds_per_prefill: float = 0.02
    seconds_per_output_token: float = 0.02
    host_gbps: float = 50.0
    """What a copy gets out of PCIe 5.0 with 16 lanes (63 GB/s each way)."""
    transfers: str = TRANSFERS[0]
    replicas: int = 1
    router: str = "session"
    """In front of several replicas."""
    kv_events: str = Announce.STICKY.value
    event_lag: float = 0.0
    """Seconds."""
    fail: str = ""
    """`replica@seconds`, comma-separated."""

    def setting(self, cost: CostModel | None = None) -> Setting:
        """What they mean; `cost` is the model's, where it has been read already.

        Raises `PenelopeError` naming the option that cannot be.
        """
        self._check_numbers()
        cost = load_model(self.model) if cost is None else cost
        timing = Timing(
            self._seconds_per_unit(cost),
            self.seconds_per_prefill,
            self.seconds_per_output_token,
            self.chunk_tokens,
            self._seconds_per_copied_token(cost),
            self._overlapped(),
        )
        return Setting(
            cost,
            timing,
            self.device_tokens,
            self.concurrency,
            self._scheduler(),
            self.block_tokens,
            self.page_tokens,
            self.sticky_shared,
            self.host_tokens,
            self.swap_tokens,
            self._fleet(),
        )

    def _fleet(self) -> FleetSetting:
        if self.kv_events not in MODES:
            raise InvalidConfigError(
                f"--kv-events {self.kv_events} is not known: choose from {', '.join(MODES)}"
            )
        fleet = FleetSetting(
            self.replicas,
            self.router,
            Announce(self.kv_events),
            self.event_lag,
            failures(self.fail),
        )
        fleet.check((), self.host_tokens)
        return fleet

    def _check_numbers(self) -> None:
        for name in ("concurrency", "device_tokens", "chunk_tokens"):
            if getattr(self, name) < 1:
                raise InvalidConfigError(f"{_flag(name)} is {getattr(self, name)}: give 1 or more")
        if self.host_tokens < 0:
            raise InvalidConfigError(
                f"--host-tokens is {self.host_tokens}: give 0 for one tier, or more"
            )
        for name in _SIZES:
            value = getattr(self, name)
            if value is not None and value > MOST:
                raise InvalidConfigError(f"{_flag(name)} is {value}: give {MOST} at most")
        for name in _TIMES:
            value = getattr(self, name)
            # So written that "not a number" is refused too.
            if value is not None and not 0 <= value <= LONGEST:
                raise InvalidConfigError(
                    f"{_flag(name)} is {value}: give a number from 0 to {LONGEST:.0f}"
                )

    def _seconds_per_unit(self, cost: CostModel) -> float:
        if self.seconds_per_unit is not None:
            return self.seconds_per_unit
        # So written that "not a number" is refused too; below, a time would leave the floats.
        if not 1e-6 <= self.effective_tflops <= 1e9:
            raise InvalidConfigError(
                f"--effective-tflops is {self.effective_tflops}: give a number from 1e-6 to 1e9"
            )
        return cost.flops_per_unit / (self.effective_tflops * 1e12)

    def _seconds_per_copied_token(self, cost: CostModel) -> float:
        # As above: neither "not a number" nor a time that leaves the floats.
        if not 1e-3 <= self.host_gbps <= 1e9:
            raise InvalidConfigError(
                f"--host-gbps is {self.host_gbps}: give a number from 1e-3 to 1e9"
            )
        return cost.kv_bytes_per_token / (self.host_gbps * 1e9)

    def _overlapped(self) -> bool:
        if self.transfers not in TRANSFERS:
            raise InvalidConfigError(
                f"--transfers {self.transfers} is not known: choose from {', '.join(TRANSFERS)}"
            )
        return self.transfers == TRANSFERS[0]

    def _scheduler(self) -> Scheduler:
        try:
            return Scheduler(self.scheduler)
        except ValueError:
            known = ", ".join(s.value for s in Scheduler)
            raise InvalidConfigError(
                f"unknown scheduler '{self.scheduler}': choose from {known}"
            ) from None


def failures(text: str) -> tuple[Failure, ...]:
    """What `--fail` says: `1@600,2@900`.  Raises `InvalidConfigError`."""
    found = []
    for part in filter(None, text.split(",")):
        replica, _, seconds = part.strip().partition("@")
        try:
            found.append(Failure(int(replica), float(seconds)))
        except ValueError:
            raise InvalidConfigError(
                f"--fail {part!r} is no failure: give replica@seconds, such as 1@600"
            ) from None
    return tuple(found)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
