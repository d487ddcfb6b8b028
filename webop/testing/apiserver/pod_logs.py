"""The logs of pods: texts that tests give."""

from __future__ import annotations

from .messages import Json, Response, refuse_body


class PodLogs:
    """The texts of containers, by their pods ("namespace/name")."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str | None, bool], str] = {}

    def write(self, pod: str, text: str, container: str | None, *, is_previous: bool) -> None:
        """Add lines to the log of a container, or of the only one."""
        key = pod, container, is_previous
        self._texts[key] = self._texts.get(key, "") + text.removesuffix("\n") + "\n"

    def read(self, key: str, pod: Json, query: dict[str, str]) -> Response:
        """Answer a request for a log, with its last lines.

        Raises:
            Refusal: it must name another container, or one.
        """
        name, spec = pod["metadata"]["name"], pod["spec"]
        own = [one["name"] for one in spec.get("containers") or ()]
        names = [*(one["name"] for one in spec.get("initContainers") or ()), *own]
        container = query.get("container") or (own[0] if len(own) == 1 else "")
        if not container:
            raise refuse_body(
                f"a container name must be specified for pod {name}, choose one of: "
                f"[{' '.join(names)}]"
            )
        if container not in names:
            raise refuse_body(f"container {container} is not valid for pod {name}")
        is_previous = query.get("previous") == "true"
        keys = (key, container, is_previous), (key, None, is_previous)
        found = [self._texts[one] for one in keys if one in self._texts]
        if is_previous and not found:
            said = f'previous terminated container "{container}" in pod "{name}" not found'
            raise refuse_body(said)
        lines = "".join(found).splitlines(keepends=True)
        tail = int(query.get("tailLines", len(lines)))
        return Response(
            200, {}, {"content-type": "text/plain"}, "".join(lines[len(lines) - tail :])
        )
