"""A part without its schema has the fields of the cluster, by the names of the cluster."""

from __future__ import annotations

from typing import Annotated, Any

from kubex.k8s.v1_36.core.v1.pod_template_spec import PodTemplateSpec

import webop
from webop.models.fitting import dump, fit


class PageSpec(webop.Struct):
    template: Annotated[PodTemplateSpec, webop.Schemaless()]


def test_a_field_that_has_the_python_name_of_another_one_stays_what_it_is() -> None:
    containers: list[dict[str, Any]] = [{"name": "a", "image_pull_policy": "Always"}]
    template = {"spec": {"containers": containers}}
    assert dump(fit(PageSpec, {"template": template})) == {"template": template}
