"""Made-up records: those of the tests of reports."""

from tests.report.conftest import run, write  # noqa: F401 - fixtures
