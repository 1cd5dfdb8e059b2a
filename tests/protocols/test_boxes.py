"""What is said of boxes, against tensors of torch."""

from __future__ import annotations

from itertools import product

import torch
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.protocols.boxes import Box, Range, is_contiguous
from hfdsl.runtime.weights.resharding import local_boxes


@st.composite
def ranges(draw: st.DrawFn) -> list[Range]:
    """Disjoint ranges of a dim, in order."""
    ends = sorted(draw(st.sets(st.integers(0, 9), min_size=2, max_size=4)))
    return list(zip(ends[::2], ends[1::2], strict=False))


@given(st.data())
def test_a_part_is_contiguous_where_it_is_in_a_tensor_of_its_boxes(data: st.DataObject) -> None:
    boxes: list[Box] = list(product(*data.draw(st.lists(ranges(), min_size=1, max_size=3))))
    box = data.draw(st.sampled_from(boxes))
    part = tuple(tuple(sorted(data.draw(st.sampled_from([(a, b), (a, a + 1), (b - 1, b)])))) for a, b in box)
    shape, places = local_boxes(boxes)
    starts = [place[0] - whole[0] for place, whole in zip(places[box], box, strict=True)]
    index = tuple(slice(first + move, last + move) for (first, last), move in zip(part, starts, strict=True))
    assert (
        is_contiguous(tuple((first, last) for first, last in part), boxes) == torch.empty(shape)[index].is_contiguous()
    )
