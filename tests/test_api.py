"""The public names load on first use."""

import pytest

import spag


@pytest.mark.parametrize("name", spag.__all__)
def test_public_names(name: str) -> None:
    assert callable(getattr(spag, name))


def test_other_names_are_no_names() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        spag.nothing  # noqa: B018
