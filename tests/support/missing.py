"""What a machine does not have that tests need."""

import os
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Ends the test: as failed in CI (`CI=true`), where everything that tests need is installed; else as skipped."""
    if os.environ.get("CI") in ("1", "true"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
