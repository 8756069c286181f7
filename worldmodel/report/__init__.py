"""Results into pictures and words: one self-contained HTML page, strict JSON, a model card, a hero picture.

Matplotlib and Jinja are imported when something is drawn, not here.
"""

from worldmodel.report.differences import Difference, differences, load_report
from worldmodel.report.evidence import Evidence
from worldmodel.report.gates import Gate, check_gates
from worldmodel.report.verdict import findings, trust_step, verdict
from worldmodel.report.write import write_hero, write_report

__all__ = [
    "Difference",
    "Evidence",
    "Gate",
    "check_gates",
    "differences",
    "findings",
    "load_report",
    "trust_step",
    "verdict",
    "write_hero",
    "write_report",
]
