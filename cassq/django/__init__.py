"""The backend for Django's tasks: `BACKEND` is "cassq.django.Backend", and `cassq worker
cassq.django:worker` runs them. It works with `django.tasks`, and with the package django-tasks for
Django 5.2.
"""

from __future__ import annotations

from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cassq.django.backend import Backend

__all__ = ["Backend"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # The first needs Django, and the second needs its settings.
        if name == "Backend":
            from cassq.django.backend import Backend

            return Backend
        if name == "worker":
            from cassq.django.backend import app_of_settings

            return app_of_settings()
        raise AttributeError(f"module 'cassq.django' has no attribute {name!r}")
