"""Settings of the documentation site, which ``make docs`` builds."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

import ncclkv  # noqa: E402
from docs import pages  # noqa: E402

project = "ncclkv"
version = release = ncclkv.__version__
project_copyright = "the authors of ncclkv, Apache License 2.0"

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "docs.pages.links",
]
exclude_patterns = ["examples", "pages"]
nitpicky = True
smartquotes = False  # an option stays --option
default_role = "py:obj"
highlight_language = "text"  # of blocks that name none

# Other projects' pages need a network to be found: make docs ONLINE=1 links to them.
if tags.has("online"):  # noqa: F821
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "mpi4py": ("https://mpi4py.readthedocs.io/en/stable", None),
    }
nitpick_ignore_regex = [("py:.*", r"(argparse|collections|numpy|np|torch|mpi4py|mxnet)\b.*")]

# The anchors of GitHub, so that a link works in both places.
myst_heading_anchors = 4

# The build needs none of them.
autodoc_mock_imports = ["torch", "mxnet", "cupy"]
autodoc_typehints = "none"  # the sections of parameters name the types
autodoc_member_order = "bysource"
autosummary_ignore_module_all = False
numpydoc_show_class_members = False  # autodoc's members are shown in full
templates_path = ["pages/templates"]

pygments_style = "friendly"  # shows added and removed lines in colours
pygments_dark_style = "monokai"
html_theme = "furo"
html_title = f"ncclkv {version}"
html_copy_source = False
html_show_sphinx = False


# Before Sphinx looks for pages.
pages.write(DOCS / "reference")
