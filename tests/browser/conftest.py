"""One chromium for all tests here; each test gets it as good as new."""

from collections.abc import Iterator

import pytest

from browser_support import Browser, browser_tests_are_off


@pytest.fixture(scope="session")
def _chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if browser_tests_are_off():
        pytest.skip("MEANTEACHER_NO_BROWSER=1 leaves the browser tests out")
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def browser(_chromium: Browser) -> Browser:
    """A real browser on an empty page; `press`, `run`, `complaints` and `requests` are what most tests need."""
    _chromium.reset()
    return _chromium
