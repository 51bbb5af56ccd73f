"""plotly.min.js from the installed `plotly` package: compressed once, kept by browsers, asked for by few pages only."""

from __future__ import annotations

import gzip
import hashlib
from functools import lru_cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response

router = APIRouter(prefix="/static/vendor")

DAY = 86_400


@router.get("/plotly.min.js", include_in_schema=False)
def plotly(request: Request) -> Response:
    """The library, as the package brings it."""
    body, packed, tag = _plotly()
    headers = {"etag": tag, "cache-control": f"public, max-age={DAY}", "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(packed, media_type="text/javascript", headers={**headers, "content-encoding": "gzip"})
    return Response(body, media_type="text/javascript", headers=headers)


@lru_cache(maxsize=1)
def _plotly() -> tuple[bytes, bytes, str]:
    body = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return body, gzip.compress(body, 6), f'"{hashlib.sha256(body).hexdigest()[:20]}"'
