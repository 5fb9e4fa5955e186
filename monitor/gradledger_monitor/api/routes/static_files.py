"""The files of pages: styles and scripts, compressed if the client accepts it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gradledger_monitor.api.middleware.compression import accepts_gzip
from gradledger_monitor.api.pages.layout import not_found
from gradledger_web import assets

router = APIRouter(include_in_schema=False)

_IMMUTABLE = "public, max-age=31536000, immutable"


@router.get("/static/{version}/{name}")
def serve_asset(request: Request, version: str, name: str) -> Response:
    """Styles, scripts and plotly.js, under URLs that change with their content."""
    if name not in assets.paths():
        return not_found("File not found", f"There is no file {name}.")
    headers = {"Cache-Control": _IMMUTABLE, "Vary": "Accept-Encoding"}
    if not accepts_gzip(request.headers):
        plain = assets.paths()[name].read_bytes()
        return Response(plain, 200, headers, assets.media_type(name))
    headers |= {"Content-Encoding": "gzip"}
    return Response(assets.compressed(name), 200, headers, assets.media_type(name))
