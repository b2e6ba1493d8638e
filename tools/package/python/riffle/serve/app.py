"""The paths of riffle-serve."""

from __future__ import annotations

import hashlib
import hmac
import os
import pathlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from .. import Engine
from .. import _structs as C
from .._request import Refusal
from .answers import Answering
from .options import Serving, is_loopback
from .records import Records

PAGE = pathlib.Path(__file__).with_name("page")
#: Paths that need no key: the page itself, which asks for the key, and what supervisors ask.
OPEN_PATHS = ("/", "/page.js", "/page.css", "/health")


class Served:
    """The model that is served, and the state that all requests share."""

    def __init__(self, serving: Serving, engine: Engine):
        self.serving, self.engine = serving, engine
        info = engine.model.info
        own = pathlib.Path(serving.model).resolve().name
        #: The model's name in answers. Requests may use any of `names`.
        self.name = serving.model_name or info.name or own
        self.names = {self.name, own, own.removesuffix(".gguf")} - {""}
        self.max_body = serving.max_body or (4 << 20) + 32 * engine.context_length
        self.keys = [hashlib.sha256(key.encode()).digest() for key in serving.api_keys]
        self.started = time.time()
        self.shutting_down = False
        self.records = Records()
        # Prompts become tokens in these threads, so that other requests go on.
        self.workers = ThreadPoolExecutor(2, thread_name_prefix="riffle request")

    def check_key(self, given: str) -> bool:
        """Compares with all keys, in a time that does not depend on the key."""
        digest = hashlib.sha256(given.encode()).digest()
        fits = [hmac.compare_digest(digest, key) for key in self.keys]
        return any(fits)

    def admit(self, n_answers: int) -> None:
        """Refuses a request for which there is no room."""
        engine, limit = self.engine, self.serving.max_waiting
        if engine.failure is not None:
            raise Refusal(503, str(engine.failure), type="server_error")
        if self.shutting_down:
            raise Refusal(503, "the server is shutting down", type="server_error")
        waiting = self.records.n_answers + n_answers - engine.max_seqs
        if waiting > limit:
            raise Refusal(
                429,
                f"{waiting} answers would wait, expected at most {limit} (--max-waiting); try "
                "again later",
                type="rate_limit_error",
                code="rate_limit_exceeded",
            )

    def check_model(self, name: str) -> None:
        if name and name not in self.names:
            raise Refusal(
                404,
                f"field model is {name!r}, expected the model that is loaded, {self.name!r}",
                code="model_not_found",
                param="model",
            )


def refused(refusal: Refusal, headers: dict[str, str] | None = None) -> Response:
    if refusal.status in (429, 503):
        headers = {**(headers or {}), "Retry-After": "2"}
    return JSONResponse({"error": refusal.error}, refusal.status, headers=headers)


class Gate:
    """Checks key, host and origin before any path."""

    def __init__(self, app: ASGIApp, served: Served):
        self.app, self.served = app, served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self.check(HttpRequest(scope))
            except Refusal as refusal:
                return await refused(refusal)(scope, receive, send)
        await self.app(scope, receive, send)

    def check(self, request: HttpRequest) -> None:
        served, serving = self.served, self.served.serving
        host = request.headers.get("host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        allowed = {url.split("://", 1)[-1] for url in serving.allow_origins}
        if serving.loopback and not is_loopback(name.strip("[]")) and host not in allowed:
            # A web page may point a name of its own at 127.0.0.1 (DNS rebinding).
            raise Refusal(403, f"header Host is {host!r}, expected localhost or 127.0.0.1")
        origin = request.headers.get("origin")
        own = origin is not None and origin.split("://", 1)[-1] == host
        if origin is not None and not own and origin not in serving.allow_origins:
            raise Refusal(
                403,
                f"header Origin is {origin!r}, expected an origin of --allow-origin",
            )
        if served.keys and request.url.path not in OPEN_PATHS:
            scheme, _, key = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not served.check_key(key.strip()):
                raise Refusal(
                    401,
                    "found no or a wrong API key, expected the header Authorization: Bearer KEY",
                    code="invalid_api_key",
                )


async def health(request: HttpRequest) -> Response:
    served: Served = request.app.state.served
    if served.engine.failure is not None:
        return JSONResponse({"status": "error", "error": str(served.engine.failure)}, 503)
    if served.shutting_down:
        return JSONResponse({"status": "shutting down"}, 503)
    return JSONResponse({"status": "ok"})


def model_object(served: Served) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": int(served.started),
        "owned_by": "riffle",
        "context_length": served.engine.context_length,
    }


async def models(request: HttpRequest) -> Response:
    served: Served = request.app.state.served
    return JSONResponse({"object": "list", "data": [model_object(served)]})


async def model(request: HttpRequest) -> Response:
    served: Served = request.app.state.served
    try:
        served.check_model(request.path_params["name"])
    except Refusal as refusal:
        return refused(refusal)
    return JSONResponse(model_object(served))


async def chat_completions(request: HttpRequest) -> Answering:
    return Answering(request.app.state.served, C.REQUEST_CHAT)


async def completions(request: HttpRequest) -> Answering:
    return Answering(request.app.state.served, C.REQUEST_COMPLETION)


async def no_responses(_: HttpRequest) -> Response:
    return refused(
        Refusal(
            404,
            "/v1/responses is not supported, expected /v1/chat/completions",
            code="unsupported_endpoint",
        )
    )


async def no_embeddings(request: HttpRequest) -> Response:
    served: Served = request.app.state.served
    return refused(
        Refusal(
            404,
            f"{served.name!r} is a model that writes text; riffle makes no embeddings with it",
            code="unsupported_endpoint",
        )
    )


async def state(request: HttpRequest) -> Response:
    """The figures of the page. They hold no text of a request."""
    served: Served = request.app.state.served
    engine, records = served.engine, served.records
    return JSONResponse(
        {
            "model": {"name": served.name, **vars_of(engine.model.info)},
            "context_length": engine.context_length,
            "max_seqs": engine.max_seqs,
            "max_waiting": served.serving.max_waiting,
            "notice": engine.notice,
            "plan": engine.plan,
            "process": os.getpid(),
            "uptime": time.time() - served.started,
            "stats": engine.stats(),
            "totals": records.totals(),
            "requests": records.shown(),
        }
    )


#: Facts of a model that the page shows.
SHOWN = ("architecture", "format", "weight_type", "n_params", "weight_bytes", "n_layers",
         "n_ctx_train", "chat_template_name")  # fmt: skip


def vars_of(info: Any) -> dict[str, Any]:
    return {name: getattr(info, name) for name in SHOWN}


def page_file(name: str, media_type: str) -> Any:
    async def get(_request: HttpRequest) -> Response:
        return Response(
            PAGE.joinpath(name).read_bytes(),
            media_type=media_type,
            headers={
                "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "no-cache",
            },
        )

    return get


def api(base: str) -> list[Route]:
    """The paths of OpenAI's API. They are also served without the prefix /v1, as llama.cpp's
    server does."""
    return [
        Route(base + "/chat/completions", chat_completions, methods=["POST"]),
        Route(base + "/completions", completions, methods=["POST"]),
        Route(base + "/models", models),
        Route(base + "/models/{name:path}", model),
        Route(base + "/embeddings", no_embeddings, methods=["POST"]),
        Route(base + "/responses", no_responses, methods=["POST"]),
    ]


def paths() -> list[Route]:
    """All paths, as errors list them."""
    return [
        *api("/v1"),
        Route("/health", health),
        Route("/state", state),
        Route("/", page_file("index.html", "text/html")),
        Route("/page.js", page_file("page.js", "text/javascript")),
        Route("/page.css", page_file("page.css", "text/css")),
    ]


def described(route: Route) -> str:
    method = "POST" if "POST" in (route.methods or ()) else "GET"
    return f"{method} {route.path.replace('{name:path}', 'NAME')}"


async def http_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text, headers = error.detail, dict(error.headers or {})
    found = f"found {request.method} {request.url.path[:100]!r}, expected "
    if error.status_code == 404:
        text = found + "one of " + ", ".join(map(described, paths()))
    elif error.status_code == 405:
        methods = sorted(set(headers.get("Allow", "").replace(",", " ").split()) | {"OPTIONS"})
        headers = {"Allow": ", ".join(methods)}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
        text = found + " or ".join(methods)
    return refused(Refusal(error.status_code, text), headers)


async def failure(_request: HttpRequest, error: Exception) -> Response:
    return refused(Refusal(500, f"{type(error).__name__}: {error}", type="server_error"))


def make_app(served: Served) -> Starlette:
    middleware = [Middleware(Gate, served=served)]
    if served.serving.allow_origins:
        middleware.insert(
            0,
            Middleware(
                CORSMiddleware,
                allow_origins=served.serving.allow_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            ),
        )
    app = Starlette(
        # Clients differ in the base URL that they ask for: with /v1, or without it.
        routes=[*paths(), *api("")],
        middleware=middleware,
        exception_handlers={HTTPException: http_error, Exception: failure},
    )
    app.state.served = served
    return app
