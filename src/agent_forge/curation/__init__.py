"""What do we learn from? Personal data, duplicates, difficulty, audit, dataset loaders.

The names below are imported when they are first used, so that `import agent_forge.curation` stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_forge.lazy import attach

if TYPE_CHECKING:
    from agent_forge.curation.audit import Audit, audit_file, compare, write_audit
    from agent_forge.curation.balancing import BalanceReport, balance, parse_target
    from agent_forge.curation.difficulties import Difficulty, difficulty, estimate, features, fit, measure
    from agent_forge.curation.downloads import fetch
    from agent_forge.curation.duplicates import deduplicate_file, find_duplicates, find_leakage
    from agent_forge.curation.generate import Endpoint
    from agent_forge.curation.lines import read_rows, write_rows
    from agent_forge.curation.loaders import DATASETS, load
    from agent_forge.curation.records import Record
    from agent_forge.curation.scrub import ScrubReport, scrub_file, scrub_line
    from agent_forge.pii import Match, find_pii
    from agent_forge.pii.names import load_names
    from agent_forge.pii.replace import Scrubber, mask_pii, scrub_text

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "audit": "Audit audit_file compare write_audit",
        "balancing": "BalanceReport balance parse_target",
        "difficulties": "Difficulty difficulty estimate features fit measure",
        "duplicates": "deduplicate_file find_duplicates find_leakage",
        "generate": "Endpoint",
        "downloads": "fetch",
        "lines": "read_rows write_rows",
        "loaders": "DATASETS load",
        "records": "Record",
        "scrub": "ScrubReport scrub_file scrub_line",
        "agent_forge.pii": "Match find_pii",
        "agent_forge.pii.names": "load_names",
        "agent_forge.pii.replace": "Scrubber mask_pii scrub_text",
    },
)
