"""The README as package indexes show it: links and pictures of the repository by their full addresses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY = "https://github.com/attnlearn/attnlearn"
RAW = "https://raw.githubusercontent.com/attnlearn/attnlearn/main"


class ReadmeHook(MetadataHookInterface):
    """Relative links work in a clone and nowhere else."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the README with full addresses into the metadata."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        text = re.sub(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)", rf"![\1]({RAW}/\2)", text)
        text = re.sub(
            r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)", rf"[\1]({REPOSITORY}/blob/main/\2)", text
        )
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
