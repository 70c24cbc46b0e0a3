# SPDX-License-Identifier: Apache-2.0
"""The files of the page over HTTP: for everybody, with a strict policy, and nothing but the page's own files."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kserve_server import KServeServer, story
from running_gateway import RunningGateway

from gateway.page import page_routes

FOLDER = Path(page_routes.__file__).parent
FILES = sorted(file for file in FOLDER.iterdir() if file.suffix in {".html", ".css", ".js", ".svg"})

_UNSAFE = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|localStorage|\.cookie"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("0123456789abcdef")
    with KServeServer(*story()) as server, RunningGateway(server.url, token_file=keys) as running:
        yield running


def test_the_page_is_there_without_a_key(gateway: RunningGateway) -> None:
    answer = gateway.call("GET", "/")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.data == (FOLDER / "index.html").read_bytes()


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_each_file_has_its_type_and_headers_that_let_nothing_else_run(gateway: RunningGateway, file: Path) -> None:
    answer = gateway.call("GET", f"/page/{file.name}")
    assert answer.data == file.read_bytes()
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    assert answer.headers["content-type"].startswith(kinds[file.suffix])
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-frame-options"] == "DENY"


def test_a_browser_that_has_a_file_is_not_sent_it_again(gateway: RunningGateway) -> None:
    answer = gateway.call("GET", "/page/page.js")
    assert answer.headers["cache-control"] == "no-cache"
    for has in (answer.headers["etag"], f'"other", W/{answer.headers["etag"]}'):
        again = gateway.call("GET", "/page/page.js", **{"If-None-Match": has})
        assert (again.status, again.data) == (304, b"")
        assert again.headers["etag"] == answer.headers["etag"]
    assert gateway.call("GET", "/page/page.js", **{"If-None-Match": '"other"'}).status == 200


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/page_routes.py", "/page/none.js", "/page/../gateway.py", "/page/%2e%2e/gateway.py",
     "/page/page%2ejs%00.css", "/page/..%2f..%2fpyproject.toml", "/index.html"],
)  # fmt: skip
def test_no_other_file_can_be_had(gateway: RunningGateway, path: str) -> None:
    answer = gateway.call("GET", path)
    assert answer.status in {401, 404}, "a path that is no file of the page"
    assert b"SPDX" not in answer.data


def test_only_reading_is_possible(gateway: RunningGateway) -> None:
    assert gateway.call("HEAD", "/").status == 200
    refused = gateway.call("POST", "/", b"{}")
    assert (refused.status, refused.json["error"]["code"]) == (405, "method_not_allowed")


def test_the_files_load_nothing_from_elsewhere_and_make_no_markup_of_texts() -> None:
    for file in FILES:
        text = file.read_text()
        found = re.findall(r"https?://[^\s\"'<>)]+", text)
        assert set(found) <= {"http://www.w3.org/2000/svg"}, file.name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|localStorage|\.cookie", text
        )
    page = (FOLDER / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page)
    assert set(re.findall(r'(?:src|href)="(?!#)([^"]+)"', page)) <= {f"page/{file.name}" for file in FILES}
    modules = {file.name for file in FILES if file.suffix == ".js"}
    used = {name for file in FILES for name in re.findall(r'from "\./([\w.]+)"', file.read_text())}
    assert used | {"page.js"} == modules
