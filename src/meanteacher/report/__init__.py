"""Records of runs -> tables, figures and offline HTML pages. Reads JSON; never imports torch.

write_page("report.html", load_records("runs"))
print(to_text(summarise(load_records("runs"))))
"""

from meanteacher.files.typed import RecordError
from meanteacher.formats import display_name
from meanteacher.records import Record, load_record, load_records
from meanteacher.report.compare import paired_difference, summarise, to_text
from meanteacher.report.figures import dot_plot, learning_curves
from meanteacher.report.page import answer, render_page, write_page

PAGE = "report.html"
"""The name of every page that is written into a folder."""

__all__ = [
    "PAGE",
    "Record",
    "RecordError",
    "answer",
    "display_name",
    "dot_plot",
    "learning_curves",
    "load_record",
    "load_records",
    "paired_difference",
    "render_page",
    "summarise",
    "to_text",
    "write_page",
]
