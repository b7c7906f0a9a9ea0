"""The command line with a fake service behind it."""

import os
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

import service.client
from service.cli import target
from service.cli.app import app
from tests.unit.cli.fakes import FakeClient, FakeService

Invoke = Callable[..., Result]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeService:
    """A fake service at ``ONCEBOX_URL``."""

    async def listened_at(url: str) -> None:
        pass

    for name in list(os.environ):
        if name.startswith("ONCEBOX_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ONCEBOX_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(service.client, "AsyncClient", FakeClient)
    monkeypatch.setattr(target, "_listened_at", listened_at)
    FakeService.current = FakeService()
    return FakeService.current


@pytest.fixture
def oncebox(fake: FakeService) -> Invoke:
    """Calls ``oncebox`` with these words."""

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(app, list(words), prog_name="oncebox")

    return invoke
