"""A withdrawn or vulnerable version is named; an index that does not answer is no clean bill."""

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import audit
from support import PATIENCE

PAGES = {
    "/simple/good/": {"files": [{"filename": "good-1.0-py3-none-any.whl", "yanked": False}]},
    "/pypi/good/1.0/json": {"vulnerabilities": []},
    "/simple/gone/": {"files": [{"filename": "gone-2.0.tar.gz", "yanked": "broken"}, {"filename": "gone-3.0.tar.gz"}]},
    "/simple/half-gone/": {
        "files": [{"filename": "half_gone-2.0.tar.gz", "yanked": True}, {"filename": "half_gone-2.0-cp311-x.whl"}]
    },
    # Some indexes have pages only.
    "/simple/page-gone/": '<a href="../f/page_gone-1.0.tar.gz#sha256=0" data-yanked="unsafe">page_gone-1.0.tar.gz</a>',
    "/simple/page-good/": '<a href="../f/page_good-1.0.tar.gz#sha256=0">page_good-1.0.tar.gz</a>',
    "/simple/hurt/": {"files": [{"filename": "hurt-1.5-py3-none-any.whl"}]},
    "/pypi/hurt/1.5/json": {
        "vulnerabilities": [
            {"id": "CVE-1", "fixed_in": ["1.6"], "withdrawn": None},
            {"id": "CVE-2", "fixed_in": [], "withdrawn": "2026-01-01"},
        ]
    },
}


class Index(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = PAGES.get(self.path)
        self.send_response(404 if page is None else 200)
        self.end_headers()
        self.wfile.write((page if isinstance(page, str) else json.dumps(page)).encode())

    def log_message(self, *_: object, **__: object) -> None: ...


@pytest.fixture
def index() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()
        thread.join()


def test_every_version_of_the_project_is_pinned_and_asked_about():
    versions = dict(audit.pinned(audit.CONSTRAINTS.read_text(encoding="utf-8")))
    assert {"torch", "numpy", "pillow", "pyyaml"} <= versions.keys()
    assert len(versions) == sum("==" in line for line in audit.CONSTRAINTS.read_text().splitlines())


@pytest.mark.parametrize(
    ("pin", "words"),
    [
        ("good==1.0", ""),
        ("gone==2.0", "gone 2.0: withdrawn (broken)"),
        ("gone==3.0", ""),
        ("Half_Gone==2.0", ""),
        ("page-good==1.0", ""),
        ("page-gone==1.0", "page-gone 1.0: withdrawn (unsafe)"),
        ("hurt==1.5", "hurt 1.5: CVE-1, fixed in 1.6"),
        ("good==9.9", "good 9.9: the index does not have it"),
        ("missing==1", "missing 1: the index does not have it"),
    ],
)
def test_what_the_index_says_decides(index: str, tmp_path: Path, pin: str, words: str):
    (tmp_path / "constraints.txt").write_text(f"# versions\n{pin}\n")
    done = _audit(index, tmp_path / "constraints.txt")
    assert done.returncode == bool(words), done.stderr
    assert words in done.stdout
    assert "CVE-2" not in done.stdout


def test_an_index_that_does_not_answer_is_no_clean_bill(tmp_path: Path):
    (tmp_path / "constraints.txt").write_text("good==1.0\n")
    done = _audit("http://127.0.0.1:9/simple", tmp_path / "constraints.txt")
    assert (done.returncode, "nothing is known" in done.stderr) == (2, True)


def _audit(index: str, constraints: Path) -> "subprocess.CompletedProcess[str]":
    words = ["--index", index, "--constraints", str(constraints)]
    return subprocess.run(
        [sys.executable, audit.__file__, *words], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
