"""What SGLang's source reads of requests, sets on them, and keeps by slot or by row.

Read off the installed source: a new name appears here before it fails in a batch.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

# Of engines that Penelope does not run in: other hardware, other roles, refused features.
ELSEWHERE = (
    "hardware_backend/",
    "disaggregation/",
    "speculative/",
    "dllm/",
    "beam_search/",
    "multimodal/",
    "models/",
    "entrypoints/",
    "debug_utils/",
    "kv_canary/",
    "elastic_ep/",
)
# Requests of the tokenizer's process, which never meets a phantom.
OTHER_PROCESS = ("managers/tokenizer", "managers/data_parallel", "managers/multi_tokenizer")


def sources(root: Path) -> Iterator[tuple[str, ast.Module]]:
    """(path below `root`, syntax tree) of every module that runs beside a phantom."""
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root).as_posix()
        if not name.startswith(ELSEWHERE + OTHER_PROCESS):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the engine's own spelling
                tree = ast.parse(file.read_text())
            yield name, tree


def attributes(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """(attribute, whether it is set) of everything that is a request by its name or its loop."""
    yield from _of_names(tree, {"req"}, _foreign(tree))
    for node in ast.walk(tree):
        loops: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.For):
            loops = [(node.target, node.iter)]
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            loops = [(g.target, g.iter) for g in node.generators]
        for target, over in loops:
            if _is_batch(over):
                rows = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
                yield from _of_names(node, rows & {"r", "req", "request"}, set())


def _of_names(tree: ast.AST, names: set[str], leave: set[ast.AST]) -> Iterator[tuple[str, bool]]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in names
            and node not in leave
        ):
            yield node.attr, isinstance(node.ctx, ast.Store)


def _foreign(tree: ast.Module) -> set[ast.AST]:
    """Nodes of functions whose `req` is declared to be something else than a request."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            every = [*node.args.args, *node.args.kwonlyargs]
            if any(a.arg == "req" and not _names_req(a.annotation) for a in every):
                found.update(ast.walk(node))
    return found


def _names_req(annotation: ast.expr | None) -> bool:
    return (
        annotation is None
        or "Req"
        in ast.unparse(annotation)
        .replace("'", "")
        .split(".")[-1]
        .strip("[]")
        .replace("Optional[", "")
        .split()
    )


def _is_batch(over: ast.expr) -> bool:
    for node in ast.walk(over):
        name = getattr(node, "attr", getattr(node, "id", None))
        if isinstance(name, str) and ("reqs" in name or name == "can_run_list"):
            return True
    return False


def kept_by_index(tree: ast.Module) -> bool:
    """Whether a module writes into a table at slots of KV or at rows of requests."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Subscript):
                text = ast.unparse(target.slice)
                if any(key in text for key in KEYS):
                    return True
    return False


KEYS = ("out_cache_loc", "cache_loc", "req_pool_ind", "req_pool_idx", "kv_indices", "loc")
