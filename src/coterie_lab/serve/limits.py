"""Limits the size of a request's body, and the time to receive it."""

import asyncio

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BoundedBody:
    """Receives the whole body before the application runs; refuses one that is too large or too slow."""

    def __init__(self, app: ASGIApp, most: int = 65_536, seconds: float = 10.0) -> None:
        self.app, self.most, self.seconds = app, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            async with asyncio.timeout(self.seconds):
                body = await self._body(scope, receive)
        except TimeoutError:
            return await self._refuse(408, f"the request took more than {self.seconds:g} seconds", scope, receive, send)
        if body is None:
            return await self._refuse(413, f"a request may have {self.most:,} bytes", scope, receive, send)
        given = False

        async def again() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        return await self.app(scope, again, send)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None if it is too large. What a header promises is believed only if it is too much."""
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if told.isdigit() and int(told[:20]) > self.most:
            return None
        body: bytes = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self.most:
                return None
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return body

    async def _refuse(self, status: int, why: str, scope: Scope, receive: Receive, send: Send) -> None:
        # The rest is not read: the connection ends here.
        await JSONResponse({"detail": why}, status, {"connection": "close"})(scope, receive, send)
