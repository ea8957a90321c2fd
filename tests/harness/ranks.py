"""A pytest run of several ranks that behaves like one.

Every rank runs every test.  After each phase of a test the ranks exchange its outcomes, and all
take the same verdict: failed when any failed, skipped when all skipped.  So rank 0's report has a
failure on rank 2, with its rank, and all ranks end with the same exit code.  Rank 0 alone prints
and writes files.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.harness.exchange import Exchange
from tests.harness.limit import limits_of


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    limits = limits_of(config)
    exchange = Exchange(limits.say)
    if exchange.size == 1:
        return
    limits.name, limits.waiting = exchange.name, exchange.waiting
    config.pluginmanager.register(Ranks(exchange), "ncclkv-ranks")
    if exchange.rank > 0:
        # pytest's attribute, read by its cache and its reports, for a process whose results another
        # writes.
        config.workerinput = {"workerid": exchange.name}  # type: ignore[attr-defined]
        config.pluginmanager.register(Silence(), "ncclkv-silence")


class Silence:
    """Pytest plugin of the ranks that print nothing."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        writer = session.config.get_terminal_writer()
        writer.write = lambda *text, **markup: None  # type: ignore[method-assign]


@dataclass(frozen=True)
class Verdict:
    """Outcome of a phase of a test on one rank."""

    what: str
    outcome: str
    text: str


class Ranks:
    """Pytest plugin that makes all ranks agree on outcomes."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._collect_errors: list[str] = []

    def pytest_report_header(self) -> str:
        return f"ranks: {self._exchange.size}; what fails on any of them fails here"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._collect_errors.append(f"{report.nodeid}: {report.longreprtext}")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """End the run when the ranks did not collect the same tests."""
        found = ([item.nodeid for item in session.items], self._collect_errors)
        everyone = self._exchange.everyone(found)
        for rank, (tests, errors) in enumerate(everyone):
            if (tests, bool(errors)) != (everyone[0][0], bool(everyone[0][1])):
                only = sorted(set(tests).symmetric_difference(everyone[0][0]))
                pytest.exit(
                    f"rank {rank} of {len(everyone)} collected other tests than rank 0: "
                    + "\n".join([*only, *errors, *everyone[0][1]] or ["the order differs"]),
                    returncode=pytest.ExitCode.TESTS_FAILED,
                )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Make the outcome of a phase the same on all ranks."""
        report = yield
        own = Verdict(f"{report.when} of {item.nodeid}", report.outcome, self._text(report))
        failure = f"{own.what} failed\n{own.text}" if report.failed else ""
        everyone = self._exchange.everyone(own, failure)
        if agreed(everyone):
            return report
        if hasattr(report, "wasxfail"):
            del report.wasxfail
        report.outcome = "failed"
        report.longrepr = explain(everyone)
        return report

    def pytest_internalerror(self, excrepr: Any) -> None:
        self._exchange.abort(f"an error in pytest or a plugin:\n{excrepr}")

    def _text(self, report: pytest.TestReport) -> str:
        """Return the part of this rank's report that rank 0 must show."""
        if report.passed:
            return ""
        if isinstance(report.longrepr, tuple):
            return report.longrepr[2]
        # Rank 0's own output is in its report already.
        sections = report.sections if self._exchange.rank > 0 else []
        parts = [f"----- {title} -----\n{content}" for title, content in sections]
        return "\n".join([report.longreprtext, *parts])


def agreed(verdicts: list[Verdict]) -> bool:
    """Return whether all ranks had the same outcome and none failed."""
    alike = {(verdict.what, verdict.outcome) for verdict in verdicts}
    return len(alike) == 1 and verdicts[0].outcome != "failed"


def explain(verdicts: list[Verdict]) -> str:
    """Describe the outcome on every rank, ranks with equal outcomes together."""
    one_test = len({verdict.what for verdict in verdicts}) == 1
    ranks_of: dict[Verdict, list[int]] = {}
    for rank, verdict in enumerate(verdicts):
        ranks_of.setdefault(verdict, []).append(rank)
    texts = []
    # Ranks that passed come last: a reader looks for the failed ones.
    for verdict, ranks in sorted(ranks_of.items(), key=lambda each: each[0].outcome == "passed"):
        who = f"rank {', '.join(map(str, ranks))} of {len(verdicts)}"
        what = "" if one_test else f" in {verdict.what}"
        texts.append(f"{who}: {verdict.outcome}{what}\n{verdict.text}".rstrip())
    return "\n\n".join(texts)
