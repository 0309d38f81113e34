"""multipart/form-data (RFC 7578), as far as an upload needs it: small fields and one file, whole in memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from glassformer.ground.errors import InputError

BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,70})"?', re.IGNORECASE)
PARAMETER = re.compile(r';\s*(name|filename)="([^"]*)"', re.IGNORECASE)
MAX_PARTS = 16


@dataclass(frozen=True)
class Part:
    content: bytes
    filename: str | None  # None for a field


def parts_of(body: bytes, content_type: str) -> dict[str, Part]:
    """The parts of a body by name.

    >>> body = b'--x\\r\\nContent-Disposition: form-data; name="purpose"\\r\\n\\r\\nbatch\\r\\n--x--\\r\\n'
    >>> parts_of(body, "multipart/form-data; boundary=x")["purpose"].content
    b'batch'
    """
    boundary = BOUNDARY.search(content_type)
    if not content_type.lower().startswith("multipart/form-data") or boundary is None:
        raise InputError("a file is sent as multipart/form-data, with the fields file and purpose.")
    sections = (b"\r\n" + body).split(b"\r\n--" + boundary[1].encode("latin-1"))
    if len(sections) < 3 or not sections[-1].startswith(b"--") or len(sections) > MAX_PARTS + 2:
        raise InputError(f"the body is not from 1 to {MAX_PARTS} parts of a form, as its Content-Type says.")
    parts: dict[str, Part] = {}
    for section in sections[1:-1]:
        head, blank, content = section.partition(b"\r\n\r\n")
        lines = head.decode("utf-8", "replace").splitlines()
        disposition = next((line for line in lines if line.lower().startswith("content-disposition:")), "")
        fields = {name.lower(): value for name, value in PARAMETER.findall(disposition)}
        if not blank or "name" not in fields:
            raise InputError("a part of the form has no name.")
        parts[fields["name"]] = Part(content, fields.get("filename"))
    return parts
