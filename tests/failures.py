"""A test that fails is reported at once, not only at the end of a run of half an hour.

A plugin of pytest, active where there is a terminal: in the process that controls the run.
"""

from datetime import datetime

import pytest


class Failures:
    """Prints the report of each failure as it comes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if not report.failed or terminal is None:
            return
        terminal.ensure_newline()
        now = datetime.now().astimezone()
        terminal.write_line(f"{now:%H:%M:%S} {report.nodeid} failed ({report.when})", red=True)
        terminal.write_line(report.longreprtext)
        for title, text in report.sections:
            terminal.write_line(f"--- {title}\n{text}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config))
