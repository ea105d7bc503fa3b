"""The benchmark's table: medians of rounds, ratios to Go's nsqd, targets met or missed."""

from __future__ import annotations

from bench.generator import Figures
from bench.lines import LINES
from bench.results import Cell, Result, markdown, text
from bench.targets import TARGETS, report


def figures(rate: float, server_us: float, busy: float = 0.5) -> Figures:
    """Return one second with these figures."""
    return Figures(rate, 1.0, server_us * rate / 1e6, busy, (0.001, 0.002, 0.003))


def result_of(name: str, sparq: list[Figures], go: list[Figures]) -> Result:
    """Return a line with two contestants."""
    return Result(name, True, {"sparq": Cell("ours", sparq), "go": Cell("theirs", go)})


def test_a_cell_is_the_median_of_its_rounds() -> None:
    """Rates and costs have separate medians; latencies are those of all rounds together."""
    cell = Cell("ours", [figures(100, 3), figures(300, 1), figures(200, 5)])

    assert 200 == cell.rate
    assert 3 == round(cell.server_us, 6)
    assert 0.5 == cell.generator_share
    assert 2.0 == cell.quantile_ms(0.5)


def test_a_line_shows_ratios_and_a_generator_without_time() -> None:
    """Rate and CPU are shown relative to Go's; a star marks a generator that may limit the rate."""
    result = result_of("line", [figures(3000, 2, busy=0.99)], [figures(1000, 8)])

    assert ["3,000*", "2.00", "330.00", "99%", "3.00", "0.25", "2.000", "2.980"] == (
        result.columns("sparq")
    )
    assert "1,000" == result.columns("go")[0]
    assert "ours" in text(result)
    assert 5 == len(markdown([result]).splitlines())


def test_a_rate_of_zero_has_no_ratio() -> None:
    """A rate of 0 for Go's nsqd gives no ratio, and no division by zero."""
    result = result_of("line", [figures(1000, 2)], [Figures(0, 1.0, 0.1, 0.1)])

    assert "0" == result.columns("go")[0]
    assert "" == result.columns("sparq")[4]


def test_targets_are_compared_with_measured_ratios() -> None:
    """The grade depends on the target's side; lines that were not run are not reported."""
    name = "MPUB, pipelined, 200 of 200 B"
    said = report([result_of(name, [figures(2000, 0.5)], [figures(1000, 1)])])

    assert "2.000  at least 1.5: met" in said
    assert "0.500  at most 0.4: MISSED" in said
    assert "latency" not in said
    assert "" == report([])


def test_every_aim_names_a_line_of_the_table() -> None:
    """A renamed line would silently drop its target."""
    assert {target.line for target in TARGETS} <= {line.name for line in LINES}
