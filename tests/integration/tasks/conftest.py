"""The app that tests of tasks declare them in."""

from __future__ import annotations

import pytest

import cassq
from cassq.tasks import App


@pytest.fixture
def app(client: cassq.Client) -> App:
    """An app that uses the test's client."""
    app = App()
    app.use(client)
    return app
