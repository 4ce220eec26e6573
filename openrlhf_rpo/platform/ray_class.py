"""The Python class behind a Ray actor class, because Ray's cannot be subclassed."""

from typing import Any


def unwrap(ray_actor_class: Any) -> type:
    """The Python class behind a ``@ray.remote`` class."""
    return ray_actor_class.__ray_metadata__.modified_class.__ray_actor_class__
