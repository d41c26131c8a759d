"""One chromium for all tests here; each test gets it as good as new."""

import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from browser_support import Browser

# Selenium connects to the driver without a proxy; Selenium Manager downloads nothing and reports nothing.
ENVIRONMENT = {"no_proxy": "localhost", "SE_OFFLINE": "true", "SE_AVOID_STATS": "true"}


@pytest.fixture(scope="session")
def _chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if os.environ.get("MEANTEACHER_NO_BROWSER") == "1":
        pytest.skip("MEANTEACHER_NO_BROWSER=1 leaves the browser tests out")
    with patch.dict(os.environ, ENVIRONMENT), Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def browser(_chromium: Browser) -> Browser:
    """A real browser on an empty page; `press`, `run`, `complaints` and `requests` are what most tests need."""
    _chromium.reset()
    return _chromium
