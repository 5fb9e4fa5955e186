"""Several runs side by side, as a browser shows them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from helpers.batches import batch, eventually, fair_step, step
from helpers.charts import until
from helpers.patience import HANGS
from helpers.seeded import judged
from helpers.service import Service, running_service

LONG = 2_500


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with two short runs and two long ones; the tests only read."""
    with running_service(tmp_path_factory.mktemp("compared") / "gradledger.db") as running:
        send_short_runs(running)
        send_long_runs(running)
        for run, steps in (("wrong", 8), ("right", 2), ("quick", LONG), ("slow", LONG)):
            assert eventually(HANGS, judged(running, run, steps))
        yield running


def send_short_runs(service: Service) -> None:
    """One with the classic mistake, one without and with a larger batch."""
    wrong, right = [step(n) for n in range(1, 9)], [fair_step(n, tokens=(40, 60)) for n in (1, 2)]
    service.post(batch("wrong", wrong, name="before", config={"lr": 0.1, "seed": 1}))
    service.post(batch("right", right, name="after", config={"lr": 0.2, "seed": 1}))


def send_long_runs(service: Service) -> None:
    """Of which each point of a chart stands for several steps; one steps half as fast."""
    for run, seconds, tokens in (("quick", 1.0, (10, 30)), ("slow", 2.0, (5, 15))):
        steps = [fair_step(n, tokens=tokens) for n in range(1, LONG + 1)]
        for n, record in enumerate(steps, 1):
            record.time = 1_000.0 + seconds * n
        for begin in range(0, LONG, 500):
            service.post(batch(run, steps[begin : begin + 500], name=run))


def test_runs_are_selected_in_the_list_and_compared(page: Page) -> None:
    page.goto("/")
    expect(page.locator(".picked")).to_be_hidden()
    for name in ("before", "after"):
        page.get_by_label(f"Select {name} to compare").check()
    page.get_by_role("button", name="Compare 2").click()
    expect(page.get_by_role("heading", name="Compare 2 runs")).to_be_visible()


def test_changes_are_listed_differences_come_first_and_charts_show_both_runs(page: Page) -> None:
    page.goto("/compare?run=wrong&run=right")
    changes = page.locator(".changes")
    expect(changes).to_contain_text("The verdict changed from broken to balanced")
    expect(changes).to_contain_text("Gone: Token weights differ between micro-batches")
    expect(changes).to_contain_text("Effective batch, tokens: 40 to 100")
    expect(changes).to_contain_text("lr: 0.1 to 0.2")
    first = page.locator(".differences tbody").first.locator("tr:nth-child(2) th").inner_text()
    assert first.startswith("effective batch")
    expect(page.locator("tr.differs", has_text="lr")).to_be_visible()
    equal = page.locator(".differences tr", has_text="seed")
    expect(equal).to_be_hidden()
    page.get_by_label("Only what differs").uncheck()
    expect(equal).to_be_visible()
    expect(page.locator("tr.differs", has_text="seed")).to_have_count(0)
    expect(page.locator("#charts[data-ready]")).to_be_visible()
    lengths = 'document.querySelector("#chart-balance .plot").data.map(({ x }) => x.length)'
    until(page, lengths, [8, 2])  # both runs in the same plot


def test_one_run_or_nine_cannot_be_compared(service: Service) -> None:
    for count in (1, 9):
        runs = "&".join(f"run={number}" for number in range(count))
        answer = service.get(f"/../../compare?{runs}")
        assert answer.status_code == 404
        assert f"You selected {count}." in answer.text


IN_SIGHT = """document.querySelector("#chart-balance .plot").data.map(({ x }) => {
  const [from, to] = document.querySelector("#chart-balance .plot").layout.xaxis.range;
  return x.filter((each) => each >= from && each <= to).length;
})"""


ZOOMS: list[tuple[str, tuple[float, float], list[int]]] = [
    ("step", (1_000.5, 1_200.5), [200, 200]),
    ("tokens", (40_021, 48_019), [200, 399]),  # of 40 and 20 tokens
    ("time", (0.4 - 1e-6, 0.5 + 1e-6), [361, 181]),  # hours; of 1 and 2 seconds
]


def test_a_zoom_is_at_full_resolution_on_every_axis(page: Page) -> None:
    page.goto("/compare?run=quick&run=slow")
    expect(page.locator("#charts[data-ready]")).to_be_visible()
    plot = 'document.querySelector("#chart-balance .plot")'
    for unit, (first, last), shown in ZOOMS:
        page.get_by_role("radio", name=unit.capitalize()).check(force=True)
        ranges = f'{{"xaxis.range[0]": {first}, "xaxis.range[1]": {last}}}'
        page.evaluate(f"Plotly.relayout({plot}, {ranges}) && 0")
        until(page, IN_SIGHT, shown)
        page.get_by_role("button", name="Reset zoom").click()
        until(page, f"{plot}.data.every(({{ x }}) => x.length < 1_300)", True)


def legend(page: Page, chart: str) -> list[str]:
    """The entries of the legend of a chart: the name of each run, and its value."""
    entries = page.locator(f"#chart-{chart} .legend li").all_inner_texts()
    return [" ".join(entry.split()) for entry in entries]


def test_the_legends_have_the_values_under_the_pointer_at_one_step_of_all_charts(
    page: Page,
) -> None:
    page.goto("/compare?run=wrong&run=right")
    expect(page.locator("#charts[data-ready]")).to_be_visible()
    assert legend(page, "tokens") == ["before 40", "after 100"]  # the last ones
    plot = page.locator("#chart-misallocation .nsewdrag")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    for fraction, label, values in (
        (0.0, "step 1", ["before 25.0%", "after 0%"]),
        (0.6, "step 5", ["before 25.0%", "after \N{EN DASH}"]),  # the run has two steps
    ):
        page.mouse.move(box["x"] + 2 + fraction * (box["width"] - 4), box["y"] + 40)
        lines = page.locator("#charts .crosshair")
        expect(lines).to_have_count(page.locator("#charts .js-plotly-plot").count())
        assert {line.get_attribute("data-label") for line in lines.all()} == {label}
        assert legend(page, "misallocation") == values
    page.mouse.move(0, 0)
    expect(page.locator("#charts .crosshair")).to_have_count(0)


def test_a_chart_of_a_comparison_has_the_tools_of_one_of_a_run(page: Page) -> None:
    page.goto("/compare?run=wrong&run=right")
    expect(page.locator("#charts[data-ready]")).to_be_visible()
    plot = 'document.querySelector("#chart-tokens .plot")'
    chart = page.locator("#chart-tokens")
    log = chart.get_by_role("button", name="log")
    before = page.evaluate(f"{plot}.layout.yaxis.type")
    log.click()
    expect(log).to_have_attribute("aria-pressed", "true" if before == "linear" else "false")
    assert page.evaluate(f"{plot}.layout.yaxis.type") != before
    with page.expect_download() as download:
        chart.get_by_role("button", name="CSV").click()
    rows = download.value.path().read_text().splitlines()
    assert rows[:2] == ["run,first,step,tokens_total,time,tokens", "wrong,1,1,40,1001,40"]
    assert len(rows) == 1 + 8 + 2
    with page.expect_download() as download:
        chart.get_by_role("button", name="PNG").click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")
    chart.get_by_role("button", name="Show before").click()
    until(page, f"{plot}.data.map(({{ name }}) => name)", ["after"])


def test_smoothing_applies_to_each_run_and_not_to_the_learning_rate(page: Page) -> None:
    page.goto("/compare?run=quick&run=slow")
    expect(page.locator("#charts[data-ready]")).to_be_visible()
    page.get_by_label("Smoothing").select_option("50")
    names = 'document.querySelector("#chart-{} .plot").data.map(({{ name }}) => name)'
    smoothed = [name for run in ("quick", "slow") for name in (run, f"{run}, mean of 50 steps")]
    until(page, names.format("norm"), smoothed)
    until(page, names.format("lr"), ["quick", "slow"])
