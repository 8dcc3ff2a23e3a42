"""The site: Markdown pages, notebooks, a gallery of the examples, and the API reference from docstrings (`make docs`)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from attnlearn import __version__

project = "attnlearn"
author = "attnlearn developers"
release = version = __version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "mathml",
    "plain_docstrings",
]
exclude_patterns = ["_ext", "gallery/*.ipynb", "gallery/*.py", "gallery/*.json", "gallery/*.zip"]
templates_path: list[str] = []
html_theme = "furo"
html_title = f"attnlearn {release}"
html_theme_options = {
    "source_repository": "https://github.com/attnlearn/attnlearn/",
    "source_branch": "main",
    "source_directory": "docs/",
}
html_math_renderer = "mathml"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache", "mystnb.unknown_mime_type"]
nb_execution_mode = "off"
"""Notebooks hold their outputs; `make tutorials` runs them again, and a test does."""

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
default_role = "code"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "ignore_pattern": "__init__",
    "download_all_examples": False,
    "show_memory": False,
    "remove_config_comments": True,
    "plot_gallery": True,
    "abort_on_example_error": True,
    "min_reported_time": 1e9,
}
linkcheck_ignore = [
    r"http://127\.0\.0\.1.*",
    r"https://example\.org.*",
    r"https://attnlearn\.readthedocs\.io.*",
    r"https://github\.com/attnlearn/.*",
]
linkcheck_timeout = 10
