"""The HTTP server: an application factory over :class:`ggfw.Model`, and :func:`serve`."""

from __future__ import annotations

from ggfw.server.app import blueprints, create_app, mount, serve
from ggfw.server.asgi import Asgi

__all__ = ["Asgi", "blueprints", "create_app", "mount", "serve"]
