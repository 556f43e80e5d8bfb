"""The ASGI application."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import Response

from serve.http import description
from serve.http.errors import on_exception, on_http_exception
from serve.http.nodes import NodeRoutes
from serve.http.routes import Handler, Limits, Service, healthz, keyed_route, noop, search_handler, status_handler

__all__ = ["OPEN_PATHS", "Limits", "Service", "create_app"]

#: What answers without a key: life, and the description of the interface.
OPEN_PATHS = frozenset({"/healthz", "/openapi.json", "/docs", "/docs/oauth2-redirect"})


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        return description.with_components(super().openapi())


def create_app(service: Service) -> FastAPI:
    """The application that serves `service`. It holds no state of its own and needs no lifespan."""
    app = _Application(
        title=description.TITLE,
        version=version("raycall"),
        description=description.DESCRIPTION,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={HTTPException: on_http_exception, Exception: on_exception},
    )
    app.router.add_api_route("/healthz", healthz, methods=["HEAD"], include_in_schema=False)
    app.router.add_api_route(
        "/healthz",
        healthz,
        methods=["GET"],
        tags=["operation"],
        summary="Whether the process answers",
        response_class=Response,
        responses=description.example({"ok": True}, "It does"),
    )
    _add_keyed(app, service, "POST", "/v1/search", search_handler(service), **description.search_documentation())
    _add_keyed(
        app,
        service,
        "GET",
        "/v1/status",
        status_handler(service),
        tags=["operation"],
        summary="What is indexed and served, as far as the key may know",
        responses={**description.example({"projects": []}, "The state"), **description.problems(401, 500)},
    )
    _add_keyed(
        app,
        service,
        "POST",
        "/v1/noop",
        noop,
        tags=["operation"],
        summary="Nothing, authenticated: the floor that a benchmark compares with",
        responses={**description.example({"ok": True}, "Done"), **description.problems(401)},
    )
    if service.writing is not None:
        for method, path, handler, documentation in NodeRoutes(service.writing, service.limits.body_bytes, service.lag_s).all():
            _add_keyed(app, service, method, path, handler, **documentation)
    return app


def _add_keyed(app: FastAPI, service: Service, method: str, path: str, handler: Handler, **documentation: Any) -> None:
    async def documented() -> None:
        """Never called: the route class answers."""

    route_class = keyed_route(service.keys, handler)
    if method == "GET":
        # The same headers; the HTTP server leaves the body out.
        app.router.add_api_route(path, documented, methods=["HEAD"], include_in_schema=False, route_class_override=route_class)
    extra = {"security": [{"apiKey": []}], **documentation.pop("openapi_extra", {})}
    app.router.add_api_route(
        path,
        documented,
        methods=[method],
        name=handler.__name__,
        response_class=Response,
        openapi_extra=extra,
        route_class_override=route_class,
        **{"description": "", **documentation},
    )
