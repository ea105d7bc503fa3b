"""The queue of messages that wait to be delivered once more."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparq.broker.waiting import RequeueQueue

pairs = st.lists(st.tuples(st.integers(0, 1 << 53), st.integers(0, 65_535)), max_size=8)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), pairs),
        st.tuples(st.just("burst"), pairs),
        st.tuples(st.just("take"), st.integers(0, 9)),
        st.tuples(st.just("return"), st.integers(0, 9)),
        st.tuples(st.just("clear"), st.none()),
    ),
    max_size=30,
)


def arrays(of: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """A burst as the arrays it comes in."""
    return np.array([i for i, _ in of], np.int64), np.array([a for _, a in of], np.uint16)


@given(steps)
def test_it_is_a_list(script: list[tuple[str, object]]) -> None:
    """Whether pushed singly or in bursts, messages leave in the order in which they came."""
    queue, model = RequeueQueue(), list[tuple[int, int]]()
    for act, value in script:
        if isinstance(value, list):
            if act == "push":
                for index, attempts in value:
                    queue.push(index, attempts)
            else:
                queue.push_many(*arrays(value))
            model += value
        elif isinstance(value, int):
            indexes, attempts = queue.take(value)
            taken, model = model[:value], model[value:]
            assert list(zip(indexes.tolist(), attempts.tolist(), strict=True)) == taken
            if act == "return":
                queue.push_front(indexes, attempts)
                model = taken + model
        else:
            queue.clear()
            model = []
        assert len(queue) == len(model)
        assert queue.indexes().tolist() == sorted(index for index, _ in model)
        everything = [column.tolist() for column in queue.all()]
        assert list(zip(*everything, strict=True)) == model
