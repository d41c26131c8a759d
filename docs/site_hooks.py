"""What the site does with the pages of docs/, so that they read the same in the repository.

- Equations between `$$` become MathML, which browsers render without a script.
- A link to a file outside of docs/ leads to a copy of it; one to a folder becomes text.
- A notebook becomes a page.
- Examples in docstrings are shown as code.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s:]+)((?:#[^)\s]*)?)\)")
_EQUATION = re.compile(r"^\$\$\n(.+?)\n\$\$$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_COPIES = "repository"
"""The folder of the site with the copies."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    docs = Path(config.docs_dir)
    for path in sorted(docs.rglob("*.ipynb")):
        name = f"{path.relative_to(docs).as_posix()}.md"
        files.append(File.generated(config, name, content=notebook_page(json.loads(path.read_text(encoding="utf-8")))))
    pages = sorted(docs.rglob("*.md"))
    copied = sorted({target for page in pages for target in linked_files(page, docs)})
    for path in (*pages, *(target for target in copied if target.suffix == ".md")):
        for target in linked_files(path, docs):
            name = f"{_COPIES}/{target.relative_to(docs.parent).as_posix()}"
            if files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_uri.startswith(f"{_COPIES}/"):
        markdown = markdown.replace("](docs/", "](../")  # of a copied page, such as SECURITY.md
    return converted(markdown, Path(config.docs_dir) / page.file.src_uri, Path(config.docs_dir))


def converted(markdown: str, path: Path, docs: Path) -> str:
    """A page with its equations and links as the site needs them. Code is left as it is."""
    markdown = _EQUATION.sub(lambda found: convert(found[1].replace("\n", " "), display="block"), markdown)
    parts = _CODE.split(markdown)
    parts[::2] = [_LINK.sub(lambda found: _link(found, path, docs), part) for part in parts[::2]]
    return "".join(parts)


def linked_files(path: Path, docs: Path) -> list[Path]:
    """Files outside of docs/ that a page links to."""
    text = "".join(_CODE.split(path.read_text(encoding="utf-8"))[::2])
    targets = [(path.parent / found[2]).resolve() for found in _LINK.finditer(text)]
    return [target for target in targets if target.is_file() and not target.is_relative_to(docs.resolve())]


def notebook_page(notebook: dict[str, Any]) -> str:
    """The cells of a notebook as Markdown."""
    cells = ["".join(cell["source"]) for cell in notebook["cells"]]
    kinds = [cell["cell_type"] for cell in notebook["cells"]]
    return "\n\n".join(
        f"```python\n{cell}\n```" if kind == "code" else cell for cell, kind in zip(cells, kinds, strict=True)
    )


class ExamplesAsCode(griffe.Extension):
    """For the reference: mkdocstrings takes lines with `>>>` for quotations outside of a section of their own."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """A docstring with each paragraph that begins with `>>>` as a block of code."""
    parts = docstring.split("\n\n")
    return "\n\n".join(f"```pycon\n{part}\n```" if part.startswith(">>>") else part for part in parts)


def _link(found: re.Match[str], path: Path, docs: Path) -> str:
    text, target, anchor = found.groups()
    aimed = (path.parent / target).resolve()
    if aimed.is_dir():
        return text
    if aimed.is_file() and not aimed.is_relative_to(docs.resolve()):
        copy = f"{_COPIES}/{aimed.relative_to(docs.resolve().parent).as_posix()}"
        here = posixpath.dirname(path.relative_to(docs).as_posix())
        return f"[{text}]({posixpath.relpath(copy, here or '.')}{anchor})"
    return found[0]
