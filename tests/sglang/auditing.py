"""Whether the adapter, SGLang's pools and SGLang's requests agree about who owns what."""

from __future__ import annotations

from typing import Any

import torch

from penelope.policy import Residency
from penelope.sglang_adapter.cache import PenelopeCache
from penelope_spec import check_state


def audit(cache: PenelopeCache, owners: list[Any]) -> None:
    """Every slot has exactly one owner, no row reads a placeholder, every named invariant holds."""
    page = cache.page_size
    allocator = cache.token_to_kv_pool_allocator
    owned = [allocator.get_all_free_pages()]
    resident = 0
    for node, start, slots in cache.slots.items():
        label = cache.state.nodes[node]
        assert (label.start, label.end) == (start, start + len(slots)), f"node {node} moved"
        resident += len(slots)
        owned.append(slots[::page] // page)
    rows = cache.req_to_token_pool.req_to_token
    for req in owners:
        row = rows[req.kv.req_pool_idx, : req.kv.kv_allocated_len].to(torch.int64)
        assert not (row < page).any(), f"{req.rid} reads a placeholder"
        owned.append(row[req.kv.cache_protected_len :: page] // page)
    pages = torch.cat(owned)
    assert len(torch.unique(pages)) == len(pages), "a page has two owners"
    assert len(pages) == allocator.size // page, (
        f"{len(pages)} pages have an owner, there are {allocator.size // page}"
    )
    totals = cache.state.totals
    assert totals.device == resident, f"{resident} slots are resident, not {totals.device}"
    assert totals.reserved == 0, "SGLang reserves, the core does not"
    assert not cache.state.moves, "a move is in flight between two steps"
    if cache.host is not None:
        _audit_host(cache)
    violations = check_state(cache.state)
    assert not violations, violations


def _audit_host(cache: PenelopeCache) -> None:
    assert cache.host is not None
    pool: Any = cache.host.pool
    held = [slots for _, _, slots in cache.slots.items(Residency.HOST)]
    slots = torch.cat(held) if held else torch.empty(0, dtype=torch.int64)
    assert len(torch.unique(slots)) == len(slots), "a host slot has two owners"
    assert len(slots) == cache.state.totals.host, "host slots are not those of the tree"
    # Only an exchange that was broken off may leave KV in the buffer; later ones make do with it.
    broken_off = cache.statistics.counts.failed_moves > 0
    assert not cache.state.staged or broken_off, "KV is left in the swap buffer"
    assert pool.available_size() + len(slots) == pool.size, "a host slot is lost"
    assert pool.slot_used[slots].all(), "a host slot of the tree is free"
