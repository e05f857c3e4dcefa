"""What do we learn from? Personal data, duplicates, difficulty, audit, dataset loaders.

The names below are imported when they are first used, so that `import agent_forge.curation` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_forge.curation.audit import Audit, audit_file, compare, write_audit
    from agent_forge.curation.balancing import BalanceReport, balance, parse_target
    from agent_forge.curation.difficulties import Difficulty, difficulty, estimate, features, fit, measure
    from agent_forge.curation.duplicates import deduplicate_file, find_duplicates, find_leakage
    from agent_forge.curation.generate import Endpoint
    from agent_forge.curation.homes import fetch
    from agent_forge.curation.lines import read_rows, write_rows
    from agent_forge.curation.loaders import DATASETS, load
    from agent_forge.curation.pii import Match, find_pii
    from agent_forge.curation.pii.names import load_names
    from agent_forge.curation.records import Record
    from agent_forge.curation.replace import Scrubber, mask_pii, scrub_text
    from agent_forge.curation.scrub import ScrubReport, scrub_file, scrub_line

_HOMES = {
    "audit": ("Audit", "audit_file", "compare", "write_audit"),
    "balancing": ("BalanceReport", "balance", "parse_target"),
    "difficulties": ("Difficulty", "difficulty", "estimate", "features", "fit", "measure"),
    "duplicates": ("deduplicate_file", "find_duplicates", "find_leakage"),
    "homes": ("fetch",),
    "generate": ("Endpoint",),
    "lines": ("read_rows", "write_rows"),
    "loaders": ("DATASETS", "load"),
    "pii": ("Match", "find_pii"),
    "pii.names": ("load_names",),
    "records": ("Record",),
    "replace": ("Scrubber", "mask_pii", "scrub_text"),
    "scrub": ("ScrubReport", "scrub_file", "scrub_line"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "DATASETS",
    "Audit",
    "BalanceReport",
    "Difficulty",
    "Endpoint",
    "Match",
    "Record",
    "ScrubReport",
    "Scrubber",
    "audit_file",
    "balance",
    "compare",
    "deduplicate_file",
    "difficulty",
    "estimate",
    "features",
    "fetch",
    "find_duplicates",
    "find_leakage",
    "find_pii",
    "fit",
    "load",
    "load_names",
    "mask_pii",
    "measure",
    "parse_target",
    "read_rows",
    "scrub_file",
    "scrub_line",
    "scrub_text",
    "write_audit",
    "write_rows",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
