"""Runs the tests of the Python package with pytest and prints what tests/run.sh counts: "ok NAME",
"not ok NAME: why" or "skip NAME: why", one line a test.

    python3 -B tests/python/run.py [pytest's arguments]
"""

import pathlib
import sys

import pytest


class Lines:
    """A pytest plugin that prints one line a test."""

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("/")[-1]
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            print(f"skip {name}: {str(reason).removeprefix('Skipped: ')}", flush=True)
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            print(
                f"{report.longreprtext}\nnot ok {name}: "
                f"{(crash.message if crash else 'see above').splitlines()[0]}",
                flush=True,
            )
        elif report.when == "call":
            print(f"ok {name}", flush=True)

    def pytest_report_teststatus(self, report):
        return report.outcome, "", ""  # no dots between the lines

    def pytest_collectreport(self, report):
        if report.failed:
            print(
                f"{report.longreprtext}\nnot ok {report.nodeid}: the file cannot be read",
                flush=True,
            )


if __name__ == "__main__":
    folder = pathlib.Path(__file__).parent
    sys.exit(
        pytest.main(
            [
                "-qq",
                "--no-header",
                "--no-summary",
                "-p",
                "no:cacheprovider",
                "--rootdir",
                str(folder),
                "-o",
                "console_output_style=classic",
                *(sys.argv[1:] or [str(folder)]),
            ],
            plugins=[Lines()],
        )
    )
