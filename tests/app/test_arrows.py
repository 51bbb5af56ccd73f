"""The arrows of the design: who may import whom, and which processes never load torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Each line may import itself and what stands above it.
CORE = """
    errors extras display figures replace locks memory axes folder array_file
    units
    prompts
    tokens token_service tokenizer_faults
    config
    interventions
    interventions_text
    notebook
    reading reading_request
    compare sampling
    trace
    registry expected_tensors adapters model
    readable
    under_edits
    attribution legibility
    reads intervals
    text_stream monitor
    naming
    drift hits
    contributors details structure
    upstream values bounds
    causal
    editing
    lineage
    checkpoint child
    training
    evaluation
    tuning
    ordinary
    pipeline opening
    generate minimal_pair accounting agreement
    probe
    watching
    api
"""
APP = """
    paths settings errors_text filesystem tables_base
    tables_names tables_people tables_monitors
    tables runs
    options urls
    errors
    security database search_text
    people markdown
    notes collections
    notes_file
    wake job_types store_types search_query names_index
    leading
    job_queries
    store jobs search monitors
    reading_only
    catalogue supervisor
    services worker texts
    indexing
    scanning_ordinary scanning scanning_report looking generating tuning bounding watching checking
    handlers
    figures
    value_figures account_figures account_plots run_figures monitor_figures history_figures
    pages
    main
    commands
    cli
"""
TORCH_FREE = """
    notebook
    errors display folder memory units tokens token_service config interventions interventions_text reading registry
    naming.names reads
    compare sampling intervals lineage
    text_stream monitor drift hits
    naming.lexicon naming.columns naming.contexts naming.places figures legibility training.history
    evaluation.records evaluation.data evaluation.encode evaluation.journal evaluation.effect causal.records
    editing.results
    prompts adapters.config adapters.source adapters.registration
    accounting.counts accounting.records accounting.written accounting.summary
"""


def modules(package: str) -> list[str]:
    found = sorted((ROOT / package).rglob("*.py"))
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in found]


def imports(module: str) -> Iterator[str]:
    """Every module that this one imports, now or later; not what only a type checker reads."""
    path = ROOT.joinpath(*module.split("."))
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module.count(".") == 0)


@pytest.mark.parametrize(("package", "order"), [("legible_core", CORE), ("app", APP)])
def test_modules_import_only_what_stands_above_them(package: str, order: str) -> None:
    rank = {name: number for number, line in enumerate(order.strip().splitlines()) for name in line.split()}
    wrong = []
    for module in modules(package):
        if module == package:
            continue
        room = module.split(".")[1]
        assert room in rank, f"{module} has no place in the order; give it one"
        for other in imports(module):
            parts = other.split(".")
            if parts[0] == package and len(parts) > 1 and rank.get(parts[1], -1) > rank[room]:
                wrong.append(f"{module} → {other}")
    assert wrong == []


def test_the_core_never_imports_the_application() -> None:
    wrong = [module for module in modules("legible_core") for other in imports(module) if other.split(".")[0] == "app"]
    assert wrong == []


def loaded(program: str) -> set[str]:
    """The top-level and second-level modules that a fresh interpreter holds after a program."""
    program += "\nimport sys; print(*{'.'.join(name.split('.')[:2]) for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split("\n")[-2].split())


def test_the_core_without_torch_loads_no_torch_and_no_application() -> None:
    names = loaded("\n".join(f"import legible_core.{name}" for name in TORCH_FREE.split()))
    assert "legible_core.reading" in names
    assert not names & {"torch", "app", "fastapi", "sqlalchemy"}


def test_the_core_loads_torch_only_when_load_or_read_is_used() -> None:
    assert not {"torch", "numpy"} & loaded("import legible_core, sys; assert 'load' in legible_core.__all__")
    assert "torch" in loaded("from legible_core import load, read")


def test_the_client_loads_no_torch_and_no_application() -> None:
    assert not {"torch", "app", "fastapi", "sqlalchemy"} & loaded("import legible_client")
    for module in modules("legible_client"):
        assert {other.split(".")[0] for other in imports(module)} & {"app", "torch"} == set()


def test_the_whole_core_loads_no_application() -> None:
    names = loaded("\n".join(f"import {name}" for name in modules("legible_core")))
    assert "torch" in names
    assert not names & {"app", "fastapi", "sqlalchemy"}


SERVE = """
from pathlib import Path
from fastapi.testclient import TestClient
from app.main import create_app
from app.settings import Settings
with TestClient(create_app(Settings.load(data_dir=Path({folder!r}), workers=0)), base_url="http://localhost") as client:
    slugs = [checkpoint.slug for checkpoint in client.app.state.services.catalogue.checkpoints()]
    for path in ["/", "/models", "/jobs", "/nowhere", *(f"/models/{{slug}}" for slug in slugs)]:
        client.get(path)
    for slug in slugs:
        client.post(f"/models/{{slug}}/readings", data={{"prompt": "It was"}})
"""


def test_the_web_process_never_loads_torch(tmp_path: Path) -> None:
    names = loaded(SERVE.format(folder=str(tmp_path)))
    assert {"app.main", "app.pages", "fastapi"} <= names
    assert "torch" not in names


def test_worker_and_commands_start_without_torch() -> None:
    names = loaded("import app.worker, app.handlers, app.cli; app.cli.build()")
    assert "app.handlers" in names
    assert not names & {"torch", "alembic", "fastapi", "uvicorn"}
