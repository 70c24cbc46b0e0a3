# SPDX-License-Identifier: Apache-2.0
"""A report of runs whose figures are known: as a page that loads nothing, as Markdown, as JSON."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import headless_browser
import pytest
from load_records import record, run, steady

from clients.load_report.definitions import DEFINITIONS
from clients.load_report.document import document_of
from clients.load_run.run_folder import RunInfo, write_run
from clients.load_run.server_samples import ServerSample, read_metrics
from trireme.commands import run_command

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """The links and the words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href", "action"}]

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return three_runs(tmp_path)


def three_runs(folder: Path) -> list[Path]:
    """Return runs at 50, 100 and 200 requests a second; the last one with refusals, and bound by its client."""
    made = []
    of = '{model="tensorrt_llm",version="1"}'
    for gap_ms, ttft_ms in ((20.0, 40.0), (10.0, 50.0), (5.0, 400.0)):
        records = steady(200, every_ms=gap_ms, ttft_ms=ttft_ms)
        if gap_ms == 5.0:
            records = [
                record(one.due_ns / 1e6, end="UNAVAILABLE", error="full") if number % 10 == 0 else one
                for number, one in enumerate(records)
            ]
            for one in records:
                one.sent_ns = one.due_ns + 25_000_000
        samples = [
            ServerSample(at * 100_000_000, {f"trireme_requests_running{of}": 3.0, f"trireme_requests_waiting{of}": 0.0})
            for at in range(10)
        ]
        path = folder / f"rate-{1000 / gap_ms:.0f}"
        info = RunInfo(
            tool="trireme 1", commands=["trireme bench run --rate <&> |"], url="here:1", model="ensemble", is_open=True,
            rate_per_s=1000 / gap_ms, arrivals="constant", workload={"kind": "fixed"}, seed=1, warmup_requests=8,
        )  # fmt: skip
        write_run(path, info, records, samples)
        made.append(path)
    return made


def report(*args: object) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command("bench", ["report", *map(str, args)])
    assert ended.value.code in (0, None)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    path = folder / "r.html"
    report(*three_runs(folder), "--slo", "ttft=45,tpot=15", "--out", path, "--title", "Is <this> safe?")
    return path


def test_the_page_holds_everything_and_loads_nothing(page_file: Path) -> None:
    text = page_file.read_text()
    page = Page(text)
    assert [link for link in page.links if not link.startswith("#")] == []
    assert not re.search(r"@import|url\((?!#)|<script", text)
    assert page.tags.count("svg") == 1 + 3 * 2
    assert "Is <this> safe?" in page.words
    assert "trireme bench run --rate <&> |" in page.words
    for figure in (
        "50.0",
        "rate-100",
        "Client-bound",
        "10.0% of the measured requests did not end well",
        " UNAVAILABLE.",
    ):
        assert figure in page.words, figure
    assert all(word in page.words for word in DEFINITIONS)
    assert text.count('role="img" aria-label="') == 7, "a picture is told in words, too"


MEASURE = """(() => {
  const box = (one) => { const at = one.getBoundingClientRect(); return [at.width, at.height, at.right]; };
  return {
    pictures: [...document.querySelectorAll("svg")].map(box),
    drawn: [...document.querySelectorAll("svg")].map((one) => one.querySelectorAll("path, line, rect, use").length),
    tables: [...document.querySelectorAll("table")].map(box),
    rows: document.querySelectorAll("tr").length,
    headings: [...document.querySelectorAll("h1, h2")].map(box),
    width: document.documentElement.scrollWidth,
    background: getComputedStyle(document.body).backgroundColor,
    words: document.body.innerText.length,
  };
})()"""


@pytest.mark.skipif(
    not headless_browser.is_there(),
    reason="no Chromium: `scripts/bootstrap.py --only chromium` unpacks Debian's, or have one on PATH",
)
def test_a_real_browser_shows_all_of_it_in_a_window_of_1280_pixels(page_file: Path, tmp_path: Path) -> None:
    page = page_file.as_uri()
    opened = headless_browser.open_page(page, script=MEASURE, width=1280, profile=tmp_path / "profile")
    assert opened.requests == [page]
    assert opened.complaints == []
    found = opened.measured
    assert len(found["pictures"]) == 7
    assert len(found["tables"]) >= 3
    assert found["rows"] > 20
    assert found["words"] > 1000
    for name in ("pictures", "tables", "headings"):
        assert all(width > 20 and height > 10 for width, height, _ in found[name]), (name, found[name])
    assert all(width > 300 and height > 100 for width, height, _ in found["pictures"])
    assert all(number > 10 for number in found["drawn"])
    assert found["width"] <= 1280, "something makes the page scroll sideways"


@pytest.mark.skipif(not headless_browser.is_there(), reason="no Chromium")
def test_the_browser_tells_what_a_page_loads_and_complains_of(tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        "<img src='missing.png'><div style='width: 2000px'>wide</div><script>console.error('no'); nothing()</script>"
    )
    page = (tmp_path / "bad.html").as_uri()
    opened = headless_browser.open_page(page, script=MEASURE, width=1280, profile=tmp_path / "profile")
    assert opened.requests == [page, page.replace("bad.html", "missing.png")]
    assert len(opened.complaints) >= 2
    assert opened.measured["width"] >= 2000


def test_open_and_closed_loops_have_a_line_each_and_a_histogram_tells_what_is_beyond_it(
    folders: list[Path], tmp_path: Path
) -> None:
    for users in (4, 8):
        info = RunInfo(tool="by hand", commands=[], url="here:1", model="m", is_open=False, num_users=users)
        write_run(tmp_path / f"users-{users}", info, [*steady(300), record(1500, [(1638, 1)])], [])
    report(*folders[:2], tmp_path / "users-4", tmp_path / "users-8", "--out", tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    for legend in ("p50, open loop", "p99, open loop", "p50, closed loop", "p99, closed loop"):
        assert f"<!-- {legend} -->" in text, "matplotlib tells in a comment what a text drawn as lines says"
    assert "Latency against throughput of 4 runs, open loop and closed loop" in text
    assert "1 in the last bar beyond 50.0 ms, up to 138.0 ms" in text


def test_runs_of_one_token_each_have_a_curve_without_tpot(tmp_path: Path) -> None:
    for name in ("a", "b"):
        info = RunInfo(tool="by hand", commands=[], url="here:1", model="m", is_open=True, rate_per_s=100.0)
        write_run(tmp_path / name, info, [record(n * 10, [(n * 10 + 50, 1)]) for n in range(50)], [])
    report(tmp_path / "a", tmp_path / "b", "--out", tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "<!-- TTFT, ms -->" in text
    assert "<!-- TPOT, ms -->" not in text


def test_markdown_and_json_say_the_same(folders: list[Path], tmp_path: Path) -> None:
    report(*folders, "--out", tmp_path / "r.md", "--out", tmp_path / "r.json", "--no-plots", "--gpus", 2)
    found = json.loads((tmp_path / "r.json").read_text())
    text = (tmp_path / "r.md").read_text()
    assert [run["figures"]["name"] for run in found["runs"]] == ["rate-50", "rate-100", "rate-200"]
    assert found["knee"] == "rate-100"
    assert "The knee is **rate-100**" in text
    second = found["runs"][1]
    assert second["figures"]["latencies"]["ttft"]["percentiles"]["99"] == pytest.approx(50)
    assert second["tokens_per_s_per_gpu"] == pytest.approx(second["figures"]["output_tokens"]["per_s"] / 2)
    ratios = {one["figure"]: one["value"] for one in second["against_first"]}
    assert ratios["TTFT p50"] == pytest.approx(50 / 40)
    assert "| TTFT p50 | 1.250 |" in text
    assert f"| TTFT | {50:.1f} (50.0 to 50.0) |" in text


def test_of_a_run_in_which_all_failed_the_errors_come_first(tmp_path: Path) -> None:
    ends = [("INVALID_ARG", f"{9999 - number} tokens | at most 512") for number in range(20)]
    ends += [("UNAVAILABLE", "full")] * 5
    records = [record(number * 10, end=end, error=error) for number, (end, error) in enumerate(ends)]
    info = RunInfo(tool="by hand", commands=["none"], url="here:1", model="ensemble", is_open=True, rate_per_s=100.0)
    write_run(tmp_path / "bad", info, records, [])
    report(tmp_path / "bad", "--out", tmp_path / "r.md", "--out", tmp_path / "r.json", "--out", tmp_path / "r.html")
    [part] = json.loads((tmp_path / "r.json").read_text())["runs"]
    assert part["failures"] == [
        {"end": "INVALID_ARG", "error": "9999 tokens | at most 512", "count": 20},
        {"end": "UNAVAILABLE", "error": "full", "count": 5},
    ]
    text = (tmp_path / "r.md").read_text()
    assert "| INVALID_ARG | 9999 tokens \\| at most 512 | 20 |" in text
    assert text.index("did not end well") < text.index("9999") < text.index("| run |") < text.index("### Throughput")
    words = Page((tmp_path / "r.html").read_text()).words
    assert words.index("did not end well") < words.index("9999 tokens") < words.index("requests/s")
    assert "No measured request ended well" in words


@pytest.mark.parametrize(("num_samples", "said"), [(0, "not in it"), (10, "not of the whole run")])
def test_metrics_that_failed_at_once_or_half_way_are_told(num_samples: int, said: str) -> None:
    seen = run(steady(), metrics_failure="http://here:2/metrics: timed out")
    seen.samples = [ServerSample(at * 10**8, {}) for at in range(num_samples)]
    words = f"The server's metrics are {said}: http://here:2/metrics: timed out"
    [part] = document_of([seen], title="", targets=(), num_gpus=None).runs
    assert f"{words}." in part.warnings


def test_runs_of_one_name_are_told_apart(folders: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "later" / "rate-50"
    other.parent.mkdir()
    folders[0].rename(tmp_path / "kept")
    (tmp_path / "earlier").mkdir()
    (tmp_path / "kept").rename(tmp_path / "earlier" / "rate-50")
    folders[1].rename(other)
    report(tmp_path / "earlier/rate-50", other, "--out", tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text())
    assert [run["figures"]["name"] for run in found["runs"]] == ["earlier/rate-50", "later/rate-50"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nowhere"], "is no run's folder"),
        (["--out", "r.pdf"], ".html, .md, .json"),
        (["--slo", "ttft_p99=5"], "is meant for each request"),
    ],
)
def test_a_wrong_report_says_what_is_allowed(
    folders: list[Path], args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [] if args == ["nowhere"] else [str(folders[0])]
    with pytest.raises(SystemExit) as ended:
        run_command("bench", ["report", *runs, *args])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_prometheus_text_is_read_by_name_and_labels(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text(
        "# TYPE trireme_requests_running gauge\n"
        'trireme_requests_running{version="1",model="m"} 3\n'
        "# TYPE trireme_e2e_request_latency_seconds histogram\n"
        'trireme_e2e_request_latency_seconds_bucket{model="m",le="+Inf"} 2\n'
        'trireme_e2e_request_latency_seconds_count{model="m"} 2\n'
        "# TYPE nv_cpu_utilization gauge\nnv_cpu_utilization 0.5\n"
    )
    assert read_metrics((tmp_path / "metrics").as_uri()) == {
        'trireme_requests_running{model="m",version="1"}': 3.0,
        'trireme_e2e_request_latency_seconds_count{model="m"}': 2.0,
    }
