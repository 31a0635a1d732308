"""The page at ``/``: its files, each at a fixed route, and the headers that let a browser load nothing else.

The files hold no data, so they need no token: the page asks ``/v1/statistics``, ``/v1/why``, ``/v1/history`` and
``/v1/rows`` for what it shows. A browser asks again for each file at each visit (``no-cache``) and gets 304 while it is
the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from aiohttp import web

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_FOLDER = "page"
PAGE_PATH = f"/{_FOLDER}/{{file}}"
_HOME = "dashboard.html"
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Browsers that send no Sec-Fetch-Site are known by it as the page's own (``access.browsers``).
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class _File:
    data: bytes
    content_type: str
    tag: str


class Dashboard:
    """The page's files, read once."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        for each in resources.files(__package__).joinpath(_FOLDER).iterdir():
            kind = _TYPES.get(each.name.rpartition(".")[2])
            if kind is not None:
                data = each.read_bytes()
                path = "/" if each.name == _HOME else f"/{_FOLDER}/{each.name}"
                self._files[path] = _File(data, kind, hashlib.sha256(data).hexdigest()[:16])

    async def home(self, request: web.Request, _: object) -> web.StreamResponse:
        """The page itself."""
        return self._answer(request, self._files["/"])

    async def file(self, request: web.Request, _: object) -> web.StreamResponse:
        """One of its other files, at ``PAGE_PATH``. Raises HTTPNotFound: there is no such file."""
        file = self._files.get(request.path)
        if file is None:
            raise web.HTTPNotFound
        return self._answer(request, file)

    @staticmethod
    def _answer(request: web.Request, file: _File) -> web.StreamResponse:
        headers = {**_HEADERS, "ETag": f'"{file.tag}"', "Content-Type": file.content_type}
        known = request.if_none_match or ()
        if any(each.value in (file.tag, "*") for each in known):
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.data, headers=headers)
