# SPDX-License-Identifier: Apache-2.0
"""Counters that are a histogram's parts are shown as the histogram, and everything else on the page as it is."""

from prometheus_client.parser import text_string_to_metric_families

from serving.frontend.http.histograms import with_histograms

OTHERS = """\
# HELP nv_energy Joules
# TYPE nv_energy counter
nv_energy{gpu="0"} 12.5
# HELP b_bucket Of something else
# TYPE b_bucket gauge
b_bucket 1
# HELP c_bucket Alone
# TYPE c_bucket counter
c_bucket{le="1"} 1
"""
PAGE = f"""\
# HELP gap_seconds_bucket Between, "of" all
# TYPE gap_seconds_bucket counter
gap_seconds_bucket{{le="0.25",model="m",version="1"}} 1
gap_seconds_bucket{{le="+Inf",model="m",version="1"}} 3
gap_seconds_bucket{{le="0.25",model="m",version="2"}} 0
gap_seconds_bucket{{le="+Inf",model="m",version="2"}} 0
{OTHERS}# HELP gap_seconds_count Between, "of" all
# TYPE gap_seconds_count counter
gap_seconds_count{{model="m",version="1"}} 3
gap_seconds_count{{model="m",version="2"}} 0
# HELP gap_seconds_sum Between, "of" all
# TYPE gap_seconds_sum counter
gap_seconds_sum{{model="m",version="1"}} 1.5
gap_seconds_sum{{model="m",version="2"}} 0"""


def test_three_families_become_one() -> None:
    page = with_histograms(PAGE)
    assert OTHERS in page
    assert page.count("gap_seconds histogram") == 1
    families = {family.name: family for family in text_string_to_metric_families(page)}
    gap = families["gap_seconds"]
    assert (gap.type, gap.documentation) == ("histogram", 'Between, "of" all')
    assert [(sample.name, sample.labels["version"], sample.value) for sample in gap.samples] == [
        ("gap_seconds_bucket", "1", 1.0), ("gap_seconds_bucket", "1", 3.0),
        ("gap_seconds_bucket", "2", 0.0), ("gap_seconds_bucket", "2", 0.0),
        ("gap_seconds_sum", "1", 1.5), ("gap_seconds_sum", "2", 0.0),
        ("gap_seconds_count", "1", 3.0), ("gap_seconds_count", "2", 0.0),
    ]  # fmt: skip
    assert not [name for name in families if name.startswith("gap_seconds_")]


def test_a_page_without_them_stays_as_it_is() -> None:
    for page in ("", OTHERS, "no page at all\n# HELP", "# HELP x y\n# TYPE x counter\n"):
        assert with_histograms(page) == page


def test_what_is_one_already_stays_one() -> None:
    assert with_histograms(with_histograms(PAGE)) == with_histograms(PAGE)
