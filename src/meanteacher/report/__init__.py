"""Records of runs -> tables, figures and one offline HTML page. Reads JSON; never imports torch.

records = load_records("runs")
print(to_text(summarise(records)))
write_page(records, "report.html", "Digits with 40 labels")
"""

from meanteacher.report.compare import (
    Difference,
    Pair,
    Row,
    Spread,
    answer,
    display_name,
    paired_difference,
    summarise,
    to_markdown,
    to_text,
)
from meanteacher.report.figures import dot_plot, learning_curves
from meanteacher.report.page import render_page, write_page
from meanteacher.report.records import Record, RecordError, load_record, load_records

__all__ = [
    "Difference",
    "Pair",
    "Record",
    "RecordError",
    "Row",
    "Spread",
    "answer",
    "display_name",
    "dot_plot",
    "learning_curves",
    "load_record",
    "load_records",
    "paired_difference",
    "render_page",
    "summarise",
    "to_markdown",
    "to_text",
    "write_page",
]
