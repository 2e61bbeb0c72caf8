"""The cost model against its definition, and the theorem that head eviction rests on."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from penelope.cost import CostModel, predict

models = st.fractions(min_value=0, max_value=10**6).map(lambda c: CostModel("m", c, 2, 4, 8))
positions = st.integers(0, 10**7)


@given(models, st.integers(0, 5000), st.integers(0, 60))
def test_a_span_costs_the_sum_of_its_tokens(model: CostModel, start: int, length: int) -> None:
    tokens = sum((model.token(p) for p in range(start, start + length)), Fraction(0))
    assert model.span(start, start + length) == tokens


@given(models, positions, positions, positions)
def test_spans_add_up(model: CostModel, a: int, b: int, c: int) -> None:
    a, b, c = sorted((a, b, c))
    whole = model.scaled_span(a, c)
    assert isinstance(whole, int)
    assert model.scaled_span(a, b) + model.scaled_span(b, c) == whole
    assert Fraction(whole, model.scale) == model.span(a, c)


@given(models, positions, positions, st.integers(0, 10**6))
def test_an_earlier_span_of_equal_length_never_costs_more(
    model: CostModel, one: int, other: int, length: int
) -> None:
    early, late = sorted((one, other))
    difference = model.span(late, late + length) - model.span(early, early + length)
    # Every token of the later span has `late - early` more before it, whatever c is.
    assert difference == length * (late - early)
    assert (difference > 0) == (early < late and length > 0)


@given(models, st.integers(0, 10**6), st.integers(0, 1000), st.data())
def test_evicting_earlier_never_makes_the_next_request_dearer(
    model: CostModel, context: int, permille: int, data: st.DataObject
) -> None:
    fraction = permille / 1000
    room = context - int(Fraction(permille, 1000) * context)
    start = data.draw(st.integers(0, room))
    append = data.draw(st.integers(1, 4096))
    got = predict(model, context, fraction, start, append)
    assert got.evicted == context - room
    assert got.start <= got.tail
    assert (got.start == got.tail) == (start == room or got.evicted == 0)
