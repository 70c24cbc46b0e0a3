# SPDX-License-Identifier: Apache-2.0
"""The writer of every page that has generated parts, and the check of the links between all documents: `make docs`."""

import sys

from documents import (
    check_links,
    contract_table,
    cost_cases_page,
    gate_page,
    peers_page,
    quantization_page,
    rollout_page,
    support_table,
    trtllm_page,
)

PAGES = {
    contract_table.PAGE: contract_table.page,
    trtllm_page.PAGE: trtllm_page.page,
    support_table.PAGE: support_table.page,
    support_table.README: support_table.readme,
    quantization_page.PAGE: quantization_page.page,
    gate_page.PAGE: gate_page.page,
    rollout_page.PAGE: rollout_page.page,
    peers_page.PAGE: peers_page.page,
    cost_cases_page.PAGE: cost_cases_page.page,
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(check_links.main())
