"""Admission of requests with holes: SGLang's own, with phantoms added and paid for.

A request whose path has holes is admitted together with one phantom a hole, in
front of it, all in one batch.  When the step's budget of tokens or rows is too
small for that, as many leading parts of the holes as fit are refilled now and
the request stays in the queue for the next step (`Refilling`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder

from penelope.sglang_adapter.cache import PenelopeCache
from penelope.sglang_adapter.paths import Path, Range, covered
from penelope.sglang_adapter.phantom import Phantom

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.base_prefix_cache import TreeLock

PATCHES = "penelope_patches"
"""Attribute of a request in a new batch: spans of its row that are refilled in this batch."""
COMPUTED = "penelope_computed"
"""Attribute of a request in a new batch: tokens of its prefix that were computed for it."""


class PenelopeAdder(PrefillAdder):
    """SGLang's admission, which knows what a hole costs."""

    tree_cache: PenelopeCache
    rem_chunk_tokens: int | None
    rem_input_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Holes of the request under consideration, paid for in selection and commit.
        self._holes: tuple[Range, ...] = ()
        self._user_limit: int | None = self.prefill_max_requests

    @property
    def _phantoms(self) -> int:
        return sum(isinstance(req, Phantom) for req in self.can_run_list)

    def add_one_req(
        self, req: Req, has_chunked_req: bool, truncation_align_size: int | None
    ) -> AddReqResult:
        if self._user_limit is not None:
            # The limit is meant for users' requests.
            self.prefill_max_requests = self._user_limit + self._phantoms
        path: Path = req.last_node
        verdict = self._admit(req, path, has_chunked_req, truncation_align_size)
        refilling = self.tree_cache.refilling
        if refilling.req is req:
            if req in self.can_run_list:
                refilling.drop(self.tree_cache)
            elif not any(isinstance(r, Phantom) and r.served is req for r in self.can_run_list):
                # No progress in this step: hold no memory while waiting.
                refilling.let_go(self.tree_cache)
        return verdict

    def _admit(
        self, req: Req, path: Path, has_chunked_req: bool, truncation_align_size: int | None
    ) -> AddReqResult:
        if not path.holes:
            return super().add_one_req(req, has_chunked_req, truncation_align_size)
        tokens = sum(end - start for start, end in path.holes)
        enough_rows = self._free_rows() > len(path.holes)
        # The request itself needs room for a page, or it cannot join its own refill.
        enough_tokens = (
            self.rem_chunk_tokens is None or self.rem_chunk_tokens - tokens >= self.page_size
        )
        if enough_rows and enough_tokens:
            self._holes = path.holes
            try:
                return super().add_one_req(req, has_chunked_req, truncation_align_size)
            finally:
                self._holes = ()
        return self._refill_part(req, path)

    # Everything fits in one batch

    def _select_prefill_admission(self, req: Req, *, total_tokens: int, **kwargs: Any) -> Any:
        tokens = sum(end - start for start, end in self._holes)
        if not tokens:
            return super()._select_prefill_admission(req, total_tokens=total_tokens, **kwargs)
        with self._reserved_for_holes(tokens):
            return super()._select_prefill_admission(
                req, total_tokens=total_tokens + tokens, **kwargs
            )

    @contextmanager
    def _reserved_for_holes(self, tokens: int) -> Iterator[None]:
        chunk, budget = self.rem_chunk_tokens, self.rem_input_tokens
        if chunk is not None:
            self.rem_chunk_tokens = chunk - tokens
        self.rem_input_tokens = budget - tokens
        try:
            yield
        finally:
            self.rem_chunk_tokens, self.rem_input_tokens = chunk, budget

    def _commit_prefill_admission(self, req: Req, admission: Any, mamba_gap_reserve: int) -> None:
        path: Path = req.last_node
        holes, self._holes = self._holes, ()
        refilling = self.tree_cache.refilling
        resumed = refilling.req is req
        before = refilling.filled if resumed else []
        self._count(req, path, [*path.holes, *path.awaits, *before])
        if resumed:
            # Where SGLang counts a prefix by tier, these were the host's.
            req.host_hit_length += refilling.brought
            req.host_loaded_length += refilling.brought
        if not path.missing:
            super()._commit_prefill_admission(req, admission, mamba_gap_reserve)
            return
        lock = self.tree_cache.lock_for_refill(path) if holes else None
        for span in holes:
            assert lock is not None
            self._add_phantom(req, path, span, lock)
        super()._commit_prefill_admission(req, admission, mamba_gap_reserve)
        if lock is not None:
            # The request's lock is the one that has undertaken the refill.
            plain, req.lock = req.lock, lock
            self.tree_cache.unlock(plain)
        setattr(req, PATCHES, path.holes + path.awaits)
        self.tree_cache.statistics.add("shared_holes", len(path.awaits))

    def _add_phantom(self, req: Req, path: Path, span: Range, refills: TreeLock) -> None:
        """Charge and queue the recomputation of one span, in front of the request."""
        lock = self.tree_cache.lock(path)
        phantom = Phantom(req, span, self._phantoms, lock=lock, refills=refills)
        # Earlier holes of the path lie in the phantom's own prefix.
        setattr(
            phantom,
            PATCHES,
            tuple(r for r in path.holes + path.awaits if r[0] < span[0]),
        )
        self.can_run_list.append(phantom)
        self._update_prefill_budget(0, span[1] - span[0], 0, False)
        self.tree_cache.statistics.add("phantoms")

    def _count(self, req: Req, path: Path, computed: list[Range]) -> None:
        """SGLang takes the whole matched prefix for a hit; what phantoms compute is not."""
        tokens = covered(computed, path.end)
        if not tokens:
            return
        first = min(start for start, _ in computed)
        self.tree_cache.statistics.add("reused_behind_hole_tokens", path.end - first - tokens)
        setattr(req, COMPUTED, tokens)
        self.log_hit_tokens -= tokens
        if req.retracted_stain:
            self.reprocessed_log_hit_tokens -= tokens
        else:
            self.log_device_hit_tokens -= tokens

    # Only a part fits

    def _refill_part(self, req: Req, path: Path) -> AddReqResult:
        if not self.tree_cache.refilling.may_begin(req):
            return AddReqResult.OTHER
        parts = self._leading_parts(path)
        if not parts:
            return AddReqResult.OTHER
        with self._lock_node(path):
            # The whole request must fit, or its first part would wait in vain for the rest.
            if self._tokens_of(req, path) >= self.rem_total_tokens:
                return AddReqResult.NO_TOKEN
            # What comes after the hole is brought back now: nobody can evict it any more.
            if not self.tree_cache.bring(path):
                return AddReqResult.OTHER
            lock = self.tree_cache.lock_for_refill(path)
        for span in parts:
            self._add_phantom(req, path, span, lock)
        self.tree_cache.refilling.hold(req, lock, parts, self.tree_cache, path.host)
        self.tree_cache.statistics.add("partial_refills")
        return AddReqResult.OTHER

    def _leading_parts(self, path: Path) -> list[Range]:
        """As much of the holes, in position order, as the step's tokens and rows allow."""
        rows = self._free_rows()
        tokens = path.end
        if self.rem_chunk_tokens is not None:
            tokens = int(self.rem_chunk_tokens) // self.page_size * self.page_size
        parts: list[Range] = []
        for start, end in path.holes[:rows]:
            if tokens <= 0:
                break
            parts.append((start, min(end, start + tokens)))
            tokens -= end - start
        return parts

    def _tokens_of(self, req: Req, path: Path) -> int:
        """What the request must still allocate in the end: missing and new tokens, and output."""
        new = len(req.full_untruncated_fill_ids) - path.end
        output = max(req.sampling_params.max_new_tokens - len(req.output_ids), 0)
        holes = sum(end - start for start, end in path.holes)
        return path.host + holes + new + min(output, _output_limit()) + self.page_size

    def _free_rows(self) -> int:
        """Rows of the request pool that this batch has not promised yet."""
        promised = sum(not req.kv.holds_kv for req in self.can_run_list)
        return int(self.tree_cache.req_to_token_pool.available_size()) - promised

    # Preemption

    def preempt_to_schedule(self, req: Req) -> bool:
        path: Path | None = req.last_node
        missing = path.missing if path is not None else 0
        # Preemption makes room for what is computed: the holes as well as what is new.
        req.prefix_len -= missing
        try:
            return bool(super().preempt_to_schedule(req))
        finally:
            req.prefix_len += missing


def _output_limit() -> int:
    from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS

    return int(CLIP_MAX_NEW_TOKENS)
