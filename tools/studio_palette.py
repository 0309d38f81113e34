"""The studio's file of the colors that every picture has: `make studio` writes it."""

from __future__ import annotations

import argparse
from pathlib import Path

from glassformer.page.palette import studio_css

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="where to write it")
    parser.parse_args().file.write_text(studio_css(), "utf-8")
