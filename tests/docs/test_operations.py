"""The page about alerts tells what to do about each alert, and about no other."""

from __future__ import annotations

import re

import yaml

from tests.kit.pages import DOCS, ROOT


def test_each_alert_is_explained() -> None:
    text = (ROOT / "manifests" / "monitoring" / "alerts.yaml").read_text(encoding="utf-8")
    groups = yaml.safe_load(text)["spec"]["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"]]
    page = (DOCS / "howto" / "monitoring.md").read_text(encoding="utf-8")
    explained = re.findall(r"^### (Webop\w+)\n\n(?=.{20})", page, re.MULTILINE)
    assert explained == alerts
