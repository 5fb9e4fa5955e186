"""The charts of a run: one range for all, full resolution where one looks, spikes never lost."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import insert, update

from gradledger.records import StepRecord
from gradledger_monitor.evaluation.evaluated_step import EvaluatedStep
from gradledger_monitor.store import tables
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.steps import curves
from gradledger_web import assets, formatting
from helpers.batches import batch, eventually, fair_step, step
from helpers.charts import stop, until
from helpers.patience import HANGS
from helpers.seeded import judged, seed
from helpers.service import Service, running_service

LENGTH, SPIKE = 30_000, 17_023
JUMPS = (61, 84, 107)
NORM = 'document.querySelector("#chart-norm .plot")'


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service with a long run that has one spike, and short ones that have everything."""
    database = tmp_path_factory.mktemp("charts") / "gradledger.db"
    with running_service(database) as running:
        running.post(batch("long", [step(1)]))
        assert eventually(HANGS, judged(running, "long", 1))
        _lengthen(f"sqlite:///{database}")
        seed(running)
        assert eventually(HANGS, judged(running, "half"))
        running.post(batch("jumps", [_jumping(n) for n in range(1, 121)]))
        assert eventually(HANGS, judged(running, "jumps", 120))
        yield running


def _jumping(number: int) -> StepRecord:
    norm = 60.0 if number in JUMPS else 1.0 + 0.05 * (-1) ** number
    return dataclasses.replace(fair_step(number), norm=norm)


def _lengthen(url: str) -> None:
    store = Store(url)
    common = {"run": 1, "optimizer": 0, "ranks": 1, "tokens": 10.0}
    rows = [
        {**common, "step": n, "time": 1_000.0 + n, "norm": 500.0 if n == SPIKE else 1.0}
        for n in range(2, LENGTH + 1)
    ]
    ends = [EvaluatedStep(0, n, 0.0, 1, {}) for n in (1, LENGTH)]
    with store.writing() as connection:
        connection.execute(insert(tables.facts), rows)
        connection.execute(update(tables.progress).values(step=LENGTH))
        curves.update_buckets(connection, 1, ends)
    store.close()


def opened(page: Page, run: str, fragment: str = "") -> None:
    """Go to a run and wait for its charts."""
    page.goto(f"/runs/{run}{fragment}")
    expect(page.locator("#charts[data-ready]")).to_be_visible()
    page.locator("#chart-norm").scroll_into_view_if_needed()
    until(page, f"Boolean({NORM}.data)", True)


def test_a_spike_of_one_step_in_thirty_thousand_is_drawn(page: Page) -> None:
    opened(page, "long")
    until(page, f"Math.max(...{NORM}.data.flatMap((trace) => trace.y.filter(Number)))", 500)
    assert page.evaluate(f"Math.max(...{NORM}.data.map((trace) => trace.x.length))") <= 1_001


def test_a_zoom_is_fetched_at_full_resolution(page: Page) -> None:
    opened(page, "long", "#steps=17000-17050")
    applied = f'{NORM}.data.find((trace) => trace.name === "applied")'
    until(page, f"{applied}.x.filter((x) => x >= 17000 && x <= 17050).length", 51)
    assert page.evaluate(f"{applied}.y[{applied}.x.indexOf({SPIKE})]") == 500


def test_the_zoom_is_in_the_address_and_moves_by_the_keyboard(page: Page) -> None:
    opened(page, "long")
    page.get_by_role("button", name="Zoom in").press("Enter")
    until(page, "/^#steps=/.test(location.hash)", True)
    before = page.evaluate("location.hash")
    page.get_by_role("button", name="Later").press("Enter")
    until(page, f"location.hash !== {before!r}", True)
    page.get_by_role("button", name="Reset zoom").press("Enter")
    until(page, "location.hash", "")


def test_a_point_that_stands_for_many_steps_leads_to_the_one_that_stands_out(
    service: Service,
) -> None:
    there = "/../../runs/long/steps?optimizer=0&first=15000&last=20000&figure=norm"
    assert service.get(there).headers["location"] == f"/runs/long/steps/0/{SPIKE}"


@pytest.mark.parametrize("unit", ["Tokens", "Time"])
def test_all_charts_change_their_axis_together(page: Page, unit: str) -> None:
    opened(page, "wrong")
    page.get_by_role("radio", name=unit).check(force=True)
    drawn = '[...document.querySelectorAll(".plot")].filter((plot) => plot.layout)'
    until(page, f"new Set({drawn}.map((plot) => String(plot.layout.xaxis.range))).size", 1)
    until(page, f"{NORM}.layout.xaxis.type", "date" if unit == "Time" else "linear")


def test_findings_are_shaded_at_the_steps_where_they_occurred(page: Page) -> None:
    opened(page, "wrong")
    expect(page.locator("#spans")).to_have_count(1)
    page.locator("#chart-collectives").scroll_into_view_if_needed()
    plot = 'document.querySelector("#chart-collectives .plot")'
    until(page, f"{plot}.data?.[0].type", "heatmap")
    assert page.evaluate(f"{plot}.layout.shapes[0].x0") == pytest.approx(0.5, abs=2)
    assert page.evaluate(f"{plot}.data[0].z.length") == 4


def test_skipped_steps_are_marked_on_the_loss_scale(page: Page) -> None:
    opened(page, "half")
    page.locator("#chart-scale").scroll_into_view_if_needed()
    plot = 'document.querySelector("#chart-scale .plot")'
    until(page, f"{plot}.data?.at(-1).x", [5, 6, 30, 31, 32, 33, 34, 35])
    until(page, f"{plot}.layout.yaxis.ticktext", ["50,000", "100k"])  # 100,000 would not fit


def test_what_was_never_measured_has_no_chart(page: Page) -> None:
    opened(page, "right")
    expect(page.locator("#chart-scale")).to_be_hidden()
    expect(page.locator("#chart-ranks")).to_be_hidden()
    expect(page.locator("#chart-evaluations")).to_be_visible()


def test_one_crosshair_is_in_all_charts_and_the_legends_show_the_values_under_it(
    page: Page,
) -> None:
    opened(page, "wrong")
    tokens = page.locator("#chart-tokens output[data-last=tokens]")
    last = tokens.inner_text()
    page.locator("#chart-norm .nsewdrag").hover()
    lines = page.locator("#charts .crosshair")
    until(page, 'document.querySelectorAll("#charts .crosshair").length >= 2', True)
    labels = set(lines.evaluate_all("(all) => all.map((line) => line.dataset.label)"))
    (label,) = labels
    assert label in ("step 30", "step 31")
    series = (
        'document.querySelector("#chart-norm .plot").data.find(({ name }) => name === "applied")'
    )
    value = page.evaluate(f"{series}.y[{series}.x.indexOf({label.split()[1]})]")
    expect(page.locator("#chart-norm output[data-last=norm]")).to_have_text(f"{value:.4g}")
    assert tokens.inner_text() != last
    page.mouse.move(0, 0)
    expect(lines).to_have_count(0)
    expect(tokens).to_have_text(last)


def test_a_chart_has_a_logarithmic_axis_a_larger_size_a_picture_and_its_numbers(
    page: Page,
) -> None:
    opened(page, "wrong")
    chart = page.locator("#chart-norm")
    log = chart.get_by_role("button", name="log")
    expect(log).to_have_attribute("aria-pressed", "true")
    log.click()
    until(page, f"{NORM}.layout.yaxis.type", "linear")
    expect(log).to_have_attribute("aria-pressed", "false")
    width = page.evaluate(f"{NORM}.clientWidth")
    chart.get_by_role("button", name="Enlarge").click()
    until(page, f"{NORM}.querySelector('.main-svg').clientWidth > 1.8 * {width}", True)
    with page.expect_download() as numbers:
        chart.get_by_role("button", name="CSV").click()
    lines = numbers.value.path().read_text().splitlines()
    assert lines[0] == "first,step,tokens_total,time,clip_norm,norm,clip_limit,clipped"
    assert len(lines) == 1 + 60
    with page.expect_download() as picture:
        chart.get_by_role("button", name="PNG").click()
    assert picture.value.path().read_bytes().startswith(b"\x89PNG")


def test_a_line_is_switched_off_and_on_by_its_entry_in_the_legend(page: Page) -> None:
    opened(page, "half")
    chart = page.locator("#chart-loss")
    chart.scroll_into_view_if_needed()
    names = 'document.querySelector("#chart-loss .plot").data?.map(({ name }) => name)'
    both = ["reported", "token-weighted"]
    until(page, names, both)
    reported = chart.get_by_role("button", name="Show reported")
    weighted = chart.get_by_role("button", name="Show token-weighted")
    reported.click()
    until(page, names, both[1:])
    expect(reported).to_have_attribute("aria-pressed", "false")
    weighted.press("Enter")
    until(page, names, [])
    expect(weighted).to_be_visible()  # a chart without lines has data, and keeps its legend
    reported.click()
    weighted.click()
    until(page, names, both)
    expect(reported).to_have_attribute("aria-pressed", "true")


def test_smoothing_is_a_mean_over_steps_beside_the_measured_values(page: Page) -> None:
    opened(page, "wrong")
    applied = f'{NORM}.data.filter((trace) => (trace.name ?? "").startsWith("applied"))'
    page.get_by_label("Smoothing").select_option("10")
    until(page, f"{applied}.map((trace) => trace.name)", ["applied", "applied, mean of 10 steps"])
    measured = page.evaluate(f"{applied}[0].y")
    smooth = page.evaluate(f"{applied}[1].y")
    assert smooth[59] == pytest.approx(sum(measured[50:60]) / 10)
    assert smooth[0] == measured[0]


def test_an_evaluation_chart_fits_the_zoom(page: Page) -> None:
    opened(page, "wrong", "#steps=45-60")
    page.locator("#chart-evaluations").scroll_into_view_if_needed()
    plot = 'document.querySelector("#chart-evaluations .plot")'
    until(page, f"{plot}.data?.[0].x", [40, 50, 60])  # the one before: the line reaches the edge


def test_a_mark_above_a_chart_leads_to_the_finding(page: Page) -> None:
    opened(page, "wrong")
    page.locator("#chart-misallocation").scroll_into_view_if_needed()
    mark = page.locator("#chart-misallocation .annotation").first
    mark.click()
    expect(page.locator('[data-rule="reduction.token_weights_unequal"]')).to_be_in_viewport()


def test_each_spike_that_a_finding_names_is_marked_on_the_chart_of_norms(page: Page) -> None:
    opened(page, "jumps")
    expect(page.locator("#chart-norm .annotation")).to_have_count(len(JUMPS))
    until(page, f"{NORM}.layout.annotations.map(({{ x }}) => x)", list(JUMPS))


NUMBERS = (
    *(0.0, 1e-6, 4.9e-5, 5.1e-5, 0.00052, 0.00099, 0.0012, 0.0099, 0.0101, 0.1234, 0.9994, 0.9996),
    *(1.0, -0.0005, -0.25, 2.9745123, 0.00024712, 3e-5, 999.94, 1234.5678, 65_536.0, 99_999.0),
    *(392_311.0, 2_097_152.0, 7.25e9, 1.19209e-07),
)


@pytest.mark.parametrize("format_", ["percent", "figure", "count"])
def test_scripts_and_pages_format_numbers_alike(page: Page, format_: str) -> None:
    page.goto("/runs/wrong")
    script = f"""async ([url, values]) => {{
      const {{ formatNumber }} = await import(url);
      return values.map((value) => formatNumber(value, "{format_}"));
    }}"""
    written = page.evaluate(script, [assets.url_path("charts.js"), NUMBERS])
    assert written == [getattr(formatting, format_)(value) for value in NUMBERS]


# a dot is a trace of one point; the crosses of skipped steps have none in these runs
LIVE_DOTS = f"({NORM}.data ?? []).some(({{ mode, x }}) => mode === 'markers' && x.length === 1)"
IS_LIVE = "document.querySelector('#verdict .seen.is-live') !== null"


def test_a_run_that_is_sending_has_a_live_dot_until_it_stops(page: Page, service: Service) -> None:
    service.post(batch("sending", [step(n) for n in (1, 2, 3)]))
    opened(page, "sending")
    _send_until_live(page, service, "sending")
    stop(page)
    expect(page.locator("#live")).to_be_hidden()
    until(page, LIVE_DOTS, False)


def test_the_live_dot_leaves_a_chart_that_a_finding_pushed_out_of_sight(
    page: Page, service: Service
) -> None:
    service.post(batch("starting", []))
    page.goto("/runs/starting")
    expect(page.locator("#charts[data-ready]")).to_be_visible()
    service.post(batch("starting", [step(n) for n in (1, 2, 3)]))
    _send_until_live(page, service, "starting")
    expect(page.locator("#chart-norm")).not_to_be_in_viewport()
    stop(page)
    expect(page.locator("#live")).to_be_hidden()
    until(page, LIVE_DOTS, False)


def _send_until_live(page: Page, service: Service, run: str) -> None:
    """Send further steps until a chart has its live dot.

    A run is live for some seconds after a record, and a slow machine takes longer to open its page.
    """
    numbers = itertools.count(4)

    def has_dot() -> bool:
        if page.evaluate(f"!document.querySelector('#live').hidden && {LIVE_DOTS}"):
            return True
        if not page.evaluate(IS_LIVE):
            service.post(batch(run, [step(next(numbers))]))
        return False

    assert eventually(HANGS, has_dot), f"{run} has no live dot"
