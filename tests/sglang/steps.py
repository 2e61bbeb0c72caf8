"""Scheduler steps without an engine: SGLang's own requests, batches and pools, on the CPU.

    s = Steps(pool=64, page=4)
    s.prefill(s.request("a", tokens))

A model is left out.  What it would write is a digest of all tokens up to a position, so a slot
shows whose KV it holds; after every batch each request must find its own history in its row.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from penelope.policy import Key, Order, Residency, match
from penelope.sglang_adapter.options import Options
from penelope.sglang_adapter.paths import namespace_of, pack_tokens

DEVICE, HOST = Residency.DEVICE, Residency.HOST
LETTERS = {DEVICE: "G", HOST: "C", Residency.HOLE: "_"}


@contextmanager
def published() -> Iterator[None]:
    """SGLang's settings as for a model that is not there."""
    from sglang.srt.runtime_context import get_context

    override = get_context().override_server_args(device="cpu")
    override.install()
    try:
        yield
    finally:
        override.restore()


class Steps:
    """One cache over small pools, driven as SGLang's scheduler drives it."""

    def __init__(
        self,
        *,
        pool: int = 64,
        page: int = 4,
        host: int = 0,
        swap: int = 0,
        rows: int = 16,
        block: int | None = None,
        events: bool = False,
        order: Order = Order.LRU,
        queue: bool = False,
    ) -> None:
        import torch
        from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool

        from penelope.sglang_adapter.cache import PenelopeCache

        self.torch = torch
        self.page = page
        self.kv: Any = MHATokenToKVPool(
            pool,
            page_size=page,
            dtype=torch.float32,
            head_num=1,
            head_dim=4,
            layer_num=2,
            device="cpu",
            enable_memory_saver=False,
        )
        self.allocator: Any = PagedTokenToKVPoolAllocator(
            pool, page, torch.float32, "cpu", self.kv, need_sort=False
        )
        self.rows: Any = ReqToTokenPool(rows, 512, "cpu", enable_memory_saver=False)
        options = Options(
            block_size=block or page,
            host_tokens=host,
            swap_tokens=swap or None,
            order=order,
            queue_in_view=queue,
        )
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=page,
            enable_kv_cache_events=events,
        )
        self.cache = PenelopeCache(params, options)
        self.waiting: list[Any] = []
        """Requests that wait, in order of service; not those that a test offers itself."""
        self.cache.line.follow(lambda: self.waiting)
        self.running: list[Any] = []
        """Requests that hold a row."""
        self.stream: list[Callable[[], None]] | None = None
        """Where there is one, work on KV waits here, in order, until it is told to run."""

    # What a scheduler does

    def request(self, rid: str, tokens: Sequence[int], new: int = 1, **more: Any) -> Any:
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True)
        sampling.normalize(None)
        return Req(rid, "", array("q", tokens), sampling, vocab_size=1000, **more)

    def admit(self, *reqs: Any, chunk: int | None = None) -> Any:
        """Offer requests to one step; returns the adder with what may run."""
        from penelope.sglang_adapter.admission import PenelopeAdder

        adder = PenelopeAdder(
            self.page,
            self.cache,
            self.allocator,
            SimpleNamespace(reqs=[r for r in self.running if r not in reqs]),
            1.0,
            10_000,
            chunk,
        )
        for req in reqs:
            req.init_next_round_input(self.cache)
            if adder.add_one_req(req, False, None).name != "CONTINUE":
                break
        return adder

    def launch(self, reqs: list[Any]) -> Any:
        """Give a batch its slots and compute it; its result is not known yet."""
        from sglang.srt.managers.schedule_batch import ScheduleBatch
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        from penelope.sglang_adapter.hooks import adopt_and_patch

        batch = ScheduleBatch.init_new(
            list(reqs),
            self.rows,
            self.allocator,
            self.cache,
            SimpleNamespace(vocab_size=1000, is_encoder_decoder=False, is_multimodal=False),
            False,
            SpeculativeAlgorithm.NONE,
        )
        batch.prepare_for_extend()
        adopt_and_patch(None, batch)
        self.running += [r for r in reqs if r not in self.running]
        for req in reqs:
            self._write(req, req.prefix_len, req.extend_end)
        for req in reqs:
            self.reads(req, req.extend_end)
        return batch

    def settle(self, batch: Any) -> None:
        """The batch's result is in."""
        from sglang.srt.mem_cache.common import checkpoint_kv_cache

        from penelope.sglang_adapter.hooks import release_phantoms

        release_phantoms(None, SimpleNamespace(tree_cache=self.cache), batch)
        self.running = [r for r in self.running if r.kv.holds_kv]
        for req in batch.reqs:
            if req not in self.running:
                continue
            if req.extend_end == len(req.full_untruncated_fill_ids):
                req.output_ids.append(900 + len(req.output_ids))
            checkpoint_kv_cache(req, self.cache)
        self.audit()

    def prefill(self, *reqs: Any, chunk: int | None = None) -> list[Any]:
        """One step; returns the batch's requests, phantoms in front of whom they serve."""
        ready: list[Any] = self.admit(*reqs, chunk=chunk).can_run_list
        if ready:
            self.settle(self.launch(ready))
        return ready

    def start(self, req: Any, chunk: int | None = None) -> int:
        """Refill its holes and compute its prompt, in as many steps as it takes; how many."""
        for step in range(1, 100):
            if not req.kv.holds_kv:
                assert req in self.prefill(req, chunk=chunk) or self.refills(req), "it is stuck"
            else:
                adder = self.admit(chunk=chunk)
                req.init_next_round_input()
                adder.add_chunked_req(req)
                self.settle(self.launch(adder.can_run_list))
            if req.extend_end == len(req.origin_input_ids):
                return step
        raise AssertionError(f"{req.rid} was never admitted")

    def decode(self, *reqs: Any) -> bool:
        """One decode step of requests that are running; False if SGLang would have to retract."""
        batch = self._decoding(reqs)
        if not batch.check_decode_mem():
            return False
        for req in reqs:
            req.refresh_fill_ids()
        from sglang.srt.mem_cache.allocation import alloc_for_decode

        alloc_for_decode(batch, token_per_req=1)
        for req in reqs:
            length = req.kv.kv_committed_len
            self._write(req, length - 1, length)
            self.reads(req, length)
            req.output_ids.append(900 + len(req.output_ids))
        self.audit()
        return True

    def retract(self, *reqs: Any) -> list[Any]:
        """Retract from these running requests until the rest can decode; who had to go."""
        batch = self._decoding(reqs)
        gone: list[Any] = batch.retract_decode()[0]
        self.running = [r for r in self.running if r.kv.holds_kv]
        self.audit()
        return gone

    def _decoding(self, reqs: Sequence[Any]) -> Any:
        from sglang.srt.managers.schedule_batch import ScheduleBatch
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        batch = ScheduleBatch.init_new(
            list(reqs),
            self.rows,
            self.allocator,
            self.cache,
            SimpleNamespace(vocab_size=1000, is_encoder_decoder=False),
            False,
            SpeculativeAlgorithm.NONE,
        )
        batch.sampling_info = SimpleNamespace(filter_batch=lambda *_: None)
        lengths = [req.kv.kv_committed_len for req in reqs]
        batch.seq_lens = batch.seq_lens_cpu = batch.orig_seq_lens = self.torch.tensor(lengths)
        rows = [req.kv.req_pool_idx for req in reqs]
        batch.req_pool_indices = batch.req_pool_indices_cpu = self.torch.tensor(rows)
        return batch

    def finish(self, req: Any, *, checkpoint: bool = True) -> None:
        """The request ends; without a checkpoint it was aborted."""
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH
        from sglang.srt.mem_cache.common import release_kv_cache

        req.finished_reason = FINISH_LENGTH(len(req.output_ids))
        req.finished_len = len(req.output_ids)
        release_kv_cache(req, self.cache, checkpoint=checkpoint)
        self.running.remove(req)
        self.audit()

    def serve(self, tokens: Sequence[int], rid: str = "r", new: int = 1, **more: Any) -> Any:
        """One request from its prompt to its end."""
        req = self.request(rid, tokens, new, **more)
        assert req in self.prefill(req), f"{rid} does not fit"
        for _ in range(new - 1):
            assert self.decode(req), f"{rid} cannot go on"
        self.finish(req)
        return req

    def refills(self, req: Any) -> bool:
        """Whether it is the one whose holes take several steps."""
        return self.cache.refilling.req is req

    def press(self, tokens: int) -> None:
        """Somebody takes so many tokens of free memory and gives them back."""
        from sglang.srt.mem_cache.common import evict_from_tree_cache

        evict_from_tree_cache(self.cache, tokens)
        taken = self.allocator.alloc(tokens)
        assert taken is not None, f"no {tokens} tokens can be had"
        self.allocator.free(taken)
        self.audit()

    # What can be seen

    def show(self, tokens: Sequence[int], **more: Any) -> str:
        """A page a letter: G on the device, C on the host, _ a hole; what is not cached is left."""
        req = self.request("looks", tokens, **more)
        key = pack_tokens(req.origin_input_ids, len(tokens))
        namespace = namespace_of(req)
        spans = match(self.cache.state, Key(key), namespace, at_most=len(tokens)).spans
        return "".join(LETTERS[s.residency] * ((s.end - s.start) // self.page) for s in spans)

    def slots(self, req: Any, start: int, end: int) -> list[int]:
        """Of a row."""
        return [int(slot) for slot in self.rows.req_to_token[req.kv.req_pool_idx, start:end]]

    def enqueue(self, work: Callable[[], None]) -> None:
        """On the stream, or at once."""
        if self.stream is None:
            work()
        else:
            self.stream.append(work)

    def synchronize(self) -> None:
        """Run what is on the stream, and see that every slot holds what it should."""
        assert self.stream is not None, "there is no stream"
        stream, self.stream = self.stream, None
        for work in stream:
            work()
        self.audit()
        self.stream = []

    def audit(self) -> None:
        from tests.sglang.auditing import audit

        audit(self.cache, self.running)
        if self.stream:
            return
        for tier, buffers in ((DEVICE, self._device()), (HOST, self._host())):
            for node, start, slots in self.cache.slots.items(tier):
                key = self.cache.state.nodes[node].key
                tokens = [int(t) for t in memoryview(key).cast("I")]
                found = [self._mark(buffers, int(slot)) for slot in slots]
                wanted = marks(tokens)[start : start + len(slots)]
                assert found == wanted, f"{tier.value} slots of node {node} hold other KV"

    def reads(self, req: Any, length: int) -> None:
        """Every slot of the row holds the KV of the request's own history."""
        slots = self.slots(req, 0, length)
        assert min(slots) >= self.page, f"{req.rid} reads a placeholder"
        wanted = marks(list(req.full_untruncated_fill_ids))[:length]
        buffers = self._device()

        def read() -> None:
            found = [self._mark(buffers, slot) for slot in slots]
            wrong = [p for p, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b]
            assert not wrong, f"{req.rid} reads other KV at {wrong[:4]}"

        self.enqueue(read)

    def _write(self, req: Any, start: int, end: int) -> None:
        wanted = marks(list(req.full_untruncated_fill_ids))[start:end]
        values = self.torch.tensor(wanted, dtype=self.torch.int32).view(self.torch.float32)
        slots = self.slots(req, start, end)

        def write() -> None:
            for buffer in self._device():
                buffer[slots] = values.reshape(-1, 1, 1).expand(-1, 1, 4)

        self.enqueue(write)

    def _mark(self, buffers: list[Any], slot: int) -> int:
        """What is in a slot, if all layers say the same."""
        found = self.torch.cat([buffer[slot].reshape(-1) for buffer in buffers])
        bits = found.contiguous().view(self.torch.int32).unique().tolist()
        return int(bits[0]) if len(bits) == 1 else -1

    def _device(self) -> list[Any]:
        return [*self.kv.k_buffer, *self.kv.v_buffer]

    def _host(self) -> list[Any]:
        if self.cache.host is None:
            return []
        return list(self.cache.host.pool.host_kv_data_refs)


def marks(tokens: Sequence[int]) -> list[int]:
    """The KV of each position: a digest of all tokens up to it."""
    at, found = hashlib.blake2b(digest_size=16), []
    for token in tokens:
        at.update(int(token).to_bytes(4, "little"))
        # A positive number that no float takes for a NaN.
        found.append(int.from_bytes(at.digest()[:4], "little") & 0x3FFFFFFF)
    return found
