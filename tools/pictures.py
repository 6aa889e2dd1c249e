"""Pictures of the screen for README and site, drawn from what commands print: docs/assets/NAME[.zh].svg.

Usage: python tools/pictures.py
"""

import html
import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "docs" / "assets"
WIDTH = 96
PICTURES = {"plan": ("stoker plan qlora_qwen2.5_7b", {"en": 17, "zh": 18})}
"""Each with its command, and how many lines are shown in which language."""
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""rich names fonts of a server elsewhere: the reader's own are used instead."""
TEXT = re.compile(r'textLength="([\d.]+)"([^>]*)>([^<]*)</text>')
"""rich counts a Chinese character as one cell here."""


def main() -> None:
    """Draw all, in both languages."""
    for name, (command, languages) in PICTURES.items():
        for language, lines in languages.items():
            printed = _printed(command, language).splitlines()
            shown = "\n".join(printed[:lines])
            ending = "" if language == "en" else f".{language}"
            ASSETS.joinpath(f"{name}{ending}.svg").write_text(_drawn(command, shown), encoding="utf-8")


def _printed(command: str, language: str) -> str:
    words = [sys.executable, "-m", *command.split()]
    settings = {**os.environ, "STOKER_LANG": language, "COLUMNS": str(WIDTH), "FORCE_COLOR": "1"}
    return subprocess.run(words, env=settings, capture_output=True, encoding="utf-8", check=True).stdout


def _drawn(command: str, shown: str) -> str:
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(shown), soft_wrap=False)
    return TEXT.sub(_spread, FONT.sub("", console.export_svg(title=f"$ {command}", unique_id="stoker"))) + "\n"


def _spread(found: re.Match[str]) -> str:
    text = html.unescape(found[3])
    return f'textLength="{float(found[1]) * cell_len(text) / len(text):.1f}"{found[2]}>{found[3]}</text>'


if __name__ == "__main__":
    main()
