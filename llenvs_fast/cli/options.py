"""Parameter types of the command line: values that are checked, and explained where they are wrong."""

from __future__ import annotations

import json
from typing import Any

import click


class JsonObject(click.ParamType):
    """A JSON object, as a dict."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            parsed = json.loads(value)
        except json.JSONDecodeError as error:
            self.fail(f"{value!r} is not JSON ({error}): quote it, like '{{\"top_p\": 0.9}}'", param, ctx)
        if not isinstance(parsed, dict):
            self.fail(f"{value!r} is a JSON {type(parsed).__name__}: give an object, {{…}}", param, ctx)
        return parsed


class Count(click.ParamType):
    """A whole number of at least 1; where `all_allowed`, -1 stands for all."""

    name = "integer"

    def __init__(self, all_allowed: bool = False) -> None:
        self.all_allowed = all_allowed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if number < 1 and not (number == -1 and self.all_allowed):
            self.fail(f"{number}: give 1 or more{', or -1 for all' if self.all_allowed else ''}", param, ctx)
        return number
