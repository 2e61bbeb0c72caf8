"""The same as tests: inherit, say how a store is made, and any test runner finds the rest."""

from __future__ import annotations

from typing import ClassVar

from penelope.policy import Config
from penelope.testing.conformance import ONE_TIER, TWO_TIERS, Report, check_store
from penelope.testing.inspect import InspectableStore


class StoreSuite:
    """Tests of a store: the class needs no pytest itself.

    class TestMyStore(StoreSuite):
        def make_store(self, config):
            return MyStore(config.device_capacity, config.host_capacity)
    """

    one_tier: ClassVar[Config] = ONE_TIER
    two_tiers: ClassVar[Config | None] = TWO_TIERS
    """None for a store without a host tier."""
    operations: ClassVar[int] = 400
    seeds: ClassVar[tuple[int, ...]] = (0, 1, 2)
    misuse: ClassVar[bool] = True
    """False for a store that trusts its callers."""

    def make_store(self, config: Config) -> InspectableStore:
        """A new, empty store with the capacities of the configuration."""
        raise NotImplementedError("say how a store is made: override make_store")

    def test_one_tier(self) -> None:
        """Requests, holes, refills and evictions on the device."""
        for report in self._reports(self.one_tier):
            assert min(report.seen[name] for name in ("admitted", "refilled", "evicted")) > 0

    def test_two_tiers(self) -> None:
        """And KV that moves between the device and the host."""
        if self.two_tiers is None:
            return
        for report in self._reports(self.two_tiers):
            moved = [report.seen[f"copied to the {tier}"] for tier in ("device", "host")]
            assert min(moved) > 0, f"no copy has succeeded: {report}"

    def _reports(self, config: Config) -> list[Report]:
        return [
            check_store(
                self.make_store,
                config=config,
                operations=self.operations,
                seed=seed,
                misuse=self.misuse,
            )
            for seed in self.seeds
        ]
