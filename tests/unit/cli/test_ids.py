"""A job's short id: the end of its id, which no option looks like."""

from hypothesis import given
from hypothesis import strategies as st

from service.cli.ids import SHORT, short_id
from service.core.model.identity import command_id, job_ref


@given(st.uuids().map(str), st.text(max_size=20))
def test_a_short_id_is_an_end_that_is_no_option(sandbox_id: str, digest: str) -> None:
    id = command_id(sandbox_id, job_ref(digest))
    assert id.endswith(short_id(id))
    assert len(short_id(id)) >= SHORT
    assert not short_id(id).startswith("-")


def test_one_that_would_begin_as_an_option_is_longer() -> None:
    assert short_id("cmd_abcdefgh-bcdefghijkl") == "h-bcdefghijkl"
