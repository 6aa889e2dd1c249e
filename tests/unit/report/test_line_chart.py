"""Charts as SVG: round ticks, points where their values say, nothing outside, every text escaped."""

import re

import pytest

from stoker.api.run_progress import CurvePoint
from stoker.report import line_chart
from stoker.report.line_chart import Series


def points(*values: tuple[float, float]) -> list[CurvePoint]:
    return [CurvePoint(step, value, value, value) for step, value in values]


def drawn(*series: Series, **options: object) -> str:
    return line_chart.chart("loss", series, str, step_label="step", **options)


def path(html: str, kind: str) -> list[tuple[float, float]]:
    (found,) = re.findall(rf'class="{kind} s0" d="M([^"]+)"', html)
    return [tuple(map(float, place.split())) for place in found.split("L")]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (2.1, 4.9, [2, 3, 4, 5]), (0, 14147, [0, 5000, 10000, 15000])],
)
def test_ticks_are_round_and_span_the_values(low: float, high: float, ticks: list[float]) -> None:
    found = line_chart.axis(low, high)
    assert found.ticks == pytest.approx(ticks)
    assert found.low <= low < high <= found.high


def test_an_axis_of_steps_ends_where_the_steps_do() -> None:
    found = line_chart.axis(1, 132, whole=True)
    assert (found.low, found.high) == (1, 132)
    assert found.ticks == [20, 40, 60, 80, 100, 120]


@pytest.mark.parametrize(
    ("high", "labels"),
    [
        (2e-4, ["0", "0.5e-4", "1e-4", "1.5e-4", "2e-4"]),
        (1e-5, ["0", "0.2e-5", "0.4e-5", "0.6e-5", "0.8e-5", "1e-5"]),
        (3e-3, ["0.000", "0.001", "0.002", "0.003"]),
        (14147, ["0", "5,000", "10,000", "15,000"]),
    ],
)
def test_labels_say_the_value_of_each_tick(high: float, labels: list[str]) -> None:
    ticks = line_chart.axis(0, high).ticks
    assert line_chart.labels(ticks) == labels
    assert [float(label.replace(",", "")) for label in labels] == pytest.approx(ticks)


def test_one_value_alone_has_an_axis_around_it() -> None:
    found = line_chart.axis(3, 3)
    assert found.low < 3 < found.high
    assert line_chart.axis(0, 0).low < 0


def test_a_point_is_where_its_value_says() -> None:
    found = path(drawn(Series("loss", points((0, 0), (5, 10), (10, 5)))), "line")
    assert found == [(0, 1000), (500, 0), (1000, 500)]


def test_a_band_shows_what_a_mean_hides_and_stays_inside() -> None:
    spiky = [CurvePoint(0, 1, 1, 1), CurvePoint(1, 2, 1, 90)]
    html = drawn(Series("loss", spiky))
    band = re.search(r'class="band s0" d="M([^"]+)Z"', html)
    assert band
    heights = [float(place.split()[1]) for place in band[1].split("L")]
    assert min(heights) == 0
    assert max(heights) <= 1000
    assert 'class="band' not in drawn(Series("loss", points((0, 1), (1, 2))))


def test_names_and_values_are_escaped() -> None:
    one = Series("<b>", points((0, 1), (1, 2)), "dots")
    html = line_chart.chart("<i>", [one, Series("&", points((0, 1)))], lambda _: "<u>", step_label="<s>")
    assert not re.search(r"<(b|i|u|s)>", html.replace("<b>&lt;i&gt;</b>", ""))
    assert "&lt;u&gt;" in html


def test_nothing_to_draw_is_no_chart() -> None:
    assert drawn(Series("loss", [])) == ""


def test_a_mark_outside_the_chart_is_left_out() -> None:
    html = drawn(Series("loss", points((10, 1), (20, 2))), marks=[(15, "resumed"), (500, "elsewhere")])
    assert html.count('class="mark"') == 1
    assert "elsewhere" not in html


def test_thinning_keeps_the_mean_and_the_extremes() -> None:
    many = points(*((step, float(step % 7)) for step in range(1000)))
    few = line_chart.thinned(many, 10)
    assert len(few) == 10
    assert sum(one.mean for one in few) / 10 == pytest.approx(sum(one.mean for one in many) / 1000)
    assert {one.low for one in few} == {0.0}
    assert {one.high for one in few} == {6.0}
    assert line_chart.thinned(many[:3], 10) == many[:3]
    assert line_chart.thinned([], 10) == []
