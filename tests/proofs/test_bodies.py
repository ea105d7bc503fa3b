"""The bodies of a proof: each is recognised, and no damaged body is taken for a valid one."""

import random

import pytest
from proofs.bodies import SIZE_MIN, Author, read, write


def test_a_body_names_its_author() -> None:
    """A body of any random size names its author."""
    chance = random.Random(1)
    authors = [Author(7, 3, number) for number in range(200)]

    assert authors == [read(write(author, chance)) for author in authors]


def test_a_damaged_body_has_no_author() -> None:
    """A body with a byte changed, removed or added has no author."""
    whole = write(Author(7, 3, 1), random.Random(2))

    changed = [whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :] for at in range(len(whole))]
    assert {None} == {read(body) for body in changed}
    assert [None, None, None] == [read(whole[:-1]), read(whole + b"\0"), read(whole[1:])]


@pytest.mark.parametrize("size", range(SIZE_MIN))
def test_a_body_that_is_too_short_has_no_author(size: int) -> None:
    """A body that is too short for a header and checksum has no author."""
    assert read(b"\0" * size) is None


def test_keys_name_publisher_and_number() -> None:
    """Two messages of a run never share a key."""
    assert (3 << 32 | 9) == Author(7, 3, 9).key
