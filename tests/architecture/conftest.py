"""Makes `tools/` importable: the reference generator knows how to list commands and keys."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
