"""A profile in a notebook: well-formed, with every worker, in colours that need no script."""

from html.parser import HTMLParser

import torch

import tdmap
from tdmap.diagnostics.profile import JobProfile
from tdmap.diagnostics.reports.notebook import COLOURS, render_html
from tdmap.diagnostics.reports.tables import COLUMNS


class Balanced(HTMLParser):
    """Checks that what is opened is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.widths: list[float] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        style = dict(attrs).get("style") or ""
        if style.startswith("width:"):
            self.widths.append(float(style[len("width:") :].partition("%")[0]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def profile_of(workers: int) -> tdmap.Profiler:
    with tdmap.Profiler() as prof:
        tdmap.map(torch.arange(1000.0), torch.sqrt, num_workers=workers)
    return prof


def test_a_profile_shows_its_workers_and_its_verdict() -> None:
    prof = profile_of(2)
    page = Balanced(prof._repr_html_())
    (job,) = prof.jobs
    assert str(prof.verdict) in page.text and prof.verdict.advice in page.text and "sqrt: 1,000 rows" in page.text
    assert all(("none" if worker < 0 else str(worker)) in page.text for worker in job.workers)
    assert 0.9 * 100 * len(job.workers) <= sum(page.widths) <= 1.01 * 100 * len(job.workers)
    assert "<script" not in prof._repr_html_()


def test_a_profile_of_nothing_and_of_a_job_that_has_not_begun_are_shown() -> None:
    assert "nothing was run" in Balanced(tdmap.Profiler()._repr_html_()).text
    prof = profile_of(0)
    job = JobProfile(1, "<b>&", "map", 10, 1, 10, 1, "serial", 8, 0.0, 1)
    assert "<b>&: 0 rows" in Balanced(render_html([job], prof.verdict)).text


def test_of_many_workers_the_first_are_shown() -> None:
    prof = profile_of(0)
    (job,) = prof.jobs
    (worker,) = job.workers.values()
    job.workers = dict.fromkeys(range(100), worker)
    assert "and 84 more" in Balanced(prof._repr_html_()).text


def test_every_column_has_a_colour_of_its_own() -> None:
    assert set(COLOURS) == set(COLUMNS) and len(set(COLOURS.values())) == len(COLOURS)
