"""`penelope cost`: what the cost model predicts for one eviction, before any replay."""

from __future__ import annotations

import click

from penelope.cost import model as costs
from penelope.runtime.model_config import load_model


@click.command()
@click.option(
    "--model",
    required=True,
    metavar="NAME|PATH",
    help=f"A preset ({', '.join(costs.PRESET_CONFIGS)}) or a Hugging Face config.json; -: standard "
    "input.",
)
@click.option("--context", required=True, type=int, help="Cached tokens before the eviction.")
@click.option(
    "--fraction", default=0.3, show_default=True, type=float, help="Share of them that is evicted."
)
@click.option(
    "--start",
    default=2048,
    show_default=True,
    type=int,
    help="Position that head eviction starts from: the shared prefix before it stays.",
)
@click.option(
    "--append", default=512, show_default=True, type=int, help="New tokens of the next request."
)
def cost(model: str, context: int, fraction: float, start: int, append: int) -> None:
    """Predict how much faster the next request is when the head was evicted, not the tail.

    Both evictions free the same number of tokens; the next request recomputes them and APPEND new
    ones.  Units are query-key pairs of one attention layer.
    """
    cost_model = load_model(model)
    try:
        predicted = costs.predict(cost_model, context, fraction, start, append)
    except costs.CostError as error:  # it begins with the name of the argument
        raise costs.CostError(f"--{error}") from error
    rows = [
        ("evicted from the tail", predicted.tail),
        (f"evicted from position {start:,}", predicted.start),
    ]
    width = max(len(label) for label, _ in rows)
    click.echo(
        f"{cost_model.name}: a token at position p costs {float(cost_model.linear):,.0f} + p units"
    )
    if cost_model.assumed:
        click.echo(f"assumed: {cost_model.assumed}")
    click.echo(
        f"{predicted.evicted:,} of {context:,} cached tokens evicted, {append:,} tokens appended"
    )
    for label, units in rows:
        click.echo(f"  {label:<{width}}  {float(units):>22,.0f} units to compute")
    click.echo(f"predicted speed-up of the next request: {predicted.speedup:.2f}")
