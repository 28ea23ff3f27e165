"""The web application: the page of a run, and the requests it makes.

By default it listens on this machine only. Requests are limited in size and time, and answers are computed one at a
time in a separate thread. A page of another site cannot use it: it allows no origin, reads only JSON, and on this
machine answers only to the machine's own names.
"""

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel
from starlette.middleware.trustedhost import TrustedHostMiddleware

import coterie
from coterie_lab.explorer.collect import collect
from coterie_lab.explorer.page import build
from coterie_lab.serve import language, summarizer
from coterie_lab.serve.limits import BoundedBody
from coterie_lab.serve.worker import Busy, Worker
from coterie_lab.training.run import Run, read_json
from coterie_lab.training.settings import Device

# Each kind of task with the routes of its page.
ROUTERS = {"language model": language.router, "summarizer": summarizer.router}
LOCAL = ("127.0.0.1", "localhost", "[::1]")


class Problem(BaseModel):
    """The error of a request."""

    detail: str


PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "not a request that can be read"},
    408: {"model": Problem, "description": "too slow"},
    413: {"model": Problem, "description": "too large"},
    422: {"model": Problem, "description": "not what was asked for"},
    503: {"model": Problem, "description": "too many at once"},
}


def application(run: Path, device: Device = "auto", hosts: tuple[str, ...] = LOCAL) -> FastAPI:
    """The web application of a run; `hosts`: the names it answers to ("*": any)."""
    contents = collect([run])
    kind = read_json(Run(run).config)["kind"]
    app = FastAPI(
        title="Coterie", version=coterie.__version__, docs_url=None, redoc_url=None,
        description="Asks a trained model: what comes next, clusters first and then words; or a sentence's title.",
    )  # fmt: skip
    app.include_router(ROUTERS[kind](run, device, Worker(), PROBLEMS))
    page = build(contents, live=kind)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def live_page() -> HTMLResponse:
        return HTMLResponse(page, headers={"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"})

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        # Do not repeat the input: it may be large, or not even text.
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5])
        return JSONResponse({"detail": told[:1000].encode("utf-8", "replace").decode()}, 422)

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503, {"retry-after": "1"})

    app.add_middleware(BoundedBody)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return app
