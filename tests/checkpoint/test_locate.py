"""Names to paths, and fetching: what is here is used, what is fetched appears whole or not at all. No network."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from huggingface_hub import constants, errors

from glassformer.checkpoint import catalogue, locate as module
from glassformer.checkpoint.catalogue import CATALOGUE, Entry, Hub, Wheel
from glassformer.checkpoint.locate import Part, fetch, held, home, locate
from glassformer.errors import FetchError, ModelNotFound
from tests.checkpoint.files import refused
