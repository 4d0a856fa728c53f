"""`llenvs-fast env list`: every environment, and what to know before using it."""

from __future__ import annotations

import click

from llenvs_fast.core.registry import environment_registry


@click.command("list")
@click.argument("source", required=False)
def list_environments(source: str | None) -> None:
    """List the environments of SOURCE (default: of all sources), one a line: name, category, warnings."""
    for adapter, name in environment_registry.list_environments(source):
        info = environment_registry.get_adapter(adapter).get_environment_info(name)
        warnings = "; ".join(info.get("warnings", ()))
        mark = f"  ! {warnings}" if warnings else ""
        click.echo(f"{adapter}:{name:<26} {info.get('category', ''):<12}{mark}")
