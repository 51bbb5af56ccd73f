"""`legible jobs`: what waits, runs and has ended, from the terminal."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from app.options import settings_flags
from app.settings import Settings

LISTED = 50
_DATABASE = ("data_dir", "database_url")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List, cancel and retry jobs.", no_args_is_help=True)
    group.command("list")(show)
    group.command("cancel")(cancel)
    group.command("retry")(retry)
    app.add_typer(group, name="jobs")


@settings_flags(*_DATABASE)
def show(settings: Settings, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Running jobs, then waiting ones in their order, then those that have ended."""
    from app.services import opened

    with opened(settings) as services:
        jobs = services.queue.list(limit=LISTED)
        total = sum(services.queue.counts().values())
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(job) for job in jobs], ensure_ascii=False, indent=2))
        return
    if not jobs:
        typer.echo("There are no jobs.")
    for job in jobs:
        share = "" if job.share is None else f" {job.share:.0%}"
        reason = "" if job.error is None else f"  {job.error['message']}"
        typer.echo(f"{job.id:>6}  {job.kind:<10} {job.state}{share}{reason}")
    if total > len(jobs):
        typer.echo(f"These are {len(jobs)} of {total:,} jobs; the jobs page lists all.")


@settings_flags(*_DATABASE)
def cancel(settings: Settings, job_id: Annotated[int, typer.Argument(help="The job's number.")]) -> None:
    """Cancel a waiting job, or ask a running one to stop after its current batch."""
    from app.services import opened

    with opened(settings) as services:
        job = services.queue.cancel(job_id)
    typer.echo(f"Job {job.id} is {'cancelled' if job.state == 'cancelled' else 'asked to stop'}.")


@settings_flags(*_DATABASE)
def retry(settings: Settings, job_id: Annotated[int, typer.Argument(help="The job's number.")]) -> None:
    """Submit a failed or cancelled job again."""
    from app.services import opened

    with opened(settings) as services:
        job = services.queue.retry(job_id)
    typer.echo(f"Job {job.id} is {job.state}.")
