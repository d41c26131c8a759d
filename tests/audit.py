"""`make audit`: fails where the package index has withdrawn a pinned version, or knows a vulnerability of it.

The index is the one that pip uses. Not every index tells about vulnerabilities.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
_SIMPLE = "application/vnd.pypi.simple.v1+json"
_SECONDS = 30


def pinned(text: str) -> Iterator[tuple[str, str]]:
    """Name and version of every line that has them."""
    for line in text.splitlines():
        if found := re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;#]+)", line.partition("#")[0].strip()):
            yield re.sub(r"[-_.]+", "-", found[1]).lower(), found[2]


def problems(name: str, version: str, index: str) -> list[str]:
    """What the index says against this version.

    Raises:
        OSError: the index does not answer.
    """
    of_version = re.compile(rf"-{re.escape(version)}(?:-|\.tar|\.zip)", re.IGNORECASE)
    files = {file: yanked for file, yanked in _files(f"{index}/{name}/").items() if of_version.search(file)}
    found = [] if files else [f"{name} {version}: the index does not have it"]
    withdrawn = [yanked for yanked in files.values() if yanked]
    if files and len(withdrawn) == len(files):
        found.append(f"{name} {version}: withdrawn ({withdrawn[0]})")
    about = _answer(f"{index.removesuffix('/simple')}/pypi/{name}/{version}/json", "application/json")
    for known in json.loads(about or "{}").get("vulnerabilities", []):
        if not known.get("withdrawn"):
            found.append(
                f"{name} {version}: {known['id']}, fixed in {', '.join(known.get('fixed_in') or ['no version'])}"
            )
    return found


def _files(url: str) -> dict[str, str]:
    """The files of a package, and why they were withdrawn; empty where they were not. From JSON or from a page."""
    content = _answer(url, f"{_SIMPLE}, text/html;q=0.1")
    if content.lstrip().startswith("{"):
        return {file["filename"]: _reason(file.get("yanked")) for file in json.loads(content)["files"]}
    page = _Links()
    page.feed(content)
    return page.files


class _Links(HTMLParser):
    """The links of a page of the index, by the names of their files (PEP 503 and 592)."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a" and (address := dict(attrs).get("href")):
            yanked = dict(attrs).get("data-yanked", False)
            self.files[address.partition("#")[0].rpartition("/")[2]] = _reason(True if yanked is None else yanked)


def _reason(yanked: object) -> str:
    """`yanked` is a reason, or whether there is one. An empty attribute of a page also means that it is."""
    return "no reason given" if yanked is True or yanked == "" else str(yanked or "")


def _answer(url: str, kind: str) -> str:
    """What is at an address; empty where there is nothing.

    Raises:
        OSError: there is no answer.
    """
    request = urllib.request.Request(url, headers={"Accept": kind})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 404:
            raise
        return ""


def _pips_index() -> str:
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    if configured := os.environ.get("PIP_INDEX_URL") or asked.stdout.strip():
        return configured
    from pip._internal.models.index import PyPI

    return PyPI.simple_url


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--index", default="")
    parser.add_argument("--constraints", type=Path, default=CONSTRAINTS)
    given = parser.parse_args()
    index = (given.index or _pips_index()).rstrip("/")
    versions = list(pinned(given.constraints.read_text(encoding="utf-8")))
    found = []
    for name, version in versions:
        try:
            found += problems(name, version, index)
        except OSError as error:
            print(f"The package index does not answer ({error}): nothing is known.", file=sys.stderr)  # noqa: T201
            return 2
    for problem in found:
        print(problem)  # noqa: T201
    print(f"{len(versions)} versions, {len(found)} problems")  # noqa: T201
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
