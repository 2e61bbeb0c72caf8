"""The list of what SGLang keeps of requests, against the installed source and against phantoms."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penelope.sglang_adapter import surface
from penelope.sglang_adapter.errors import UnsupportedError
from penelope.sglang_adapter.surface import ATTACHED, ATTRIBUTES, SLOT_TABLES, Fate
from tests.sglang import surface_scan
from tests.sglang.steps import Steps, published

pytestmark = [pytest.mark.sglang, pytest.mark.smoke]

NO_REQUEST = frozenset(
    # What the scan takes for a request by its name, and is none.
    "attention_backends batch buffers decode_graph_backends dtypes env get header hf_config"
    " host_staged is_cuda mm_inputs new_zeros req server_args shape to tp_sizes"
    " unwrap_pickle_fields wait".split()
)


class Found(SimpleNamespace):
    read: dict[str, str]
    written: dict[str, str]
    kept: set[str]


@pytest.fixture(scope="module")
def found() -> Found:
    import sglang.srt

    result = Found(read={}, written={}, kept=set())
    for module, tree in surface_scan.sources(Path(sglang.srt.__path__[0])):
        for name, is_set in surface_scan.attributes(tree):
            (result.written if is_set else result.read).setdefault(name, module)
        if surface_scan.kept_by_index(tree):
            result.kept.add(module)
    return result


@pytest.fixture
def settings() -> Iterator[None]:
    with published():
        yield


def test_every_attribute_that_sglang_reads_or_sets_has_a_fate(found: Found) -> None:
    from sglang.srt.managers.schedule_batch import Req

    assert not surface.constructed() - ATTRIBUTES.keys()
    assert not ATTRIBUTES.keys() - surface.constructed(), "the list has names that are gone"
    listed = ATTRIBUTES.keys() | ATTACHED.keys() | set(dir(Req)) | NO_REQUEST
    for names in (found.read, found.written):
        unlisted = {name: module for name, module in names.items() if name not in listed}
        assert not unlisted
    # The scan sees what it is for.
    assert {"tokenizer", "eos_token_ids", "grammar", "lora_id"} <= found.read.keys()
    assert {"tokenizer", "lock", "best_match_node"} <= found.written.keys()


def test_the_scan_finds_a_new_name() -> None:
    import ast

    tree = ast.parse(
        "def f(self, req: FlushReq, batch):\n"
        "    req.foreign\n"
        "def g(self, req: Req):\n"
        "    req.newly_set = 1\n"
        "    return [r.newly_read for r in self.reqs], sum(x.other for x in y)\n"
    )
    assert set(surface_scan.attributes(tree)) == {("newly_set", True), ("newly_read", False)}
    assert surface_scan.kept_by_index(ast.parse("self.hashes[batch.out_cache_loc] = 1"))
    assert not surface_scan.kept_by_index(ast.parse("self.hashes[1:] = 1"))


def test_every_table_by_slot_or_row_is_listed(found: Found) -> None:
    import sglang.srt

    bookkeeping = {
        # Indices of experts, ranks or bytes of messages, which are called locations too.
        "distributed/device_communicators/shm_broadcast.py",
        "eplb/expert_distribution.py",
        "layers/moe/fused_moe_triton/aiter_mxfp4_w4a8_moe.py",
        "layers/moe/moe_runner/aiter.py",
        "layers/moe/moe_runner/deep_gemm.py",
        "layers/moe/token_dispatcher/moriep.py",
        "layers/moe/token_dispatcher/standard.py",
        "layers/muse_spark/muse_spark_fp4_moe.py",
        "layers/quantization/modelslim/modelslim.py",
        "layers/quantization/moe_wna16.py",
        "lora/lora_moe_runners.py",
        "observability/req_time_stats.py",
        "observability/startup_time.py",
    }
    assert found.kept - bookkeeping - SLOT_TABLES.keys() == set()
    root = Path(sglang.srt.__path__[0])
    assert not [name for name in SLOT_TABLES if not (root / name).exists()]


def test_a_phantom_is_what_the_list_says(settings: None) -> None:
    """Of a served request that has asked for everything."""
    s = Steps(pool=64, page=4, rows=16)
    tokens = list(range(100, 132))
    s.serve(tokens, lora_id="l", extra_key="e", cache_salt="s")
    s.serve(range(300, 348))
    tokenizer = SimpleNamespace(additional_stop_token_ids={3}, eos_token_id=2)
    served = s.request(
        "asks",
        [*tokens, 1, 2, 3],
        lora_id="l",
        extra_key="e",
        cache_salt="s",
        return_logprob=True,
        top_logprobs_num=3,
        token_ids_logprob=[1],
        return_hidden_states=True,
        return_sampling_mask=True,
        custom_logit_processor="p",
        require_reasoning=True,
        eos_token_ids={5},
        priority=7,
        routing_key="r",
        stream=True,
    )
    served.tokenizer = tokenizer
    served.grammar = object()
    served.logprob_start_len = len(tokens)  # as the scheduler sets it: nothing of the prompt
    adder = s.admit(served)
    phantom = adder.can_run_list[0]
    assert adder.can_run_list[-1] is served
    assert type(phantom).__name__ == "Phantom"
    plain: Any = s.request("plain", array("q", [1]))
    for name, fate in ATTRIBUTES.items():
        has = getattr(phantom, name)
        if fate is Fate.SERVED:
            assert has == getattr(served, name), name
        elif fate is Fate.PLAIN:
            assert _same(has, getattr(plain, name)), name
    assert phantom.tokenizer is tokenizer
    beyond = vars(phantom).keys() - ATTRIBUTES.keys()
    assert beyond == {"served", "span", "refills", "penelope_patches"}


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) or vars(a) == vars(b)


def test_an_unknown_attribute_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    surface.require_known()
    monkeypatch.setattr(surface, "ATTRIBUTES", {**ATTRIBUTES})
    del surface.ATTRIBUTES["tokenizer"]  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match="'tokenizer'"):
        surface.require_known()
