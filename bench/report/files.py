"""Write the JSON of a run and its plots, without replacing files of an earlier run."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench.report import plots


def write(folder: Path, record: dict[str, Any]) -> list[str]:
    """Write all files of a run; return their names, and a line about plots that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    start = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    base = folder / start
    number = 0
    while (path := base.with_suffix(".json")).exists():
        base, number = folder / f"{start}-{number}", number + 1
    path.write_text(json.dumps(record, indent=1) + "\n")
    return [str(path), *plots.draw(base, record)]
