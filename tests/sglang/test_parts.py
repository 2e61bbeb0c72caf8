"""The adapter's parts without an engine."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penelope import policy
from penelope.cost import PRESET_CONFIGS
from penelope.policy import InvalidConfigError, Key, Namespace, State
from penelope.sglang_adapter import compat, models, options, refusals, serve
from penelope.sglang_adapter.options import DOCUMENTED, Options
from penelope.sglang_adapter.paths import covered, pack_tokens
from penelope.sglang_adapter.refilling import Refilling
from tests.sglang.harness import ROOT

pytestmark = [pytest.mark.sglang, pytest.mark.smoke]


def test_options_are_read_and_refused_by_name() -> None:
    assert options.read({}) == Options()
    chosen = options.read({"PENELOPE_POSITION": "tail", "PENELOPE_BLOCK_SIZE": "32"})
    assert (chosen.position.value, chosen.block_for(16)) == ("tail", 32)
    assert Options().block_for(1) == 64
    assert Options().block_for(48) == 96
    for name, value in (
        ("PENELOPE_GRANULARITY", "page"),
        ("PENELOPE_ORDER", "fifo"),
        ("PENELOPE_QUEUE_IN_VIEW", "some"),
        ("PENELOPE_BLOCK_SIZE", "0"),
        ("PENELOPE_PHANTOM_ROWS", "none"),
        ("PENELOPE_HOST_TOKENS", "-1"),
        ("PENELOPE_SWAP_TOKENS", "0"),
        ("PENELOPE_HOST_TOKENS", "9" * 5000),
        ("PENELOPE_HOST_TOKENS", "٣"),
        ("PENELOPE_ALLOW_UNTESTED_SGLANG", "maybe"),
        # Misspelt.
        ("PENELOPE_HOST_TOKEN", "4096"),
        ("PENELOPE_HOSTTOKENS", "4096"),
        ("PENELOPE_BLOCKSIZE", "64"),
        ("PENELOPE_ALLOW_UNTESTED", "1"),
        ("PENELOPE_GRANULARITIES", "node"),
        ("PENELOPE_ORDERS", "lru"),
        ("PENELOPE_QUEUE_VIEW", "1"),
    ):
        with pytest.raises(InvalidConfigError, match=name):
            options.read({name: value})


def test_an_order_brings_the_queue_into_view() -> None:
    """The named policies of the core, as options."""
    for name, variables in {
        "penelope": {},
        "penelope-queue": {"PENELOPE_QUEUE_IN_VIEW": "1"},
        "expected-cost-blind": {"PENELOPE_ORDER": "expected-cost", "PENELOPE_QUEUE_IN_VIEW": "0"},
        "expected-cost": {"PENELOPE_ORDER": "expected-cost"},
    }.items():
        chosen = options.read(variables)
        assert (chosen.order, chosen.queue_in_view) == policy.ordering(name), name
        config = chosen.config(device_capacity=4096, page_size=16, linear_cost=368)
        assert (config.order, config.linear_cost) == (chosen.order, 368)
    for other in ({"PENELOPE_POSITION": "tail"}, {"PENELOPE_GRANULARITY": "node"}):
        with pytest.raises(InvalidConfigError, match="PENELOPE_ORDER is 'expected-cost'"):
            options.read({"PENELOPE_ORDER": "expected-cost", **other})


def test_the_cost_of_a_token_is_read_off_the_model_or_refused() -> None:
    def model(config: dict[str, object]) -> SimpleNamespace:
        return SimpleNamespace(hf_text_config=SimpleNamespace(to_dict=lambda: config))

    preset = dict(PRESET_CONFIGS["qwen3-8b"])
    assert models.linear_cost(model(preset)) == 23_552
    for unknown in ({"model_type": "qwen3"}, {"model_type": "mamba"}, {}):
        with pytest.raises(compat.UnsupportedError, match=r"choose PENELOPE_ORDER=lru$"):
            models.linear_cost(model(dict(unknown)))


def test_a_switch_is_yes_or_no() -> None:
    for value in ("1", "true", "True", "yes", "on"):
        assert options.read({"PENELOPE_ALLOW_UNTESTED_SGLANG": value}).allow_untested
    for value in ("0", "false", "no", "off", ""):
        assert not options.read({"PENELOPE_ALLOW_UNTESTED_SGLANG": value}).allow_untested


def test_names_that_nobody_chose_do_not_stop_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """Kubernetes announces every Service to every container, Docker every link."""
    links = {
        "PENELOPE_PORT": "tcp://10.0.0.1:8000",
        "PENELOPE_SERVICE_HOST": "10.0.0.1",
        "PENELOPE_SERVICE_PORT": "8000",
        "PENELOPE_SERVICE_PORT_HTTP": "8000",
        "PENELOPE_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "PENELOPE_PORT_8000_TCP_ADDR": "10.0.0.1",
        "PENELOPE_PORT_8000_TCP_PORT": "8000",
        "PENELOPE_PORT_8000_TCP_PROTO": "tcp",
        "PENELOPE_ROUTER_SERVICE_HOST": "10.0.0.2",
        "PENELOPE_ROUTER_PORT_80_UDP_ADDR": "10.0.0.2",
        # A Service of a name that reads like an option of ours.
        "PENELOPE_POSITION_PORT": "tcp://10.0.0.3:1",
        "PENELOPE_SWAP_TOKENS_SERVICE_PORT": "1",
    }
    assert options.read(links) == Options()
    assert not caplog.messages
    assert options.read({"PENELOPE_IMAGE_TAG": "7", "PENELOPE_NAME": "/x/penelope"}) == Options()
    assert [m.split()[0] for m in caplog.messages] == ["PENELOPE_IMAGE_TAG", "PENELOPE_NAME"]


def test_sizes_of_a_host_tier_are_refused_by_name() -> None:
    two = options.read({"PENELOPE_HOST_TOKENS": "9600"})
    config = two.config(device_capacity=4800, page_size=48)
    assert (config.host_capacity, config.swap_buffer, config.block_size) == (9600, 1056, 96)
    assert options.read({"PENELOPE_HOST_TOKENS": "0"}).config(4096, 16).logical_capacity == 4096
    for host, swap, wrong in (
        ("65536", "100", "swap buffer 100 is not a whole number of blocks"),
        ("512", "1024", "host capacity 512 is smaller than its swap buffer 1024"),
        ("65530", "1024", "host_capacity 65530 is not a multiple of page size 16"),
        ("0", "1024", "without a host tier"),
    ):
        sizes = {"PENELOPE_HOST_TOKENS": host, "PENELOPE_SWAP_TOKENS": swap}
        with pytest.raises(InvalidConfigError, match=wrong):
            options.read(sizes).config(device_capacity=16, page_size=16)


def test_serve_takes_our_options_as_flags() -> None:
    environment: dict[str, str] = {}
    arguments = ["--port", "1", "--penelope-host-tokens", "4096", "--penelope-swap-tokens=64", "-x"]
    assert serve.take_options(arguments, environment) == ["--port", "1", "-x"]
    assert environment == {"PENELOPE_HOST_TOKENS": "4096", "PENELOPE_SWAP_TOKENS": "64"}
    for wrong, why in (
        (["--penelope-hosts", "1"], "--penelope-hosts is not an option: choose from .*host-tokens"),
        (["--penelope-host-tokens"], "has no value"),
        (["--penelope-host-tokens", "--port"], "has no value"),
    ):
        with pytest.raises(InvalidConfigError, match=why):
            serve.take_options(wrong, environment)


def test_documentation_lists_every_option_and_refusal() -> None:
    text = (ROOT / "docs" / "sglang.md").read_text()
    for name in DOCUMENTED:
        assert f"| `{name}` |" in text
    for refusal in refusals.REFUSALS:
        assert f"| `{refusal.flag}` | {refusal.reason} |" in text
    for refusal in refusals.HOST_REFUSALS:
        assert f"| `{refusal.flag}` | {refusal.reason} |" in text.partition("With a host tier")[2]
    for backend in refusals.WRITE_FIRST_BACKENDS:
        assert f"`{backend}`" in text
    for version in compat.TESTED_VERSIONS:
        assert version in text


class Settings(SimpleNamespace):
    """A plain command line: every flag that is not given is off."""

    def __getattr__(self, name: str) -> None:
        return None


def settings(**changes: Any) -> Settings:
    return Settings(**{"radix_eviction_policy": "lru", "attention_backend": "fa3", **changes})


def test_each_refusal_names_its_flag() -> None:
    refusals.require_supported_settings(settings())
    for refusal in refusals.REFUSALS:
        name = refusal.flag.removeprefix("--").replace("-", "_")
        value: Any = 2 if name.endswith("_size") else "other"
        with pytest.raises(compat.UnsupportedError, match=refusal.flag):
            refusals.require_supported_settings(settings(**{name: value}))
    for refusal in refusals.HOST_REFUSALS:
        given = settings(**{refusal.flag.removeprefix("--").replace("-", "_"): True})
        refusals.require_supported_settings(given)
        with pytest.raises(compat.UnsupportedError, match=f"PENELOPE_HOST_TOKENS.*{refusal.flag}"):
            refusals.require_supported_settings(given, host_tier=True)
    with pytest.raises(compat.UnsupportedError, match="flashinfer"):
        refusals.require_supported_settings(settings(attention_backend="flashinfer"))


def test_an_untested_version_and_a_changed_seam_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compat.require_supported(Options())
    compat.require_supported(Options(host_tokens=4096))
    monkeypatch.setattr(compat, "TESTED_VERSIONS", ("9.9.9",))
    with pytest.raises(compat.UnsupportedError, match=r"tested with SGLang 9\.9\.9"):
        compat.require_supported(Options())
    compat.require_supported(Options(allow_untested=True))
    with pytest.raises(compat.UnsupportedError, match="takes no 'colour'"):
        compat.require_signature("os.path.join", ("colour",))
    with pytest.raises(compat.UnsupportedError, match=r"has no os\.path\.nothing"):
        compat.require_signature("os.path.nothing", ())
    with pytest.raises(compat.UnsupportedError, match="did not apply"):
        compat.require_hooks(["sglang.no.such.target"])


def test_serve_chooses_our_cache() -> None:
    flag = "--radix-cache-backend"
    assert serve.with_backend(["--port", "1"]) == ["--port", "1", flag, "penelope"]
    assert serve.with_backend([flag, "penelope"]) == [flag, "penelope"]
    assert serve.with_backend([f"{flag}=penelope"]) == [f"{flag}=penelope"]
    with pytest.raises(compat.UnsupportedError, match="leave it out"):
        serve.with_backend([f"{flag}=flexkv"])


def test_covered_counts_positions_once() -> None:
    assert covered([], 10) == 0
    assert covered([(0, 4), (2, 6), (8, 20)], 10) == 8
    assert covered([(5, 9), (5, 9)], 7) == 2


def test_only_one_request_refills_over_several_steps() -> None:
    locks: list[str] = []

    class Cache:
        def lock(self, node: str) -> Any:
            locks.append(node)
            return SimpleNamespace(node=node)

        def unlock(self, lock: Any) -> None:
            locks.remove(lock.node)

    cache = Cache()
    first: Any = SimpleNamespace(cache_request_handle=1)
    other: Any = SimpleNamespace(cache_request_handle=2)
    refilling = Refilling()
    refilling.hold(first, cache.lock("path"), [(0, 16)], cache)
    assert refilling.may_begin(first)
    assert not refilling.may_begin(other)
    refilling.yield_memory(cache)
    assert locks == ["path"], "the step that refills needs its lock"
    refilling.settle(cache)
    assert locks == ["path"]
    queue = [other, first]
    refilling.move_to_front(queue, cache)
    assert queue == [first, other]
    refilling.yield_memory(cache)
    assert locks == []
    assert not refilling.may_begin(other), "it keeps its place without its lock"
    refilling.drop_if(2, cache)
    assert not refilling.may_begin(other)
    refilling.drop_if(1, cache)
    assert refilling.may_begin(other)
    refilling.hold(first, cache.lock("path"), [(0, 16)], cache)
    refilling.move_to_front([other], cache)
    assert locks == [], "a request that is gone holds no lock"
    assert refilling.may_begin(other)


class Router:
    """What a router knows: the blocks of each medium, from the events alone."""

    def __init__(self, page: int, mode: str) -> None:
        from sglang.srt.mem_cache.events import KvEventLoraNames

        from penelope.runtime.announcing import Announce
        from penelope.sglang_adapter.events import PlacementEvents

        self.page = page
        self.closed = mode != "exact"
        self.held: dict[tuple[str, int], tuple[int, ...]] = {}
        self.events = PlacementEvents(
            SimpleNamespace(
                enable_kv_cache_events=True,
                page_size=page,
                dynamo_kv_event_format=False,
                kv_event_lora_names=KvEventLoraNames(),
            ),
            Announce(mode),
        )

    def follow(self, old: State, new: State, effects: tuple[policy.Effect, ...]) -> State:
        self.events.record(old, new, effects)
        for event in self.events.recorder.take():
            kind = type(event).__name__
            if kind == "AllBlocksCleared":
                self.held.clear()
            elif kind == "BlockStored":
                parent = event.parent_block_hash
                if self.closed and parent is not None:
                    assert (event.medium, parent) in self.held, "its parent is not known"
                for index, block in enumerate(event.block_hashes):
                    assert (event.medium, block) not in self.held, "announced twice"
                    units = event.token_ids[index * self.page : (index + 1) * self.page]
                    self.held[event.medium, block] = tuple(units)
            else:
                for block in event.block_hashes:
                    del self.held[event.medium, block]
        return new

    def blocks(self, medium: str) -> list[tuple[int, ...]]:
        return sorted(units for (where, _), units in self.held.items() if where == medium)


@pytest.mark.parametrize("mode", ["exact", "sticky", "prefix"])
@pytest.mark.parametrize("host", [0, 160], ids=["one-tier", "two-tiers"])
def test_placement_events_rebuild_what_is_announced(host: int, mode: str) -> None:
    """Case 82: SGLang's events tell exactly what is resident in each tier, with holes, refills,
    demotions and promotions; or, closed all the time, every history that the tree knows (sticky)
    or what is resident of it before its first hole (prefix).
    """
    page = 4
    router = Router(page, mode)
    state = policy.empty(
        policy.Config(400 - host, page, 8, host_capacity=host, swap_buffer=16 if host else 0)
    )
    source = random.Random(1)
    histories = [[source.randrange(50) for _ in range(40)] for _ in range(3)]
    refilled = moved = 0

    def move(transfer: policy.Transfer) -> None:
        nonlocal state, moved
        begun = policy.begin_move(state, transfer)
        state = router.follow(state, begun.state, begun.effects)
        ended = policy.end_move(state, begun.move)
        state = router.follow(state, *ended)
        moved += 1

    for step in range(300):
        index = source.randrange(3)
        if source.random() < 0.1 or len(histories[index]) > 150:
            histories[index] = histories[source.randrange(3)][:40]
        histories[index] = histories[index] + [source.randrange(50) for _ in range(7)]
        tokens = array("q", histories[index])
        key = pack_tokens(tokens, len(tokens) // page * page)
        namespace = Namespace(None, "salt") if index == 2 else Namespace()
        while (need := len(tokens) - state.free) > 0:
            room = state.config.host_resident - state.host_used
            if room > 0 and (out := policy.next_demotion(state, min(room, 24))):
                move(out)
                continue
            evicted = policy.evict(state, min(need, state.evictable))
            state = router.follow(state, evicted.state, evicted.effects)
        before = state.totals.hole
        inserted = policy.insert(state, Key(key), namespace)
        refilled += before - inserted.state.totals.hole
        state = router.follow(state, inserted.state, inserted.effects)
        back = [n for n in state.nodes.values() if n.residency is policy.Residency.HOST]
        if back and state.free >= page:
            node = min(back)
            end = min(node.end, node.start + state.free // page * page)
            move(policy.Transfer(node.id, node.start, end, policy.Residency.DEVICE))
        for medium, residency in (
            ("GPU", policy.Residency.DEVICE),
            ("CPU_PINNED", policy.Residency.HOST),
        ):
            nodes = [n for n in state.nodes.values() if n.residency is residency]
            if mode != "exact":
                told = residency is policy.Residency.DEVICE
                nodes = [n for n in state.nodes.values() if told and not n.is_root]
            if mode == "prefix":
                nodes = [n for n in nodes if before_the_first_hole(state, n)]
            expected = sorted(block for node in nodes for block in pages(node, page))
            assert router.blocks(medium) == expected, step
    assert refilled > 50
    assert (moved > 100) == bool(host)


def before_the_first_hole(state: State, node: policy.Node) -> bool:
    while node.parent is not None:
        if node.residency is policy.Residency.HOLE:
            return False
        node = state.nodes[node.parent]
    return True


def pages(node: policy.Node, page: int) -> list[tuple[int, ...]]:
    units = array("I")
    units.frombytes(node.key[node.start * 4 : node.end * 4])
    return [tuple(units[i : i + page]) for i in range(0, len(units), page)]


@pytest.mark.usefixtures("sglang_settings")
def test_levels_are_those_of_an_empty_cache_after_a_flush() -> None:
    from tests.sglang.steps import Steps

    s = Steps(pool=64, page=4)
    s.serve(range(100, 148))
    s.serve(range(300, 340))
    before = s.cache.statistics.levels
    assert before["device_tokens"] > 0
    assert before["hole_tokens"] > 0
    s.cache.reset()
    assert set(s.cache.statistics.levels.values()) == {0}


@pytest.mark.parametrize("arguments", [["--help"], ["--pp-size", "2"], []])
def test_serve_without_sglang_is_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda _name: None)
    assert serve.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "needs sglang, which is not installed" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["--pp-size", "2"],
        ["--pp-size=2"],
        ["--disable-radix-cache"],
        ["--attention-backend", "flashinfer"],
        ["--kv-canary", "log"],
        ["--model-path", "phi"],
    ],
    ids=" ".join,
)
def test_what_needs_no_engine_is_refused_before_one_is_imported(
    arguments: list[str], tmp_path: Path
) -> None:
    from tests.sglang import models

    models.longrope(tmp_path / "phi")
    script = (
        "import sys; from penelope.sglang_adapter import serve; status = serve.main(sys.argv[1:]);"
        "assert 'sglang' not in sys.modules and 'torch' not in sys.modules; sys.exit(status)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'spec'}"},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert ended.stderr.startswith("penelope serve: Penelope does not work with")
