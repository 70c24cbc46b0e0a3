# SPDX-License-Identifier: Apache-2.0
"""The writer of every page that has generated parts, and the check of the links between all documents: `make docs`."""

import sys

from documents import (
    admission_page,
    check_links,
    contract_table,
    cost_cases_page,
    decision_pages,
    performance_page,
    planner_page,
    quantization_page,
    study_pages,
    support_table,
    trtllm_page,
    vllm_pages,
)
from documents.reference import reference_pages
from documents.serving_pages import gate_page, gateway_page, rollout_page

PAGES = {
    contract_table.PAGE: contract_table.page,
    trtllm_page.PAGE: trtllm_page.page,
    support_table.PAGE: support_table.page,
    support_table.README: support_table.readme,
    quantization_page.PAGE: quantization_page.page,
    gate_page.PAGE: gate_page.page,
    gateway_page.PAGE: gateway_page.page,
    rollout_page.PAGE: rollout_page.page,
    admission_page.PAGE: admission_page.page,
    performance_page.PAGE: performance_page.page,
    planner_page.PAGE: planner_page.page,
    **decision_pages.WRITERS,
    **study_pages.WRITERS,
    **vllm_pages.WRITERS,
    cost_cases_page.PAGE: cost_cases_page.page,
    **reference_pages.WRITERS,
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(check_links.main())
