"""Images of boxes with a torch that is nothing but its version, and without some packages."""

import sys
from importlib import metadata

SITE = f"/usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def stand_in_torch(version: str) -> dict[str, str]:
    """Files of a torch that is nothing but its version."""
    return {
        f"{SITE}/torch-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"{SITE}/torch/__init__.py": "raise ImportError('a stand-in')\n",
        f"{SITE}/torch/version.py": f"__version__ = '{version}'\ncuda = None\n",
    }


def hidden(package: str) -> tuple[str, ...]:
    """A package of these tests, to be hidden on a box."""
    return package, f"{package}-{metadata.version(package)}.dist-info"
